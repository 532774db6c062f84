"""Which NCCL releases still explain a reading, and whether they place its bytes alike."""

from __future__ import annotations

from flowcheck.wire.collectives.send_table import Schedule, same_sizes
from flowcheck.wire.learn.cuts.candidates import schedules_of
from flowcheck.wire.learn.cuts.match import Cut
from flowcheck.wire.learn.search.communicators import Communicator


def releases_open(cut: Cut, communicator: Communicator) -> bool:
    """Another release's partition explains every size seen and puts bytes of `cut` elsewhere.

    Releases are told by their clear-to-send entries; where none was mirrored only sizes are left,
    and the sizes of two partitions may agree.
    """
    ring = communicator.ring
    for rule in ring.rules:
        if rule in cut.rules:
            continue
        mine = schedules_of(cut.op, rule, ring)
        if not same_sizes(mine, cut.schedules) or _same_places(mine, cut.schedules):
            continue
        others = {other.op: other for other in communicator.cuts.found}.values()
        if all(same_sizes(schedules_of(o.op, rule, ring), o.schedules) for o in others):
            return True
    return False


def _same_places(one: tuple[Schedule, ...], other: tuple[Schedule, ...]) -> bool:
    """Where an empty chunk would start is nobody's place."""
    return all(
        a.key == b.key
        for mine, own in zip(one, other, strict=True)
        for a, b in zip(mine, own, strict=True)
    )
