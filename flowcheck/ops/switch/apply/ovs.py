"""Mirrors of Open vSwitch: one row, ours by its external_ids, changed in one transaction each."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Event

import msgspec

from flowcheck.errors import StateError
from flowcheck.ops.switch.apply import ovs_state
from flowcheck.ops.switch.apply.bring import Step
from flowcheck.ops.switch.apply.commands import GaveUpError, run
from flowcheck.ops.switch.apply.ovs_daemon import Daemon
from flowcheck.ops.switch.apply.ovs_state import TIMEOUT_S, Mirror, State

COUNTED_S = 15.0
"""The daemon writes its counters every 5 s unless told otherwise (vswitch.ovsschema,
other_config:stats-update-interval)."""
LOOK_S = 0.2


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One mirror. Ports are UUIDs."""

    bridge: str
    output: str
    rx: frozenset[str]
    tx: frozenset[str]


class OpenVSwitch:
    """The mirror of one session name in one database."""

    def __init__(self, name: str, database: str | None) -> None:
        self._name, self._database = name, database
        self.daemon = Daemon(database)
        self._touched: set[str] = set()
        self._looked_at: dict[str, set[str]] = {}

    def observe(self) -> State:
        return ovs_state.read(self._database)

    def mine(self, state: State) -> list[Mirror]:
        """Marked with this name, on a bridge: others the database has dropped already."""
        return [
            one
            for one in state.mirrors.values()
            if one.mark == self._name and state.bridge_of(one.uuid)
        ]

    def own(self, state: State) -> Goal | None:
        for one in self.mine(state):
            bridge = state.bridge_of(one.uuid)
            if bridge and one.output:
                return Goal(bridge=bridge.name, output=one.output, rx=one.rx, tx=one.tx)
        return None

    def possible(self, state: State, goal: Goal | None) -> Goal | None:
        """No mirror without its output."""
        if goal is None or goal.output not in state.ports or goal.bridge not in state.bridges:
            return None
        there = state.bridges[goal.bridge].ports
        return msgspec.structs.replace(goal, rx=goal.rx & there, tx=goal.tx & there)

    def steps(self, state: State, goal: Goal | None) -> list[Step]:
        """One transaction each: the mirror is there with all its ports, or it is not."""
        steps = []
        kept = None
        for one in self.mine(state):
            bridge = state.bridge_of(one.uuid)
            assert bridge is not None
            self._touched.add(bridge.name)
            if goal and kept is None and bridge.name == goal.bridge:
                kept = one
            else:
                steps.append(self._less(state, one, bridge.name))
        if goal is None:
            return steps
        if kept is None:
            return [*steps, self._more(state, goal, {step.command[-1] for step in steps})]
        if not (kept.plain and (kept.output, kept.rx, kept.tx) == (goal.output, goal.rx, goal.tx)):
            steps.append(self._other(state, kept, goal))
        return steps

    def run(self, step: Step, *, back: bool) -> None:
        """Undoing does not wait for a daemon that may be the reason for it."""
        head, *rest = step.command
        try:
            run([head, *(["--no-wait"] if back else []), *rest], limit_s=2 * TIMEOUT_S)
        except GaveUpError as error:
            if self.daemon.answers():
                self._check_others()
                raise
            raise StateError(
                f"ovs-vswitchd does not answer: its database took the change, and nobody did it "
                f"within {TIMEOUT_S} s; see that it runs (ovs-appctl version)"
            ) from error
        if back:
            self._look_again_everywhere(self.observe())

    def confirm(self, goal: Goal | None) -> None:
        """The daemon has opened the ports, counts what it copies, and does it for flows in use."""
        state = self.observe()
        for bridge in self._touched | ({goal.bridge} if goal else set()):
            self._look_again(bridge)
        if goal is None and not self._touched:
            self._look_again_everywhere(state)
        end = time.monotonic() + COUNTED_S
        while goal is not None:
            for uuid in (goal.output, *goal.rx, *goal.tx):
                _opened(state, uuid)
            slow = state.counts_after_ms > 1000 * COUNTED_S
            if slow or any(one.counted for one in self.mine(state)):
                return
            if time.monotonic() > end:
                raise StateError(
                    "the mirror is in the database, and ovs-vswitchd has not counted a copy of it "
                    f"within {COUNTED_S:g} s: it did not take it; see its log"
                )
            Event().wait(LOOK_S)
            state = self.observe()

    def settle(self, state: State) -> None:
        """Marks are on the rows."""

    def _look_again(self, bridge: str) -> None:
        if not self.daemon.remote:
            self.daemon.look_again(bridge)

    def _look_again_everywhere(self, state: State) -> None:
        """What a killed run of ours took away may be in use still; a bridge may not be open.

        A daemon that is silent about one is not waited for at each of the others.
        """
        with suppress(GaveUpError):
            for bridge in state.bridges:
                try:
                    self._look_again(bridge)
                except GaveUpError:
                    raise
                except StateError:
                    continue

    def _check_others(self) -> None:
        """Raises StateError where mirrors came or went since a step waits for those looked at."""
        bridges = self.observe().bridges if self._looked_at else {}
        for bridge, seen in self._looked_at.items():
            if bridge not in bridges or seen != bridges[bridge].mirrors:
                raise StateError(
                    f"somebody changed the mirrors of {bridge} since they were looked at: they "
                    "have to be looked at again, so run it once more"
                )

    def _command(self, *words: str) -> tuple[str, ...]:
        database = [f"--db={self._database}"] if self._database else []
        return ("ovs-vsctl", *database, f"--timeout={TIMEOUT_S}", *words)

    def _more(self, state: State, goal: Goal, gone: set[str]) -> Step:
        """Only onto the mirrors that were looked at: somebody else's new one is looked at first."""
        seen = self._looked_at[goal.bridge] = set(state.bridges[goal.bridge].mirrors - gone)
        words = ["--", "wait-until", "bridge", goal.bridge, f"mirrors=[{','.join(sorted(seen))}]"]
        columns = {"select-src-port": goal.rx, "select-dst-port": goal.tx}
        local = {}
        for place, uuid in enumerate(sorted({goal.output, *goal.rx, *goal.tx}), start=1):
            local[uuid] = f"@p{place}"
            words += ["--", f"--id=@p{place}", "get", "port", state.ports[uuid].name]
        words += ["--", "--id=@x", "create", "mirror", f"name={self._name}"]
        words += [f"external_ids:flowcheck={self._name}", f"output-port={local[goal.output]}"]
        for column, ports in columns.items():
            if ports:
                words.append(f"{column}={','.join(sorted(local[uuid] for uuid in ports))}")
        return Step(
            what=f"+ {self._told(state, goal)}",
            command=self._command(*words, "--", "add", "bridge", goal.bridge, "mirrors", "@x"),
        )

    def _other(self, state: State, one: Mirror, goal: Goal) -> Step:
        now = Goal(bridge=goal.bridge, output=one.output or "", rx=one.rx, tx=one.tx)
        return Step(
            what=f"~ {self._told(state, now)} becomes {self._told(state, goal)}",
            command=self._command(
                *("set", "mirror", one.uuid, f"output_port={goal.output}"),
                f"select_src_port=[{','.join(sorted(goal.rx))}]",
                f"select_dst_port=[{','.join(sorted(goal.tx))}]",
                *("select_all=false", "select_vlan=[]", "output_vlan=[]", "snaplen=[]"),
            ),
        )

    def _less(self, state: State, one: Mirror, bridge: str) -> Step:
        now = Goal(bridge=bridge, output=one.output or "", rx=one.rx, tx=one.tx)
        return Step(
            what=f"- {self._told(state, now)}",
            command=self._command("remove", "bridge", bridge, "mirrors", one.uuid),
        )

    def _told(self, state: State, goal: Goal) -> str:
        def names(ports: frozenset[str], word: str) -> list[str]:
            return sorted(f"{_called(state, one)}:{word}" for one in ports)

        sources = [*names(goal.rx, "rx"), *names(goal.tx, "tx")]
        to = _called(state, goal.output) if goal.output else "no port"
        return f"mirror {self._name} on {goal.bridge}: {', '.join(sources) or 'nothing'} -> {to}"


def _called(state: State, uuid: str) -> str:
    port = state.ports.get(uuid)
    return port.name if port else "a port that has gone"


def _opened(state: State, uuid: str) -> None:
    port = state.ports.get(uuid)
    if port is None:
        raise StateError("a port of the mirror has gone meanwhile")
    if port.errors or not port.numbers:
        why = "; ".join(port.errors) or "no number"
        raise StateError(f"ovs-vswitchd has not opened {port.name}: {why}")
