"""`flowcheck switch apply` and `remove`: chooses the backend (Open vSwitch, tc, SONiC) and
connects to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_mirror_sessions import (
    APPLY_UNSUPPORTED,
    ONE_OF,
    OPTION_OF_OTHER_OS,
    SESSION_NAME,
)
from flowcheck.findings.catalog.refused_sonic_sessions import SONIC_NOT_REMOVED
from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply import ovs_mirror, sonic_mirror, sonic_state, tc_mirror, tc_state
from flowcheck.ops.switch.apply.apply_journal import ApplyJournal, apply_lock, default_folder
from flowcheck.ops.switch.apply.command_runner import SshShell
from flowcheck.ops.switch.apply.ovs_mirror import OpenVSwitch
from flowcheck.ops.switch.apply.reconciler import ApplyResult, CommandStep, MirrorBackend, reconcile
from flowcheck.ops.switch.apply.sonic_mirror import SonicSwitch
from flowcheck.ops.switch.apply.tc_mirror import TcMirrors
from flowcheck.ops.switch.apply.tc_state import TcJournal
from flowcheck.ops.switch.mirror_session import MirrorSession
from flowcheck.ops.switch.mirror_session_options import SESSION_NAME_PATTERN
from flowcheck.ops.switch.monitor_capacity import check_monitor_speed, device_gbps
from flowcheck.ops.switch.session_rules import platform_sessions
from flowcheck.ops.switch.switch_platforms import Platform, platform_named

APPLY_SYSTEMS = ("openvswitch", "sonic", "tc")
Warn = Callable[[Finding], None]
Tell = Callable[[list[CommandStep]], None]


class ApplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the connection to the switch; ports are in the session."""

    database: str | None = None
    """Open vSwitch: database as ovs-vsctl's --db; None: this machine's."""
    form: str | None = None
    """tc: classifier, "matchall", "u32" or "hardware"; None: the one that this kernel has."""
    host: str | None = None
    """SONiC: host name as ssh knows it."""
    ssh_config: Path | None = None
    """SONiC: configuration file for ssh; None: the user's own."""
    save: bool = False
    """SONiC: also save the configuration, so that it survives a reboot. This saves unsaved changes
    of others, too."""
    keep_hooks: bool = False
    """tc: on removal, leave the clsact qdisc even if it is empty."""
    journal: Path | None = None
    oversubscribe: bool = False
    """Allow a monitor port that is slower than all its source ports together."""


class ConnectedBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend with the functions that compute its goals: `asked` for a session, `nothing` for
    its removal."""

    target: MirrorBackend[Any, Any]
    asked: Callable[[MirrorSession, Any, Warn], Any]
    nothing: Callable[[Any], Any]
    gbps: Callable[[Any, str], float | None]
    """(state, port name) -> line rate in Gb/s; None: unknown."""
    other_sources: Callable[[Any, str | None], list[str]] = msgspec.field(
        default=lambda _, __: [], name="beside"
    )
    """(state, monitor port) -> ports that other sessions copy to that monitor port, one entry per
    direction. Empty for switches where a monitor port belongs to one session."""


def apply(
    os: str, session: MirrorSession, where: ApplyOptions, *, dry_run: bool, warn: Warn, tell: Tell
) -> ApplyResult:
    """Creates or changes `session` on the switch.

    os: short name of the platform.
    dry_run: only report the commands.
    warn: called with each finding that the user should know.
    tell: called with the commands before anything is changed.

    Raises ConfigError for invalid options or an impossible session, and any FlowCheckError while
    nothing was changed. Later failures are in the result.
    """
    (session,) = platform_sessions(check_supported(os, where), session)
    with _reached(os, session.name, where, dry_run=dry_run) as one:

        def wanted(state: Any) -> Any:
            goal = one.asked(session, state, warn)
            if not where.oversubscribe:
                others = one.other_sources(state, session.monitor)
                check_monitor_speed(session, lambda port: one.gbps(state, port), others)
            return goal

        return reconcile(one.target, wanted, dry_run=dry_run, tell=tell)


def remove(os: str, name: str, where: ApplyOptions, *, dry_run: bool, tell: Tell) -> ApplyResult:
    """Removes what apply created under the session name `name`, and nothing else. Parameters and
    errors as in apply()."""
    check_supported(os, where)
    if not re.fullmatch(SESSION_NAME_PATTERN, name, re.ASCII):
        raise ConfigError("--session", name, SESSION_NAME())
    with _reached(os, name, where, dry_run=dry_run) as one:
        return reconcile(one.target, one.nothing, dry_run=dry_run, tell=tell)


def check_supported(os: str, where: ApplyOptions) -> Platform:
    """Checks that `os` is a platform that apply supports and that all options fit it; returns the
    platform. Raises ConfigError."""
    platform = platform_named(os)
    if os not in APPLY_SYSTEMS:
        raise ConfigError("--os", os, APPLY_UNSUPPORTED(supported=APPLY_SYSTEMS, os=os))
    for option, value, its in (
        ("--db", where.database, "openvswitch"),
        ("--host", where.host, "sonic"),
        ("--ssh-config", where.ssh_config, "sonic"),
        ("--save", where.save or None, "sonic"),
        ("--form", where.form, "tc"),
        ("--keep-hook", where.keep_hooks or None, "tc"),
    ):
        if value is not None and os != its:
            raise ConfigError(option, value, OPTION_OF_OTHER_OS(its))
    if where.form is not None and where.form not in platform.forms:
        raise ConfigError("--form", where.form, ONE_OF(list(platform.forms)))
    return platform


@contextmanager
def _reached(
    os: str, name: str, where: ApplyOptions, *, dry_run: bool
) -> Iterator[ConnectedBackend]:
    folder = where.journal or default_folder()
    if os == "openvswitch":
        reached, lock = _ovs(name, where), "ovs-lock"
    else:
        lock = "lock"
        reached = _sonic(name, where, folder) if os == "sonic" else _tc(name, where, folder)
    if dry_run:
        yield reached
        return
    with apply_lock(folder, lock):
        yield reached


def _ovs(name: str, where: ApplyOptions) -> ConnectedBackend:
    """Its marks are in its database; of two at once one would undo what the other has made."""
    ovs = OpenVSwitch(name, where.database)
    return ConnectedBackend(
        target=ovs,
        asked=lambda session, state, warn: ovs_mirror.ovs_goal(ovs, session, state, warn),
        nothing=lambda _: None,
        gbps=lambda state, name: port.gbps if (port := state.port(name)) else None,
    )


def _tc(name: str, where: ApplyOptions, folder: Path) -> ConnectedBackend:
    made = TcJournal(ApplyJournal(folder, f"tc-{tc_state.namespace()}"))
    tc = TcMirrors(name, where.form or "", made, keep_hooks=where.keep_hooks)
    return ConnectedBackend(
        target=tc,
        asked=lambda session, state, warn: tc_mirror.tc_goal(tc, session, state, warn),
        nothing=lambda _: frozenset(),
        gbps=lambda _, name: device_gbps(name),
        other_sources=lambda state, monitor: [
            other.device
            for other in state.filters
            if monitor in other.copies_to and other not in tc.filters(state)
        ],
    )


def _sonic(name: str, where: ApplyOptions, folder: Path) -> ConnectedBackend:
    shell = SshShell(where.host, where.ssh_config)
    place = hashlib.sha256(shell.host.encode()).hexdigest()[:16]
    sonic = SonicSwitch(name, shell, ApplyJournal(folder, f"sonic-{place}-{name}"), save=where.save)

    def nothing(state: Any) -> None:
        if name in state.sessions and sonic.own_goal(state) is None:
            raise ConfigError("--session", name, SONIC_NOT_REMOVED(shell.host))

    return ConnectedBackend(
        target=sonic,
        asked=lambda session, state, warn: sonic_mirror.sonic_goal(sonic, session, state, warn),
        nothing=nothing,
        gbps=sonic_state.gbps,
    )
