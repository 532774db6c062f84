"""A failing schedule without what it fails without, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace
from support.faults.schedule import Room, Schedule


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """The same with one thing less done to it, each in turn."""
    for name in ("frames", "processes", "torn"):
        faults = getattr(schedule, name)
        for at in range(len(faults)):
            yield replace(schedule, **{name: faults[:at] + faults[at + 1 :]})
    if schedule.again:
        yield replace(schedule, again=False)
    if schedule.room != Room():
        yield replace(schedule, room=Room())
    for at, fault in enumerate(schedule.frames):
        if fault.count > 1:
            half = replace(fault, count=fault.count // 2)
            yield replace(
                schedule, frames=(*schedule.frames[:at], half, *schedule.frames[at + 1 :])
            )
    job = schedule.job
    for plainer in ({"wrap": ""}, {"mirrored": (0,)}, {"retransmits": 0}, {"metric_every": 0}):
        if replace(job, **plainer) != job:
            yield replace(schedule, job=replace(job, **plainer))


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """The smallest of those that still fail, found one thing at a time."""
    found = True
    while found:
        found = False
        for one in smaller(schedule):
            if fails(one):
                schedule, found = one, True
                break
    return schedule
