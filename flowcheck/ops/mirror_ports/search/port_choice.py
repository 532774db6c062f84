"""The smallest set of mirrored ports for a whole job; where there is none, which ring fails and
why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from flowcheck.config.config_decoding import at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    ADD_MONITORS,
    ADD_MONITORS_BESIDE,
    ADD_MONITORS_THERE,
    LESS_REDUNDANCY,
    MONITOR_ROOM,
    MONITORS_AT,
    MONITORS_TOO_SMALL,
    NO_SHARING_FOUND,
    PORTS_NEEDED,
    RING_UNCOVERED,
    SEARCH_ENDED,
    TUNNEL_ROOM,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.search.branch_and_bound import (
    MOST_STEPS,
    SEARCH_LIMIT_S,
    PlacedPorts,
    PortSearch,
    load_by_monitor,
)
from flowcheck.ops.mirror_ports.search.chunk_coverage import CoverageGoal, CoverageProblem, PortTap
from flowcheck.ops.mirror_ports.search.monitor_port_limits import MonitorPort, MonitorPorts


def coverage_error(
    sought: CoverageProblem,
    monitors: MonitorPorts,
    machine: str,
    lacking: Sequence[tuple[CoverageGoal, int]],
    redundancy: int,
    within: int,
) -> ConfigError:
    """The error for a ring that no choice of ports can show.

    machine: FlowCheck machine that sees most of the group.
    lacking: (goal, bits that this machine does not see) for its rings.
    redundancy: requested number of monitors per chunk.
    within: redundancy at which a machine would see all; 0: none.
    """
    want, bits = lacking[0]
    rings = sum(one.group == want.group for one in sought.goals)
    ends = _ends(sought, want)
    there = [
        f"{spot.name} to {spot.monitor.machine}"
        for spot in monitors.monitor_ports
        if spot.monitor.switch in ends
    ]
    add = _monitors_to_add(sought, monitors, machine, lacking, redundancy)
    why = RING_UNCOVERED(
        group=want.group,
        ports="1 monitor port" if redundancy == 1 else f"{redundancy} monitor ports",
        machine=machine,
        seen=rings - len(lacking),
        rings=rings,
        part=want.seen_without(bits),
        switches=sorted(ends),
        monitors=there or "none",
        add=add,
    )
    if within:
        # Each chunk reaches the machine: only the copies of it are too few.
        why = LESS_REDUNDANCY(
            group=want.group,
            wanted=redundancy,
            machine=machine,
            has=[
                MONITORS_AT(switch=switch, count=_own(monitors, machine, switch))
                for switch in _all_ends(sought, lacking)
            ],
            uncovered=why,
            redundancy=within,
            add=add,
        )
    return ConfigError("ring", want.name, why)


def _ends(sought: CoverageProblem, want: CoverageGoal) -> set[str]:
    """Switches at which its links end."""
    return {p.switch for tap in sought.taps if want.name in tap.shows for p in tap.pairs}


def _all_ends(sought: CoverageProblem, lacking: Sequence[tuple[CoverageGoal, int]]) -> list[str]:
    """Switches at which links of these rings end."""
    return sorted({end for want, _ in lacking for end in _ends(sought, want)})


def _own(monitors: MonitorPorts, machine: str, switch: str) -> int:
    """Number of a machine's monitor ports at a switch."""
    return sum(spot.monitor.machine == machine for spot in monitors.ports_of_switch(switch))


def _monitors_to_add(
    sought: CoverageProblem,
    monitors: MonitorPorts,
    machine: str,
    lacking: Sequence[tuple[CoverageGoal, int]],
    redundancy: int,
) -> tuple[Finding, ...]:
    """At the switches of all that the machine lacks, as many monitors as it may need there."""
    told: list[Finding] = []
    for switch in _all_ends(sought, lacking):
        own = _own(monitors, machine, switch)
        if own < redundancy:
            more = redundancy - own
            told.append(
                ADD_MONITORS_BESIDE(count=more, switch=switch, own=own)
                if own
                else ADD_MONITORS(count=more, switch=switch)
            )
    return tuple(told) or (ADD_MONITORS_THERE(),)


class PortChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The ports to mirror, and the monitors that receive the copies."""

    placed: PlacedPorts
    machine_of_group: dict[str, str]
    """Group -> FlowCheck machine that follows it."""
    least: int
    """Lower bound on the number of port directions."""
    exact: bool

    @property
    def gap(self) -> int:
        """By how many port directions a better choice could be smaller; 0: this one is optimal."""
        return len(self.placed) - self.least


def choose_ports(
    sought: CoverageProblem,
    monitors: MonitorPorts,
    redundancy: int = 1,
    most_steps: int = MOST_STEPS,
) -> PortChoice:
    """Chooses the fewest port directions that show all goals.

    redundancy: on how many monitors each chunk must be seen.
    most_steps: limit of the search, per part of the job.

    Raises ConfigError that names a ring that no choice shows, or the load that the monitor ports
    of a switch cannot carry.
    """
    at_least("--redundancy", redundancy, 1)
    with_monitor = {spot.monitor.switch for spot in monitors.monitor_ports}
    usable = [t for t in sought.taps if all(pair.switch in with_monitor for pair in t.pairs)]
    homes = {
        group: _machines(group, sought, usable, monitors, redundancy)
        for group in dict.fromkeys(want.group for want in sought.goals)
    }
    placed: list[tuple[PlacedPorts, dict[str, str]]] = []
    least, exact = 0, True
    for wants, taps in _parts(sought.goals, usable):
        found = PortSearch(wants, taps, monitors, homes, redundancy, most_steps).run()
        if found is None:
            raise _too_much(wants, taps, monitors, homes, redundancy, most_steps)
        placed.append((found.placed, found.machine_of_group))
        least, exact = least + found.least, exact and found.exact
    return PortChoice(
        placed=tuple(one for part, _ in placed for one in part),
        machine_of_group={group: machine for _, home in placed for group, machine in home.items()},
        least=least,
        exact=exact,
    )


def _machines(
    group: str,
    sought: CoverageProblem,
    usable: Sequence[PortTap],
    monitors: MonitorPorts,
    redundancy: int,
) -> list[str]:
    """Those that could see all of a group, if their monitor ports took everything: it is followed
    by one chain. Raises ConfigError with the first ring that the best of them cannot see."""
    wants = [want for want in sought.goals if want.group == group]
    machines = dict.fromkeys(spot.monitor.machine for spot in monitors.monitor_ports)

    def lacking(machine: str, times: int) -> list[tuple[CoverageGoal, int]]:
        short = ((want, _unseen(want, usable, monitors, machine, times)) for want in wants)
        return [(want, bits) for want, bits in short if bits]

    short = {machine: lacking(machine, redundancy) for machine in machines}
    found = [machine for machine in machines if not short[machine]]
    if found:
        return found
    fewer = range(min(redundancy - 1, len(monitors.monitor_ports)), 0, -1)
    within = next((r for r in fewer if any(not lacking(one, r) for one in machines)), 0)
    # Of machines that are equally short, one that sees all with fewer copies needs only more ports.
    best = min(machines, key=lambda one: (within and len(lacking(one, within)), len(short[one])))
    raise coverage_error(sought, monitors, best, short[best], redundancy, within)


def _unseen(
    want: CoverageGoal,
    usable: Sequence[PortTap],
    monitors: MonitorPorts,
    machine: str,
    redundancy: int,
) -> int:
    """Bits of a want that fewer monitors of a machine could see than they should."""
    spots: list[set[int]] = [set() for _ in want.chunks]
    for tap in usable:
        bits = tap.shows.get(want.name, 0)
        own = {spot.number for spot in _at(tap, monitors, machine)} if bits else set()
        for bit, there in enumerate(spots):
            if own and bits >> bit & 1 and len(there) < redundancy:
                there.update(own)
    return sum(1 << bit for bit, there in enumerate(spots) if len(there) < redundancy)


def _at(tap: PortTap, monitors: MonitorPorts, machine: str) -> list[MonitorPort]:
    """Monitors of a machine beside all of a tap's ports."""
    each = [
        [s for s in monitors.ports_of_switch(pair.switch) if s.monitor.machine == machine]
        for pair in tap.pairs
    ]
    return [spot for spots in each for spot in spots] if all(each) else []


def _parts(
    wants: Sequence[CoverageGoal], taps: Sequence[PortTap]
) -> Iterator[tuple[list[CoverageGoal], list[PortTap]]]:
    """Rings that share nothing, neither group nor port nor switch, are chosen for by themselves."""
    above: dict[str, str] = {}

    def root(name: str) -> str:
        while above.setdefault(name, name) != name:
            name = above[name]
        return name

    for want in wants:
        above[root(f"want {want.name}")] = root(f"group {want.group}")
    for tap in taps:
        first, *others = [f"want {name}" for name in tap.shows]
        for other in (*others, *(f"switch {pair.switch}" for pair in tap.pairs)):
            above[root(other)] = root(first)
    roots = dict.fromkeys(root(f"want {want.name}") for want in wants)
    for part in roots:
        own = [want for want in wants if root(f"want {want.name}") == part]
        yield own, [tap for tap in taps if root(f"want {next(iter(tap.shows))}") == part]


def _too_much(
    wants: Sequence[CoverageGoal],
    taps: Sequence[PortTap],
    monitors: MonitorPorts,
    homes: Mapping[str, Sequence[str]],
    redundancy: int,
    most_steps: int,
) -> ConfigError:
    """The sum that found no room, by what the rings need where monitor ports take everything."""
    free = MonitorPorts(
        tuple(
            msgspec.structs.replace(
                spot, os=None, monitor=msgspec.structs.replace(spot.monitor, gbps=float("inf"))
            )
            for spot in monitors.monitor_ports
        )
    )
    found = PortSearch(wants, taps, free, homes, redundancy, most_steps).run()
    rings = ", ".join(want.name for want in wants[:4]) + (", ..." if len(wants) > 4 else "")
    ends = {pair.switch for tap in taps for pair in tap.pairs}
    if found is None:
        ended = SEARCH_ENDED(steps=most_steps, seconds=SEARCH_LIMIT_S, switches=sorted(ends))
        return ConfigError("ring", rings, ended)
    switches = list(dict.fromkeys(pair.switch for pair, _ in found.placed))
    load = load_by_monitor(found.placed)
    needed = sum(pair.gbps for pair, _ in found.placed)
    room = sum(
        s.monitor.gbps / s.growth for s in monitors.monitor_ports if s.monitor.switch in ends
    )
    refusals = (monitors.refusal_reason(switch, load) for switch in switches if needed <= room)
    total = " + ".join(f"{count} * {gbps:g}" for gbps, count in _by_speed(found.placed))
    there = [_room(s) for s in monitors.monitor_ports if s.monitor.switch in ends]
    told = [
        PORTS_NEEDED(count=len(found.placed), sum=total, gbps=needed, monitors=there),
        *(refusal for refusal in refusals if refusal is not None),
    ]
    if needed <= room:
        told.append(NO_SHARING_FOUND(SEARCH_LIMIT_S))
    return ConfigError("monitor", rings, MONITORS_TOO_SMALL(told))


def _room(spot: MonitorPort) -> Finding:
    """How much a monitor port takes."""
    if spot.growth > 1:
        inner = f"{spot.monitor.gbps / spot.growth:.4g}"
        return TUNNEL_ROOM(monitor=spot.name, gbps=spot.monitor.gbps, inner=inner)
    return MONITOR_ROOM(monitor=spot.name, gbps=spot.monitor.gbps)


def _by_speed(placed: PlacedPorts) -> list[tuple[float, int]]:
    speeds = [pair.gbps for pair, _ in placed]
    return [(gbps, speeds.count(gbps)) for gbps in sorted(set(speeds))]
