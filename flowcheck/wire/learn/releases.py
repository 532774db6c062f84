"""Which NCCL releases still explain a reading, and whether they place its bytes alike."""

from __future__ import annotations

from flowcheck.wire.learn.candidates import schedule_of
from flowcheck.wire.learn.match import Cut
from flowcheck.wire.learn.search import Communicator
from flowcheck.wire.schedule import Schedule
from flowcheck.wire.terms import Rule


def releases_open(cut: Cut, communicator: Communicator) -> bool:
    """Another release's partition explains every size seen and puts bytes of `cut` elsewhere.

    Releases are told by their clear-to-send entries; where none was mirrored only sizes are left,
    and the sizes of two partitions may agree.
    """
    for rule in communicator.ring.rules:
        if rule in cut.rules:
            continue
        mine = _under(cut, communicator, rule)
        if not _same_sizes(mine, cut.schedules) or _same_places(mine, cut.schedules):
            continue
        others = {other.op: other for other in communicator.cuts.found}.values()
        if all(_same_sizes(_under(o, communicator, rule), o.schedules) for o in others):
            return True
    return False


def _under(cut: Cut, communicator: Communicator, rule: Rule) -> tuple[Schedule, ...]:
    """What every edge would carry for the collective under `rule`."""
    ring = communicator.ring
    return tuple(
        schedule_of(cut.op, rule, ring.ranks, ring.channels, edge.sender, ring.extra_sends)
        for edge in ring.edges
    )


def _same_sizes(one: tuple[Schedule, ...], other: tuple[Schedule, ...]) -> bool:
    return _values(one, "wire_bytes") == _values(other, "wire_bytes")


def _same_places(one: tuple[Schedule, ...], other: tuple[Schedule, ...]) -> bool:
    return _values(one, "start_byte") == _values(other, "start_byte")


def _values(schedules: tuple[Schedule, ...], name: str) -> list[list[list[int]]]:
    return [[[getattr(s, name) for s in sends] for sends in schedule] for schedule in schedules]
