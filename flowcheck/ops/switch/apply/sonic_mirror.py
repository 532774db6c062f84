"""Mirror sessions of SONiC over ssh: validates the wanted one against CONFIG_DB, and creates
and removes ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_sonic_sessions import (
    ASIC_CANNOT_MIRROR,
    SONIC_MONITOR_IS_MEMBER,
    SONIC_MONITOR_IS_ROUTED,
    SONIC_MONITOR_TAKEN,
    SONIC_MONITOR_WATCHED,
    SONIC_NAME_TAKEN,
    SONIC_NO_SUCH_PORT,
    SONIC_SOURCE_IS_MONITOR,
    SONIC_SOURCE_WATCHED,
)
from flowcheck.findings.catalog.switch_changes import (
    PORT_NAME_BEGINS_ALIKE,
    SONIC_NOT_ACTIVE,
    SONIC_SAVED_UNCHECKED,
    SONIC_SESSION_CAME,
    SONIC_SESSION_CHANGED,
    SONIC_SESSION_TAKEN,
    SONIC_UNHEARD,
)
from flowcheck.findings.catalog.switch_steps import ADD_SESSION, REMOVE_SESSION
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply import sonic_state
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal
from flowcheck.ops.switch.apply.command_runner import (
    SSH_LIMIT_S,
    OutcomeUnknownError,
    SshShell,
    run,
)
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.apply.sonic_state import SessionRow, SonicState, normalized_row, ports_of
from flowcheck.ops.switch.mirror_session import MirrorSession

ACTIVE_S = 10.0
"""Seconds for the session's status to become active. A choice: longer delays the error, shorter
fails on a busy switch."""
LOOK_S = 1.0
"""Seconds between two looks at the session: each is a command over ssh. A choice: shorter costs the
switch's processor."""
CONFIG = ("sudo", "-n", "config", "mirror_session")
SAVE = ("sudo", "-n", "config", "save", "-y")


class SonicSwitch:
    """The session of one name. A goal is its row in CONFIG_DB, or None."""

    def __init__(self, name: str, shell: SshShell, journal: ApplyJournal, *, save: bool) -> None:
        self._name, self._shell, self._journal, self._save = name, shell, journal, save
        self._unheard = False

    def observe(self) -> SonicState:
        return sonic_state.read(self._shell)

    def noted(self) -> list[SessionRow]:
        """Rows this machine has made, or was about to."""
        found: list[SessionRow] = self._journal.read().get("made", [])
        return found

    def own(self, state: SonicState) -> SessionRow | None:
        """A session is ours where it is, to the letter, one that was noted."""
        there = state.sessions.get(self._name)
        return there if there is not None and there in self.noted() else None

    def possible(self, state: SonicState, goal: SessionRow | None) -> SessionRow | None:
        return goal

    def steps(self, state: SonicState, goal: SessionRow | None) -> list[CommandStep]:
        """A session cannot be changed: it goes, and another comes."""
        there = state.sessions.get(self._name)
        if there == goal:
            return []
        steps = []
        if self.own(state) is not None:
            steps.append(self._less(there or {}))
        elif there is not None and goal is not None:
            raise StateError(SONIC_SESSION_TAKEN(self._name))
        if goal is not None:
            steps.append(self._more(goal))
        return steps

    def run(self, step: CommandStep, *, back: bool) -> None:
        """What the switch was told and did not answer, it may do later: that stays noted."""
        try:
            run(step.command, limit_s=SSH_LIMIT_S)
        except OutcomeUnknownError as error:
            self._unheard = True
            raise StateError(SONIC_UNHEARD(why=error.finding, host=self._shell.host)) from error

    def confirm(self, goal: SessionRow | None) -> None:
        """Configured is not active: the switch says what it made of it. Then, if asked, saves."""
        end = time.monotonic() + ACTIVE_S
        while goal is not None:
            status = self.observe().status.get(self._name)
            if status == "active":
                break
            if time.monotonic() > end:
                raise StateError(
                    SONIC_NOT_ACTIVE(
                        host=self._shell.host, status=status or "unknown", limit_s=ACTIVE_S
                    )
                )
            Event().wait(LOOK_S)
        if self._save:
            try:
                self._shell.run(SAVE)
            except StateError as error:
                raise StateError(SONIC_SAVED_UNCHECKED(error.finding)) from error

    def settle(self, state: SonicState) -> None:
        there = self.own(state)
        if there is None and self._unheard:
            return
        self._journal.write({} if there is None else {"host": self._shell.host, "made": [there]})

    def _more(self, goal: SessionRow) -> CommandStep:
        ports, way = goal["src_port"], goal["direction"].lower()
        if goal["type"] == "ERSPAN":
            numbers = (goal[key] for key in ("dscp", "ttl", "gre_type", "queue"))
            where = (goal["src_ip"], goal["dst_ip"], *numbers)
            words = ("erspan", "add", self._name, *where, ports, way)
            to = goal["dst_ip"]
        else:
            words = ("span", "add", self._name, goal["dst_port"], ports, way)
            to = goal["dst_port"]

        def still_free() -> bool:
            if self._name in self.observe().sessions:
                raise StateError(SONIC_SESSION_CAME(self._name))
            made = [*(one for one in self.noted() if one != goal), goal]
            self._journal.write({"host": self._shell.host, "made": made})
            return True

        return CommandStep(
            what=ADD_SESSION(
                session=self._name, host=self._shell.host, ports=ports, direction=way, monitor=to
            ),
            command=self._shell.command((*CONFIG, *words)),
            still=still_free,
        )

    def _less(self, there: SessionRow) -> CommandStep:
        def still_ours() -> bool:
            now = self.observe().sessions.get(self._name)
            if now is not None and now != there:
                raise StateError(SONIC_SESSION_CHANGED(self._name))
            return now is not None

        ports = ",".join(sorted(ports_of(there)))
        return CommandStep(
            what=REMOVE_SESSION(session=self._name, host=self._shell.host, ports=ports),
            command=self._shell.command((*CONFIG, "remove", self._name)),
            still=still_ours,
        )


GRE = "0x88be"


def sonic_goal(
    sonic: SonicSwitch, session: MirrorSession, state: SonicState, warn: Callable[[Finding], None]
) -> SessionRow:
    """The row of CONFIG_DB `session` asks for (sonic-utilities config/main.py, add_span and
    add_erspan).

    warn: called with what the user should know, though it is no reason to refuse. Raises
    ConfigError with the reason where the session is impossible.
    """
    ways = {source.direction for source in session.sources}
    (way,) = ways
    ports = frozenset(source.port for source in session.sources)
    for port in sorted(ports):
        if port not in state.ports and port not in state.bundles:
            raise ConfigError("--source", port, SONIC_NO_SUCH_PORT())
    common = {"src_port": ",".join(sorted(ports)), "direction": way.upper()}
    tunnel = session.tunnel
    if tunnel is not None:
        where = {"src_ip": str(tunnel.source), "dst_ip": str(tunnel.destination)}
        numbers = {"dscp": str(tunnel.dscp), "ttl": str(tunnel.ttl), "queue": "0"}
        wanted = {"type": "ERSPAN", **where, **numbers, "gre_type": GRE, **common}
    else:
        assert session.monitor is not None
        _monitor(state, session.monitor)
        for one in way.ways():
            if one in state.incapable:
                raise ConfigError("--source", str(way), ASIC_CANNOT_MIRROR(one))
        wanted = {"type": "SPAN", "dst_port": session.monitor, **common}
    wanted = normalized_row(wanted)
    there = state.sessions.get(session.name)
    if there is not None and there != wanted and sonic.own(state) is None:
        raise ConfigError("--session", session.name, SONIC_NAME_TAKEN())
    for name, other in state.sessions.items():
        if name != session.name:
            _clash(name, other, session, way.ways(), warn)
    return wanted


def _monitor(state: SonicState, name: str) -> None:
    if name not in state.ports:
        raise ConfigError("--monitor", name, SONIC_NO_SUCH_PORT())
    if name in state.members:
        raise ConfigError("--monitor", name, SONIC_MONITOR_IS_MEMBER(state.members[name]))
    if name in state.routed:
        raise ConfigError("--monitor", name, SONIC_MONITOR_IS_ROUTED())


def _clash(
    name: str,
    other: SessionRow,
    session: MirrorSession,
    ways: tuple[str, ...],
    warn: Callable[[Finding], None],
) -> None:
    theirs = ports_of(other)
    if session.monitor and session.monitor == other.get("dst_port"):
        raise ConfigError("--monitor", session.monitor, SONIC_MONITOR_TAKEN(name))
    if session.monitor in theirs:
        raise ConfigError("--monitor", session.monitor, SONIC_MONITOR_WATCHED(name))
    same_way = other.get("direction", "BOTH").lower() in ("both", *ways) or len(ways) > 1
    for source in session.sources:
        if source.port == other.get("dst_port"):
            raise ConfigError("--source", source.port, SONIC_SOURCE_IS_MONITOR(name))
        if not same_way:
            continue
        if source.port in theirs:
            raise ConfigError("--source", str(source), SONIC_SOURCE_WATCHED(name))
        begins = sorted(port for port in theirs if port.startswith(source.port))
        if begins:
            warn(PORT_NAME_BEGINS_ALIKE(port=source.port, other=begins[0], session=name))
