"""Limits of each monitor port: its line rate, and the mirror sessions that the switch's operating
system allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirrored_ports import MONITOR_TOO_SLOW
from flowcheck.findings.catalog.refused_layouts import SESSION_NUMBER, SESSION_TWICE, TUNNELS_MEET
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import ClusterLayout, Monitor, Switch
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import NicCabling
from flowcheck.ops.mirror_ports.search.chunk_coverage import MirroredDirection
from flowcheck.ops.switch import existing_sessions, monitor_capacity, session_rules
from flowcheck.ops.switch.mirror_session import MirrorDirection, MirrorSession, MirrorSource
from flowcheck.ops.switch.mirror_session_options import parse_session, parse_tunnel
from flowcheck.ops.switch.session_rules import RuleVerdict
from flowcheck.ops.switch.switch_platforms import Platform, platform_named

Load = Mapping[int, tuple[MirroredDirection, ...]]
"""Monitor number -> mirrored port directions whose copies it receives."""
MONITOR_KEY_OF_OPTION = {"--monitor": "port", "--erspan": "erspan", "--session": "session"}
"""Option of `flowcheck switch` -> key of the `[[monitor]]` table with the same meaning, for error
messages."""
TUNNEL_BYTES = 16
"""Bytes between outer IP header and frame, for an unknown switch: GRE with sequence number and
ERSPAN II (switch_platforms.py, Platform.tunnel_bytes)."""


class MonitorPort(msgspec.Struct, frozen=True, kw_only=True):
    """A monitor port or tunnel, with what is known of its switch."""

    number: int
    monitor: Monitor
    os: str | None
    session: str | None
    """Session as for `--session`; None: the switch's system is unknown."""
    bridge: str | None
    host: str | None
    growth: float
    """Factor by which a tunnel makes full frames larger; 1.0 without a tunnel."""
    number_matters: bool
    """True: a session with both directions also takes the next session number."""

    @property
    def kind(self) -> tuple[float, float, str]:
        """Key of equivalent monitors: those of one switch and one machine with equal keys are
        interchangeable."""
        return self.monitor.gbps, self.growth, (self.session or "") * self.number_matters

    @property
    def name(self) -> str:
        """Switch and port, for display."""
        return f"{self.monitor.switch} {self.monitor.label}"


@dataclass(frozen=True, slots=True)
class MonitorPorts:
    """All monitor ports of a job."""

    monitor_ports: tuple[MonitorPort, ...]

    def ports_of_switch(self, switch: str) -> tuple[MonitorPort, ...]:
        """The monitor ports of one switch."""
        return tuple(spot for spot in self.monitor_ports if spot.monitor.switch == switch)

    def gbps(self, spot: MonitorPort, pairs: Sequence[MirroredDirection]) -> float:
        """Rate in Gb/s that the copies of these port directions can reach at a monitor: the sum of
        their line rates, times the tunnel's growth."""
        return sum(pair.gbps for pair in pairs) * spot.growth

    def refusal_reason(self, switch: str, load: Load) -> Finding | None:
        """Why the monitors of a switch cannot carry this load (rate, or rules of its mirror
        sessions); None: they can."""
        spots = [spot for spot in self.ports_of_switch(switch) if load.get(spot.number)]
        for spot in spots:
            total = self.gbps(spot, load[spot.number])
            if total > spot.monitor.gbps * (1 + 1e-9):
                told = " + ".join(f"{pair.port}:{pair.direction}" for pair in load[spot.number])
                gbps = spot.monitor.gbps
                return MONITOR_TOO_SLOW(sum=told, total=total, gbps=gbps, monitor=spot.name)
        if not spots or spots[0].os is None:
            return None
        platform = platform_named(spots[0].os)
        return _by_platform(platform, [session_of(s, platform, load[s.number]) for s in spots])


def monitors_of(topology: ClusterLayout, plugs: NicCabling, os: str | None) -> MonitorPorts:
    """The monitor ports of the layout. os: system of switches that state none; None: unknown.
    Raises ConfigError for a missing session number, and for port names that the system does not
    have."""
    said = {one.name: one for one in topology.switch}
    counts: dict[str, int] = {}
    for monitor in topology.monitor:
        counts[monitor.switch] = counts.get(monitor.switch, 0) + 1
    spots: list[MonitorPort] = []
    tunnels: dict[IPv4Address, int] = {}
    for number, monitor in enumerate(topology.monitor):
        switch = said.get(monitor.switch, Switch(name=monitor.switch))
        system = switch.os if switch.os is not None else os
        platform = None if system is None else platform_named(system)
        nth = sum(spot.monitor.switch == monitor.switch for spot in spots) + 1
        several = counts[monitor.switch] > 1
        bytes_ = TUNNEL_BYTES if platform is None else platform.tunnel_bytes
        inner = monitor_capacity.LINK_BYTES + monitor_capacity.ROCE_BYTES + topology.pmtu
        grown = (inner + 14 + monitor_capacity.IP_BYTES + bytes_) / inner if monitor.erspan else 1.0
        spots.append(
            MonitorPort(
                number=number,
                monitor=monitor,
                os=system,
                session=_session(platform, monitor, number, nth if several else None),
                bridge=switch.bridge,
                host=switch.host,
                growth=grown,
                number_matters=platform is not None and platform.one_way == "split",
            )
        )
        if monitor.erspan is not None:
            with _of_file(number):
                ends = parse_tunnel(monitor.erspan).destination
            if tunnels.setdefault(ends, number) != number:
                why = TUNNELS_MEET(other=tunnels[ends], address=str(ends))
                raise ConfigError(f"monitor[{number}].erspan", monitor.erspan, why)
    found = MonitorPorts(tuple(spots))
    _check_sessions(found)
    for spot in found.monitor_ports:
        if spot.os is not None:
            _check_ports(plugs, spot, platform_named(spot.os))
    return found


def _session(
    platform: Platform | None, monitor: Monitor, number: int, nth: int | None
) -> str | None:
    if platform is None:
        return None if monitor.session is None else str(monitor.session)
    if monitor.session is not None:
        return str(monitor.session)
    if platform.identity == "number":
        why = SESSION_NUMBER(platform.title)
        raise ConfigError(f"monitor[{number}].session", None, why)
    return "flowcheck" if nth is None else f"flowcheck-{nth}"


def _check_sessions(monitors: MonitorPorts) -> None:
    """Each monitor is a session by itself: a second one of its number or name replaces it."""
    taken: dict[tuple[str, str], MonitorPort] = {}
    for spot in monitors.monitor_ports:
        if spot.session is None:
            continue
        called = str(int(spot.session)) if spot.session.isdecimal() else spot.session
        first = taken.setdefault((spot.monitor.switch, called), spot)
        if first is not spot:
            why = SESSION_TWICE(other=first.number, monitor=first.name, port=spot.monitor.label)
            raise ConfigError(f"monitor[{spot.number}].session", spot.session, why)


def _check_ports(plugs: NicCabling, spot: MonitorPort, platform: Platform) -> None:
    """Names of its switch's ports, of the session and its number are the platform's."""
    for each in plugs.ports.values():
        for plug in each:
            if plug.switch == spot.monitor.switch:
                try:
                    platform.canonical_port(plug.port)
                except ConfigError as error:
                    raise ConfigError("cable.ports", error.value, error.right) from error
    with _of_file(spot.number):
        session = session_of(spot, platform, ())
        for found in session_rules.check_ports(platform, session):
            if found.rule == "session" and found.verdict is RuleVerdict.REFUSE:
                raise ConfigError("--session", spot.session, found.why)


@contextmanager
def _of_file(number: int) -> Iterator[None]:
    """What is refused under an option's name is named by the file's key."""
    try:
        yield
    except ConfigError as error:
        key = MONITOR_KEY_OF_OPTION.get(error.key, error.key)
        raise ConfigError(f"monitor[{number}].{key}", error.value, error.right) from error


def session_of(
    spot: MonitorPort, platform: Platform, pairs: Sequence[MirroredDirection]
) -> MirrorSession:
    """The mirror session that copies these port directions to a monitor. Raises ConfigError for
    invalid settings."""
    request = parse_session(
        platform,
        [],
        monitor=spot.monitor.port,
        erspan=spot.monitor.erspan,
        session=spot.session,
        bridge=spot.bridge,
    )
    return msgspec.structs.replace(request, sources=mirror_sources(platform, pairs))


def mirror_sources(
    platform: Platform, pairs: Sequence[MirroredDirection]
) -> tuple[MirrorSource, ...]:
    """One source per port; both directions of a port become `both`. Raises ConfigError for a name
    that is not a port of the platform."""
    ways: dict[str, set[MirrorDirection]] = {}
    for pair in pairs:
        ways.setdefault(platform.canonical_port(pair.port), set()).add(pair.direction)
    return tuple(
        MirrorSource(
            port=port, direction=MirrorDirection.BOTH if len(each) > 1 else next(iter(each))
        )
        for port, each in ways.items()
    )


def _by_platform(platform: Platform, sessions: Sequence[MirrorSession]) -> Finding | None:
    """The rules of `flowcheck switch check` on ports, and of each session beside the others."""
    planned = []
    for session in sessions:
        for found in session_rules.check_ports(platform, session):
            if found.verdict is RuleVerdict.REFUSE:
                return found.why
        planned.append(session_rules.platform_sessions(platform, session))
    for number, own in enumerate(planned):
        others = [one for n, each in enumerate(planned) if n != number for one in each]
        held = tuple(_as_existing_session(platform, one) for one in others)
        for found in existing_sessions.check_overlaps(platform, own, held):
            if found.verdict is RuleVerdict.REFUSE:
                return found.why
    return None


def _as_existing_session(
    platform: Platform, session: MirrorSession
) -> existing_sessions.ExistingSession:
    called = session.number if platform.identity == "number" else session.name
    return existing_sessions.ExistingSession(
        session=called if called is not None else "",
        sources=tuple(map(str, session.sources)),
        monitor=session.monitor,
    )
