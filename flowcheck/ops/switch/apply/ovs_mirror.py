"""Mirrors of Open vSwitch: validates the wanted one against the database, and creates, changes
and removes ours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event

import msgspec

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_ovs_mirrors import (
    BOND,
    MADE_BY_OTHERS,
    MADE_BY_SESSION,
    MONITOR_CUTS_TAGS,
    MONITOR_IN_PATH,
    MONITOR_INTERNAL,
    NO_BRIDGE_AT_ALL,
    NO_SUCH_BRIDGE,
    NO_SUCH_OVS_PORT,
    NO_TUNNEL_IN_OVS,
    OVS_MONITOR_WATCHED,
    OVS_NAME_TAKEN,
    OVS_OUTPUT_TAKEN,
    OVS_SOURCE_IS_OUTPUT,
    PATCH_PORT,
    PORT_ON_NO_BRIDGE,
    PORT_ON_OTHER_BRIDGE,
)
from flowcheck.findings.catalog.switch_changes import (
    ADD_MIRROR,
    BRIDGE_OWN_PORT,
    CHANGE_MIRROR,
    CONTROLLED_BRIDGE,
    FLOWS_IN_USE,
    OVS_EMPTY_MIRROR,
    OVS_MIRROR,
    OVS_MIRRORS_CHANGED,
    OVS_NOT_COPYING,
    OVS_ON_ANOTHER_MACHINE,
    OVS_PORT_GONE,
    OVS_PORT_NOT_OPEN,
    OVS_SILENT,
    REMOVE_MIRROR,
    TRAFFIC_UNCHECKED,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply import ovs_state
from flowcheck.ops.switch.apply.command_runner import ProgramTimeoutError, run_switch_command
from flowcheck.ops.switch.apply.ovs_state import (
    TIMEOUT_S,
    OvsBridge,
    OvsDaemon,
    OvsMirror,
    OvsPort,
    OvsState,
)
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession

COUNTERS_LIMIT_S = 15.0
"""Seconds to wait until the mirror's counters move. The daemon writes them every 5 s by default
(vswitch.ovsschema, other_config:stats-update-interval); this is three of those intervals."""
LOOK_S = 0.2
"""Seconds between two readings of the counters. A choice: a shorter time costs CPU time."""


class OvsGoal(msgspec.Struct, frozen=True, kw_only=True):
    """The mirror that a bridge shall have. `output`, `rx` and `tx` are UUIDs of ports."""

    bridge: str
    output: str
    rx: frozenset[str]
    tx: frozenset[str]


class OpenVSwitch:
    """The mirror of one session name in one Open vSwitch database (a `MirrorBackend`)."""

    def __init__(self, name: str, database: str | None) -> None:
        self._name, self._database = name, database
        self.daemon = OvsDaemon(database)
        self._touched: set[str] = set()
        self._looked_at: dict[str, set[str]] = {}

    def observe(self) -> OvsState:
        """The database's present state. Raises StateError where the database does not answer."""
        return ovs_state.read(self._database)

    def mine(self, state: OvsState) -> list[OvsMirror]:
        """The mirrors that carry this session's mark and belong to a bridge. Marked mirrors
        without a bridge are leftovers that the database deletes."""
        return [
            one
            for one in state.mirrors.values()
            if one.mark == self._name and state.bridge_of(one.uuid)
        ]

    def own_goal(self, state: OvsState) -> OvsGoal | None:
        """The first mirror of this session that has an output port, as a goal; None: there is
        none."""
        for one in self.mine(state):
            bridge = state.bridge_of(one.uuid)
            if bridge and one.output:
                return OvsGoal(bridge=bridge.name, output=one.output, rx=one.rx, tx=one.tx)
        return None

    def possible_part(self, state: OvsState, goal: OvsGoal | None) -> OvsGoal | None:
        """`goal` without ports that no longer exist; None if its bridge or its output port is
        gone."""
        if goal is None or goal.output not in state.ports or goal.bridge not in state.bridges:
            return None
        there = state.bridges[goal.bridge].ports
        return msgspec.structs.replace(goal, rx=goal.rx & there, tx=goal.tx & there)

    def steps(self, state: OvsState, goal: OvsGoal | None) -> list[CommandStep]:
        """The commands that lead from `state` to `goal`. Each is one OVSDB transaction, so that a
        mirror exists with all its ports or not at all."""
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

    def run(self, step: CommandStep, *, back: bool) -> None:
        """Runs a command. back: it undoes an earlier one; then it does not wait for the daemon
        (--no-wait), which may be the cause of the failure. Raises StateError."""
        head, *rest = step.command
        try:
            run_switch_command(
                [head, *(["--no-wait"] if back else []), *rest], limit_s=2 * TIMEOUT_S
            )
        except ProgramTimeoutError as error:
            if self.daemon.answers():
                self._check_others()
                raise
            raise StateError(OVS_SILENT(TIMEOUT_S)) from error
        if back:
            self._look_again_everywhere(self.observe())

    def confirm_mirroring(self, goal: OvsGoal | None) -> None:
        """Waits until the daemon has opened the ports and counts mirrored frames, and has flows in
        use translated again. Raises StateError where that does not happen within
        COUNTERS_LIMIT_S."""
        state = self.observe()
        for bridge in self._touched | ({goal.bridge} if goal else set()):
            self._look_again(bridge)
        if goal is None and not self._touched:
            self._look_again_everywhere(state)
        end = time.monotonic() + COUNTERS_LIMIT_S
        while goal is not None:
            for uuid in (goal.output, *goal.rx, *goal.tx):
                _opened(state, uuid)
            slow = state.counts_after_ms > 1000 * COUNTERS_LIMIT_S
            if slow or any(one.counted for one in self.mine(state)):
                return
            if time.monotonic() > end:
                raise StateError(OVS_NOT_COPYING(COUNTERS_LIMIT_S))
            Event().wait(LOOK_S)
            state = self.observe()

    def clean_up_notes(self, state: OvsState) -> None:
        """Nothing to do: the marks are in the database rows."""

    def _look_again(self, bridge: str) -> None:
        if not self.daemon.remote:
            self.daemon.revalidate_flows(bridge)

    def _look_again_everywhere(self, state: OvsState) -> None:
        """What a killed run of ours took away may be in use still; a bridge may not be open.

        A daemon that is silent about one is not waited for at each of the others.
        """
        with suppress(ProgramTimeoutError):
            for bridge in state.bridges:
                try:
                    self._look_again(bridge)
                except ProgramTimeoutError:
                    raise
                except StateError:
                    continue

    def _check_others(self) -> None:
        """Raises StateError where mirrors came or went since a step waits for those looked at."""
        bridges = self.observe().bridges if self._looked_at else {}
        for bridge, seen in self._looked_at.items():
            if bridge not in bridges or seen != bridges[bridge].mirrors:
                raise StateError(OVS_MIRRORS_CHANGED(bridge))

    def _command(self, *words: str) -> tuple[str, ...]:
        database = [f"--db={self._database}"] if self._database else []
        return ("ovs-vsctl", *database, f"--timeout={TIMEOUT_S}", *words)

    def _more(self, state: OvsState, goal: OvsGoal, gone: set[str]) -> CommandStep:
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
        return CommandStep(
            what=ADD_MIRROR(self._described(state, goal)),
            command=self._command(*words, "--", "add", "bridge", goal.bridge, "mirrors", "@x"),
        )

    def _other(self, state: OvsState, one: OvsMirror, goal: OvsGoal) -> CommandStep:
        now = OvsGoal(bridge=goal.bridge, output=one.output or "", rx=one.rx, tx=one.tx)
        return CommandStep(
            what=CHANGE_MIRROR(
                before=self._described(state, now), after=self._described(state, goal)
            ),
            command=self._command(
                *("set", "mirror", one.uuid, f"output_port={goal.output}"),
                f"select_src_port=[{','.join(sorted(goal.rx))}]",
                f"select_dst_port=[{','.join(sorted(goal.tx))}]",
                *("select_all=false", "select_vlan=[]", "output_vlan=[]", "snaplen=[]"),
            ),
        )

    def _less(self, state: OvsState, one: OvsMirror, bridge: str) -> CommandStep:
        now = OvsGoal(bridge=bridge, output=one.output or "", rx=one.rx, tx=one.tx)
        return CommandStep(
            what=REMOVE_MIRROR(self._described(state, now)),
            command=self._command("remove", "bridge", bridge, "mirrors", one.uuid),
        )

    def _described(self, state: OvsState, goal: OvsGoal) -> Finding:
        def names(ports: frozenset[str], word: str) -> list[str]:
            return sorted(f"{_called(state, one)}:{word}" for one in ports)

        sources = [*names(goal.rx, "rx"), *names(goal.tx, "tx")]
        to = _called(state, goal.output) if goal.output else "no port"
        where = {"mirror": self._name, "bridge": goal.bridge, "monitor": to}
        return OVS_MIRROR(**where, sources=sources) if sources else OVS_EMPTY_MIRROR(**where)


def _called(state: OvsState, uuid: str) -> str:
    port = state.ports.get(uuid)
    return port.name if port else "a port that has gone"


def _opened(state: OvsState, uuid: str) -> None:
    port = state.ports.get(uuid)
    if port is None:
        raise StateError(OVS_PORT_GONE())
    if port.errors or not port.numbers:
        why = "; ".join(port.errors) or "no number"
        raise StateError(OVS_PORT_NOT_OPEN(port=port.name, error=why))


ADDRESSES_SHOWN = 3
"""MAC addresses that an error message lists. A choice of layout."""
VLAN_STRIPPING_MODES = ("access", "native-untagged", "dot1q-tunnel")
"""Values of vlan_mode at which a port removes or replaces VLAN tags."""


def ovs_goal(
    ovs: OpenVSwitch, session: MirrorSession, state: OvsState, warn: Callable[[Finding], None]
) -> OvsGoal:
    """The mirror that `session` describes, checked against the database.

    warn: called with each finding that the user should know but that does not prevent the mirror.

    Raises ConfigError with the reason where Open vSwitch cannot hold the mirror.
    """
    if session.tunnel is not None or session.monitor is None or session.bridge is None:
        raise ConfigError("--erspan", str(session.tunnel), NO_TUNNEL_IN_OVS())
    bridge = state.bridges.get(session.bridge)
    if bridge is None:
        known = sorted(state.bridges)
        right = NO_SUCH_BRIDGE(known) if known else NO_BRIDGE_AT_ALL()
        raise ConfigError("--bridge", session.bridge, right)
    monitor = _port(state, bridge, "--monitor", session.monitor)
    ways: dict[MirrorDirection, set[str]] = {MirrorDirection.RX: set(), MirrorDirection.TX: set()}
    for source in session.sources:
        port = _port(state, bridge, "--source", source.port)
        if port.name == bridge.name:
            warn(BRIDGE_OWN_PORT(port.name))
        for way in source.direction.ways():
            ways[way].add(port.uuid)
    mine = ovs.mine(state)
    _names(session.name, bridge, state, mine)
    _monitor(monitor)
    for other in state.mirrors.values():
        if other not in mine and state.bridge_of(other.uuid):
            _clash(state, other, monitor, ways[MirrorDirection.RX] | ways[MirrorDirection.TX])
    if not any(one.output == monitor.uuid for one in mine):
        _talking(ovs, bridge, monitor, warn)
    if ovs.daemon.remote:
        warn(FLOWS_IN_USE(bridge.name))
    if bridge.controlled or state.virtual_network:
        warn(CONTROLLED_BRIDGE(bridge.name))
    return OvsGoal(
        bridge=bridge.name,
        output=monitor.uuid,
        rx=frozenset(ways[MirrorDirection.RX]),
        tx=frozenset(ways[MirrorDirection.TX]),
    )


def _port(state: OvsState, bridge: OvsBridge, option: str, name: str) -> OvsPort:
    port = state.port(name)
    if port is None:
        raise ConfigError(option, name, NO_SUCH_OVS_PORT())
    if port.uuid not in bridge.ports:
        there = state.bridge_of(port.uuid)
        right = (
            PORT_ON_OTHER_BRIDGE(other=there.name, bridge=bridge.name)
            if there
            else PORT_ON_NO_BRIDGE(bridge.name)
        )
        raise ConfigError(option, name, right)
    if len(port.kinds) > 1:
        raise ConfigError(option, name, BOND())
    if "patch" in port.kinds:
        raise ConfigError(option, name, PATCH_PORT())
    return port


def _names(name: str, bridge: OvsBridge, state: OvsState, mine: list[OvsMirror]) -> None:
    for uuid in bridge.mirrors:
        other = state.mirrors.get(uuid)
        if other is not None and other not in mine and other.name == name:
            raise ConfigError("--session", name, OVS_NAME_TAKEN(bridge=bridge.name, name=name))


def _monitor(port: OvsPort) -> None:
    if port.tag is not None or port.vlan_mode in VLAN_STRIPPING_MODES:
        column, value = ("vlan_mode", port.vlan_mode) if port.vlan_mode else ("tag", port.tag)
        right = MONITOR_CUTS_TAGS(column=column, value=value)
        raise ConfigError("--monitor", port.name, right)
    if "internal" in port.kinds:
        raise ConfigError("--monitor", port.name, MONITOR_INTERNAL())


def _clash(state: OvsState, other: OvsMirror, monitor: OvsPort, sources: set[str]) -> None:
    maker = MADE_BY_SESSION(other.mark) if other.mark else MADE_BY_OTHERS()
    if other.output == monitor.uuid:
        right = OVS_OUTPUT_TAKEN(mirror=other.name, maker=maker)
        raise ConfigError("--monitor", monitor.name, right)
    if monitor.uuid in other.rx | other.tx:
        right = OVS_MONITOR_WATCHED(mirror=other.name, maker=maker)
        raise ConfigError("--monitor", monitor.name, right)
    if other.output in sources:
        port = state.ports[str(other.output)].name
        raise ConfigError("--source", port, OVS_SOURCE_IS_OUTPUT(other.name))


def _talking(
    ovs: OpenVSwitch, bridge: OvsBridge, monitor: OvsPort, warn: Callable[[Finding], None]
) -> None:
    """A mirror's output takes no other traffic: who is reached through it would be cut off."""
    try:
        if ovs.daemon.remote:
            raise StateError(OVS_ON_ANOTHER_MACHINE())
        shown = ovs.daemon.learned(bridge.name)
    except StateError as error:
        warn(TRAFFIC_UNCHECKED(port=monitor.name, why=error.finding))
        return
    known = [
        line.split()[2]
        for line in shown.splitlines()
        if re.match(r"\s*\d+\s", line) and int(line.split()[0]) in monitor.numbers
    ]
    if known:
        right = MONITOR_IN_PATH(addresses=known[:ADDRESSES_SHOWN], bridge=bridge.name)
        raise ConfigError("--monitor", monitor.name, right)
