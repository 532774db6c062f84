"""Tensors by the room of their LL128 groups, which tells little of how many bytes they hold."""

from __future__ import annotations

from functools import lru_cache

from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    data_bytes_of,
)
from flowcheck.wire.collectives.ring_schedule import collective
from flowcheck.wire.learn.flows.rings import Ring

MOST_SIZES = 8
"""Totals tried of those that take groups of the same room."""
STEP_BYTES = 8
"""Between two totals that are looked at."""


def totals_of_room(ring: Ring, kind: CollectiveKind, room_bytes: int) -> list[int]:
    """Bytes of tensors, reduced or broadcast, whose distinct chunks, on all channels together, take
    LL128 groups of just so much room, the largest first. Whether the sizes of each channel fit is
    not looked at."""
    reduces = kind is CollectiveKind.ALL_REDUCE
    if ring.channels == 1 and (ring.ranks == 2 or not reduces):
        return []
    senders = [e.sender for e in ring.around if reduces or (e.sender + 1) % ring.ranks]
    extra = ring.extra_sends if reduces else 0
    found: set[int] = set()
    for rule in ring.rules if senders else ():
        of = (kind, rule, ring.ranks, ring.channels, senders[0], extra)
        found |= set(_totals(room_bytes, *of))
    return sorted(found, reverse=True)


@lru_cache(maxsize=4096)
def _totals(
    room_bytes: int,
    kind: CollectiveKind,
    rule: NcclEra,
    ranks: int,
    channels: int,
    sender: int,
    extra_sends: int,
) -> tuple[int, ...]:
    """The room grows with the total: those of one room are next to each other."""

    def least(wanted: int) -> int:
        """The smallest total, in steps, that takes as much."""
        low, high = 0, room_bytes // STEP_BYTES + 1
        while low + 1 < high:
            middle = (low + high) // 2
            size = middle * STEP_BYTES
            if _room(size, kind, rule, ranks, channels, sender, extra_sends) >= wanted:
                high = middle
            else:
                low = middle
        return high

    start, stop = least(room_bytes), least(room_bytes + 1)
    step = max(1, (stop - start) // MOST_SIZES)
    return tuple(n * STEP_BYTES for n in range(start, stop, step))


def _room(
    total: int,
    kind: CollectiveKind,
    rule: NcclEra,
    ranks: int,
    channels: int,
    sender: int,
    extra_sends: int,
) -> int:
    """Data bytes that the groups of all distinct chunks of one edge could hold."""
    schedule = collective(
        kind,
        total,
        sender=sender,
        element_bytes=4 if total % 4 == 0 else 1,
        extra_sends=extra_sends,
        ranks=ranks,
        channels=channels,
        protocol=Protocol.LL128,
        era=rule,
    )
    hops = 2 * ranks - 2 + extra_sends if kind is CollectiveKind.ALL_REDUCE else 1
    chunks = {
        (channel, i // hops, (sender - 1 - i % hops) % ranks): send.wire_bytes
        for channel, sends in enumerate(schedule)
        for i, send in enumerate(sends)
    }
    return sum(data_bytes_of(Protocol.LL128, size) for size in chunks.values())
