"""Where an all-reduce ends inside its last LL line or LL128 group, by what fills that up.

Nothing on the wire says how much of a chunk's last line or group is meant. What stands behind may
be anything, and another thing on every hop (NCCL src/device/prims_ll128.h: elements beyond the end
are not stored); what a rank forwards is the same. Where two copies of a chunk differ from some byte
of that line or group on, it ends there at the latest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from flowcheck.findings.catalog.collective_evidence import END_BY_COPIES
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, data_bytes_of
from flowcheck.wire.collectives.send_table import Schedule, same_sizes
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring

AROUND = 3
"""Steps of a size in which chunks do not all grow, looked through one by one."""
STEP_BYTES = 2
"""Between two sizes that are tried: the shortest elements of gradients."""
CHUNK_GRAIN_BYTES = 16
"""Chunks are cut by multiples of it at least (NCCL src/device/all_reduce.h, 16 / sizeof(T))."""

Place = tuple[int, int, int]
"""(edge, channel, send)."""
Ends = Mapping[Place, int]
"""{send: data bytes of which another copy bears out all}"""


def ended(cuts: Cuts) -> Cuts:
    """All-reduces read from sizes alone, of the most bytes with which no two copies differ."""
    return replace(cuts, found=tuple(_ended(cut, cuts.ring) for cut in cuts.found))


def _ended(cut: Cut, ring: Ring) -> Cut:
    """Tensors of several sizes may be as large on the wire: each one is asked for its own."""
    op = cut.op
    if op.kind is not CollectiveKind.ALL_REDUCE or not op.slack_is_open or op.tree or op.end:
        return cut
    limits = limits_of(cut, ring)
    fits = sorted(_fitting(op, cut, ring, limits)) if limits else []
    if not fits:
        return cut
    left, size = fits[0]
    other = replace(op, work_bytes=-size)
    schedules = schedules_of(other, cut.rules[0], ring)
    alone = len(fits) == 1 or fits[1][0] > left
    if alone and left < STEP_BYTES * len(limits) and _tight(schedules, limits, -size):
        other = replace(other, end=END_BY_COPIES())
    return replace(cut, op=other, schedules=schedules)


def limits_of(cut: Cut, ring: Ring) -> Ends:
    """Of the sends of which a copy differs within their last line or group, and nowhere before."""
    found: dict[Place, int] = {}
    for one, two, same in _copies(cut, ring):
        for place in (one, two):
            found[place] = min(same, found.get(place, same))
    return found


def _copies(cut: Cut, ring: Ring) -> Iterator[tuple[Place, Place, int]]:
    """(send, another send of the same result, bytes until they differ)."""
    rows: dict[tuple[int, int, int], list[tuple[Place, np.ndarray, np.ndarray]]] = {}
    protocol = cut.op.protocol
    for e, (edge, at, names, schedule) in enumerate(
        zip(ring.edges, cut.starts, cut.channels, cut.schedules, strict=True)
    ):
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            for i, send in enumerate(schedule[channel] if channel is not None else ()):
                seen = stream.sends.get(number + i)
                if seen is not None and send.final and send.data_bytes:
                    room = data_bytes_of(protocol, send.wire_bytes)
                    name = (send.channel, send.loop, send.chunk)
                    data, mask = unpacked(seen, protocol, room)
                    rows.setdefault(name, []).append(((e, send.channel, i), data, mask))
    for copies in rows.values():
        for (one, a, seen_a), (two, b, seen_b) in combinations(copies, 2):
            differ = np.flatnonzero((a != b) & seen_a & seen_b)
            if len(differ) and differ[0] >= len(a) - GRAIN_BYTES[protocol]:
                yield one, two, int(differ[0])


def _fitting(op: Op, cut: Cut, ring: Ring, limits: Ends) -> Iterator[tuple[int, int]]:
    """(bytes that the limits leave, minus its own) of sizes that are as large on the wire and go
    beyond no limit."""
    coarse = CHUNK_GRAIN_BYTES * ring.ranks

    def left(size: int) -> int | None:
        schedules = schedules_of(replace(op, work_bytes=size), cut.rules[0], ring)
        return _left(schedules, limits) if same_sizes(schedules, cut.schedules) else None

    # Chunks but the last one grow with the size.
    low, high = least_size(op, cut, ring) // coarse - 1, op.work_bytes // coarse + 1
    least = low
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if left(middle * coarse) is not None else (low, middle)
    top = min(op.work_bytes, (low + AROUND) * coarse) // STEP_BYTES * STEP_BYTES
    for size in range(top, max(0, least * coarse, (low - AROUND) * coarse), -STEP_BYTES):
        if (rest := left(size)) is not None:
            yield rest, -size


def least_size(op: Op, cut: Cut, ring: Ring) -> int:
    """The fewest bytes that are as large on the wire."""
    low, high = 0, op.work_bytes
    while low + 1 < high:
        middle = (low + high) // 2
        schedules = schedules_of(replace(op, work_bytes=middle), cut.rules[0], ring)
        low, high = (low, middle) if same_sizes(schedules, cut.schedules) else (middle, high)
    return high


def most_size(op: Op, cut: Cut, ring: Ring) -> int:
    """The most bytes that are as large on the wire."""
    low = op.work_bytes
    high = low + GRAIN_BYTES[op.protocol] * ring.ranks * ring.channels + 1
    while low + 1 < high:
        middle = (low + high) // 2
        schedules = schedules_of(replace(op, work_bytes=middle), cut.rules[0], ring)
        low, high = (middle, high) if same_sizes(schedules, cut.schedules) else (low, middle)
    return low


def _tight(schedules: Sequence[Schedule], limits: Ends, size: int) -> bool:
    """A limit is where the tensor ends, not only where another chunk does."""
    sends = (schedules[e][channel][i] for e, channel, i in limits)
    return any(send.start_byte + send.data_bytes == size for send in sends)


def _left(schedules: Sequence[Schedule], limits: Ends) -> int | None:
    """Bytes between the ends of sends and their limits; None where a send goes beyond its own."""
    rest = 0
    for (e, channel, i), most in limits.items():
        if i >= len(schedules[e][channel]) or schedules[e][channel][i].data_bytes > most:
            return None
        rest += most - schedules[e][channel][i].data_bytes
    return rest
