"""Why no machine sees all of a group, and what its operator can state so that one does."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.errors import ConfigError
from flowcheck.ops.ports.monitors import Monitors
from flowcheck.ops.ports.taps import Sought, Want


def uncovered(
    sought: Sought,
    monitors: Monitors,
    machine: str,
    lacking: Sequence[tuple[Want, int]],
    redundancy: int,
    within: int,
) -> ConfigError:
    """machine: the one that sees most of the group; lacking: its rings of which it does not see
    these bits; within: the --redundancy at which some machine would see all, 0 where none."""
    want, bits = lacking[0]
    rings = sum(one.group == want.group for one in sought.wants)
    times = f" on {redundancy} monitor ports" if redundancy > 1 else ""
    ends = _ends(sought, want)
    there = [
        f"{spot.name} to {spot.monitor.machine}"
        for spot in monitors.spots
        if spot.monitor.switch in ends
    ]
    seen = rings - len(lacking)
    why = (
        f"cannot be covered at one machine, which has to see all of group {want.group}: at "
        f"{machine}, which sees {seen} of its {rings} rings, {want.lacked(bits)} can be "
        f"seen{times}. Its links end at {', '.join(sorted(ends))}; monitors there: "
        f"{', '.join(there) or 'none'}. {_remedy(sought, monitors, machine, lacking, redundancy)}"
    )
    if within:
        why += f", or ask for --redundancy {within}"
    return ConfigError("ring", want.name, why)


def _ends(sought: Sought, want: Want) -> set[str]:
    """Switches at which its links end."""
    return {p.switch for tap in sought.taps if want.name in tap.shows for p in tap.pairs}


def _remedy(
    sought: Sought,
    monitors: Monitors,
    machine: str,
    lacking: Sequence[tuple[Want, int]],
    redundancy: int,
) -> str:
    """At the switches of all that the machine lacks, as many monitors as it may need there."""
    told = []
    for switch in sorted({end for want, _ in lacking for end in _ends(sought, want)}):
        own = sum(spot.monitor.machine == machine for spot in monitors.on(switch))
        if own < redundancy:
            told.append(f"{redundancy - own} at {switch}" + (f" beside its {own}" if own else ""))
    what = " and ".join(told) or "more at these switches"
    return f'State [[monitor]] tables with machine = "{machine}": {what}'
