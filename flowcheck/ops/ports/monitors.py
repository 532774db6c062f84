"""What a monitor port can take: its line rate, and what the switch's system allows of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.ports.plugs import Plugs
from flowcheck.ops.ports.taps import Pair
from flowcheck.ops.ports.topology import Monitor, Switch, Topology
from flowcheck.ops.switch import rates, rules, state
from flowcheck.ops.switch.asked import asked, parse_tunnel
from flowcheck.ops.switch.platforms import Platform, named
from flowcheck.ops.switch.rules import Verdict
from flowcheck.ops.switch.session import Direction, Session, Source

Load = Mapping[int, tuple[Pair, ...]]
"""[monitor] the pairs whose copies go there."""
KEYS = {"--monitor": "port", "--erspan": "erspan", "--session": "session"}
"""Of a `[[monitor]]`, by the option of `flowcheck switch` that refuses it."""
TUNNEL_BYTES = 16
"""GRE with a sequence number, and ERSPAN II (ops/switch/platforms.py, Platform.tunnel_bytes)."""


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """A monitor, with what is known of its switch."""

    number: int
    monitor: Monitor
    os: str | None
    session: str | None
    """As `--session` has it; None: no system is stated."""
    bridge: str | None
    host: str | None
    growth: float
    """Of each frame, by a tunnel."""
    number_matters: bool
    """Both directions would take the next number, too."""

    @property
    def kind(self) -> tuple[float, float, str]:
        """Monitors of a switch and a machine that are alike in it are so in everything."""
        return self.monitor.gbps, self.growth, (self.session or "") * self.number_matters

    @property
    def name(self) -> str:
        return f"{self.monitor.switch} {self.monitor.called}"


@dataclass(frozen=True, slots=True)
class Monitors:
    """All of a job's."""

    spots: tuple[Spot, ...]

    def on(self, switch: str) -> tuple[Spot, ...]:
        return tuple(spot for spot in self.spots if spot.monitor.switch == switch)

    def gbps(self, spot: Spot, pairs: Sequence[Pair]) -> float:
        """Line rates of the sources, grown by a tunnel."""
        return sum(pair.gbps for pair in pairs) * spot.growth

    def refused(self, switch: str, load: Load) -> str | None:
        """Why the monitors of a switch cannot take this; None: they can."""
        spots = [spot for spot in self.on(switch) if load.get(spot.number)]
        for spot in spots:
            total = self.gbps(spot, load[spot.number])
            if total > spot.monitor.gbps * (1 + 1e-9):
                told = " + ".join(f"{pair.port}:{pair.direction}" for pair in load[spot.number])
                return f"{told} = {total:g} Gb/s, over {spot.monitor.gbps:g} of {spot.name}"
        if not spots or spots[0].os is None:
            return None
        platform = named(spots[0].os)
        return _by_platform(platform, [session_of(s, platform, load[s.number]) for s in spots])


def monitors_of(topology: Topology, plugs: Plugs, os: str | None) -> Monitors:
    """os: the system of switches that state none. Raises ConfigError for a session number that is
    missing, for a port that is none of the system's."""
    said = {one.name: one for one in topology.switch}
    counts: dict[str, int] = {}
    for monitor in topology.monitor:
        counts[monitor.switch] = counts.get(monitor.switch, 0) + 1
    spots: list[Spot] = []
    tunnels: dict[IPv4Address, int] = {}
    for number, monitor in enumerate(topology.monitor):
        switch = said.get(monitor.switch, Switch(name=monitor.switch))
        system = switch.os if switch.os is not None else os
        platform = None if system is None else named(system)
        nth = sum(spot.monitor.switch == monitor.switch for spot in spots) + 1
        several = counts[monitor.switch] > 1
        bytes_ = TUNNEL_BYTES if platform is None else platform.tunnel_bytes
        inner = rates.LINK_BYTES + rates.ROCE_BYTES + topology.pmtu
        grown = (inner + 14 + rates.IP_BYTES + bytes_) / inner if monitor.erspan else 1.0
        spots.append(
            Spot(
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
                why = (
                    f"monitor[{tunnels[ends]}] ends at {ends}, too: their copies would share its "
                    "port; state an address of another port for each"
                )
                raise ConfigError(f"monitor[{number}].erspan", monitor.erspan, why)
    found = Monitors(tuple(spots))
    _check_sessions(found)
    for spot in found.spots:
        if spot.os is not None:
            _check_ports(plugs, spot, named(spot.os))
    return found


def _session(
    platform: Platform | None, monitor: Monitor, number: int, nth: int | None
) -> str | None:
    if platform is None:
        return None if monitor.session is None else str(monitor.session)
    if monitor.session is not None:
        return str(monitor.session)
    if platform.identity == "number":
        why = f"{platform.title} numbers its sessions: state one that is free (one in use changes)"
        raise ConfigError(f"monitor[{number}].session", "not stated", why)
    return "flowcheck" if nth is None else f"flowcheck-{nth}"


def _check_sessions(monitors: Monitors) -> None:
    """Each monitor is a session by itself: a second one of its number or name replaces it."""
    taken: dict[tuple[str, str], Spot] = {}
    for spot in monitors.spots:
        if spot.session is None:
            continue
        called = str(int(spot.session)) if spot.session.isdecimal() else spot.session
        first = taken.setdefault((spot.monitor.switch, called), spot)
        if first is not spot:
            why = (
                f"is that of monitor[{first.number}], too: {first.name} and "
                f"{spot.monitor.called} would be one session; state another one for each"
            )
            raise ConfigError(f"monitor[{spot.number}].session", spot.session, why)


def _check_ports(plugs: Plugs, spot: Spot, platform: Platform) -> None:
    """Names of its switch's ports, of the session and its number are the platform's."""
    for each in plugs.of.values():
        for plug in each:
            if plug.switch == spot.monitor.switch:
                try:
                    platform.spelled(plug.port)
                except ConfigError as error:
                    raise ConfigError("cable.ports", error.value, error.right) from error
    with _of_file(spot.number):
        session = session_of(spot, platform, ())
        for found in rules.by_ports(platform, session):
            if found.rule == "session" and found.verdict is Verdict.REFUSE:
                raise ConfigError("--session", spot.session, found.why)


@contextmanager
def _of_file(number: int) -> Iterator[None]:
    """What is refused under an option's name is named by the file's key."""
    try:
        yield
    except ConfigError as error:
        key = KEYS.get(error.key, error.key)
        raise ConfigError(f"monitor[{number}].{key}", error.value, error.right) from error


def session_of(spot: Spot, platform: Platform, pairs: Sequence[Pair]) -> Session:
    """The session that copies these to a monitor. Raises ConfigError for words that are none."""
    request = asked(
        platform,
        [],
        monitor=spot.monitor.port,
        erspan=spot.monitor.erspan,
        session=spot.session,
        bridge=spot.bridge,
    )
    return msgspec.structs.replace(request, sources=sources_of(platform, pairs))


def sources_of(platform: Platform, pairs: Sequence[Pair]) -> tuple[Source, ...]:
    """A source for each port: both directions of one are `both`."""
    ways: dict[str, set[Direction]] = {}
    for pair in pairs:
        ways.setdefault(platform.spelled(pair.port), set()).add(pair.direction)
    return tuple(
        Source(port=port, direction=Direction.BOTH if len(each) > 1 else next(iter(each)))
        for port, each in ways.items()
    )


def _by_platform(platform: Platform, sessions: Sequence[Session]) -> str | None:
    """The rules of `flowcheck switch check` on ports, and of each session beside the others."""
    planned = []
    for session in sessions:
        for found in rules.by_ports(platform, session):
            if found.verdict is Verdict.REFUSE:
                return found.why
        planned.append(rules.planned(platform, session))
    for number, own in enumerate(planned):
        others = [one for n, each in enumerate(planned) if n != number for one in each]
        held = tuple(_held(platform, one) for one in others)
        for found in state.overlaps(platform, own, held):
            if found.verdict is Verdict.REFUSE:
                return found.why
    return None


def _held(platform: Platform, session: Session) -> state.Held:
    called = session.number if platform.identity == "number" else session.name
    return state.Held(
        session=called if called is not None else "",
        sources=tuple(map(str, session.sources)),
        monitor=session.monitor,
    )
