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
    ADD_SESSION,
    PORT_NAME_BEGINS_ALIKE,
    REMOVE_SESSION,
    SONIC_NOT_ACTIVE,
    SONIC_SAVED_UNCHECKED,
    SONIC_SESSION_CAME,
    SONIC_SESSION_CHANGED,
    SONIC_SESSION_TAKEN,
    SONIC_UNHEARD,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply import sonic_state
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal
from flowcheck.ops.switch.apply.command_runner import (
    SSH_LIMIT_S,
    OutcomeUnknownError,
    SshShell,
    run_switch_command,
)
from flowcheck.ops.switch.apply.reconciler import CommandStep
from flowcheck.ops.switch.apply.sonic_state import SessionRow, SonicState, normalized_row, ports_of
from flowcheck.ops.switch.mirror_session import MirrorSession

ACTIVE_S = 10.0
"""Seconds until the session's status must be active. A choice: a longer limit delays the error, a
shorter one fails on a busy switch."""
LOOK_S = 1.0
"""Seconds between two readings of the session's status; each is a command over ssh. A choice: a
shorter time costs the switch's CPU."""
CONFIG = ("sudo", "-n", "config", "mirror_session")
SAVE = ("sudo", "-n", "config", "save", "-y")


class SonicSwitch:
    """The mirror session of one name on a SONiC switch (a `MirrorBackend`). A goal is its row in
    CONFIG_DB; None: no session."""

    def __init__(self, name: str, shell: SshShell, journal: ApplyJournal, *, save: bool) -> None:
        self._name, self._shell, self._journal, self._save = name, shell, journal, save
        self._unheard = False

    def observe(self) -> SonicState:
        """The switch's databases now. Raises StateError where the switch does not answer."""
        return sonic_state.read(self._shell)

    def noted(self) -> list[SessionRow]:
        """The rows that this machine has created or was about to create, from the journal."""
        found: list[SessionRow] = self._journal.read().get("made", [])
        return found

    def own_goal(self, state: SonicState) -> SessionRow | None:
        """The session's row if it equals one in the journal exactly, else None: then somebody else
        made it."""
        there = state.sessions.get(self._name)
        return there if there is not None and there in self.noted() else None

    def possible_part(self, state: SonicState, goal: SessionRow | None) -> SessionRow | None:
        """`goal` unchanged: SONiC checks ports itself when it creates the session."""
        return goal

    def steps(self, state: SonicState, goal: SessionRow | None) -> list[CommandStep]:
        """The commands from `state` to `goal`. SONiC cannot change a session, so it is removed and
        created again. Raises StateError where a session of this name exists that FlowCheck did not
        create."""
        there = state.sessions.get(self._name)
        if there == goal:
            return []
        steps = []
        if self.own_goal(state) is not None:
            steps.append(self._less(there or {}))
        elif there is not None and goal is not None:
            raise StateError(SONIC_SESSION_TAKEN(self._name))
        if goal is not None:
            steps.append(self._more(goal))
        return steps

    def run(self, step: CommandStep, *, back: bool) -> None:
        """Runs a command over ssh. Where its outcome is unknown the journal keeps the session,
        since the switch may still execute it. Raises StateError."""
        try:
            run_switch_command(step.command, limit_s=SSH_LIMIT_S)
        except OutcomeUnknownError as error:
            self._unheard = True
            raise StateError(SONIC_UNHEARD(why=error.finding, host=self._shell.host)) from error

    def confirm_mirroring(self, goal: SessionRow | None) -> None:
        """Waits until the switch reports the session as active, then saves the configuration if
        requested. Raises StateError where it is not active after ACTIVE_S, or cannot be saved."""
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

    def clean_up_notes(self, state: SonicState) -> None:
        """Updates the journal to what the switch holds; unchanged while the outcome of a command
        is unknown."""
        there = self.own_goal(state)
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
    """The row in CONFIG_DB for `session` (sonic-utilities config/main.py, add_span and
    add_erspan), checked against the switch's state.

    warn: called with each finding that the user should know but that does not prevent the session.

    Raises ConfigError with the reason where the switch cannot hold the session.
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
    if there is not None and there != wanted and sonic.own_goal(state) is None:
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
