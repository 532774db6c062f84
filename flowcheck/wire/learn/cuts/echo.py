"""A rank that sends the same twice, or sends on what it got, gathers: an all-reduce does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.match import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring, seen_whole

ENOUGH_VALUES = 16
"""Different words in a send, before it is no chance that another one holds the same."""


Seen = tuple[NDArray[np.uint8], NDArray[np.bool_]]


def echoes(cut: Cut, ring: Ring) -> bool:
    """What is read as an all-reduce forwards what it received, or repeats itself: it is gathers."""
    if cut.op.kind is not CollectiveKind.ALL_REDUCE or cut.op.licensed or cut.op.tree:
        return False
    if ring.ranks > 2:
        return _forwards(cut, ring)
    return not ring.sounding and _echoes_of_two(cut, ring)


def varied(words: NDArray[np.uint32]) -> bool:
    """They have enough values to tell one tensor from another. Not by numpy.unique: its first call
    loads numpy.ma, which took a reading 0.1 s."""
    ordered = np.sort(words)
    return bool(np.count_nonzero(ordered[1:] != ordered[:-1]) + 1 >= ENOUGH_VALUES)


def _forwards(cut: Cut, ring: Ring) -> bool:
    """A rank sends on what it got in the first ring step as it came: it has added nothing. False
    where nobody of whom that was seen did."""
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    rows = {
        edge.sender: i
        for i, edge in enumerate(ring.edges)
        if not edge.senders and edge.receiver is None
    }
    told = []
    for sender, i in rows.items():
        j = rows.get((sender + 1) % ring.ranks)
        pairs = _first_steps(cut, ring, i, j, slices) if j is not None and ring.gpus == 1 else ()
        for one, two in pairs:
            if (same := _same(one, two)) is not None:
                told.append(same)
    return bool(told) and all(told)


def _same(one: Seen, two: Seen) -> bool | None:
    """Both hold the same; None: not all of it was seen, or its values are too few to tell."""
    words = one[0][: len(one[0]) // 4 * 4].view("<u4")
    if not (one[1].all() and two[1].all() and varied(words)):
        return None
    return bool((one[0] == two[0]).all())


def _first_steps(cut: Cut, ring: Ring, i: int, j: int, slices: int) -> Iterator[tuple[Seen, Seen]]:
    """(what came in ring step 0 on edge `i`, what went out in step 1 on edge `j`) by channel."""
    for channel, schedule in enumerate(cut.schedules[i]):
        if not schedule or channel not in cut.channels[i] or channel not in cut.channels[j]:
            continue
        here, there = cut.channels[i].index(channel), cut.channels[j].index(channel)
        one = ring.edges[i].streams[here].sends.get(cut.starts[i][here])
        two = ring.edges[j].streams[there].sends.get(cut.starts[j][there] + slices)
        size = schedule[0].data_bytes
        if one is not None and two is not None and one.wire_bytes == two.wire_bytes and size:
            protocol = cut.op.protocol
            yield unpacked(one, protocol, size), unpacked(two, protocol, size)


def _echoes_of_two(cut: Cut, ring: Ring) -> bool:
    """What is read as an all-reduce of two ranks holds one rank's part and a result that are the
    same: it is two all-gathers, as of parameters before a forward and again before a backward."""
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    for stream, number, sends in cut.rows(ring):
        part, result = stream.sends.get(number), stream.sends.get(number + slices)
        size = sends[0].data_bytes
        if part is None or result is None or size != sends[slices].data_bytes:
            continue
        one, two = (unpacked(seen, cut.op.protocol, size) for seen in (part, result))
        return _same(one, two) is True
    return False


def amid_cut_off(cut: Cut, ring: Ring) -> bool:
    """It lacks sends although nothing was lost, and its connections go on: whoever comes to the
    next collective has ended this one, so that only the last one may be cut off."""
    if not cut.lost or not seen_whole(ring):
        return False
    return any(stream.stop > number + len(sends) for stream, number, sends in cut.rows(ring))


def upside_down(cuts: Sequence[Cut], ring: Ring) -> int:
    """Trees whose sums come before their parts: they are the parts. Frames of two queues of a
    mirror may be stamped in another order than they were sent, but not most of them."""
    told = [down_after_up(cut, ring) for cut in cuts if cut.op.tree]
    wrong = told.count(False)
    return wrong if wrong > told.count(True) else 0


def down_after_up(cut: Cut, ring: Ring) -> bool | None:
    """Of a tree: nobody has the sum of a chunk before all told their part of it; None: not both
    were seen."""
    up: dict[tuple[int, int, int], int] = {}
    told: dict[tuple[int, int, int], int] = {}
    for stream, number, send in cut.sends(ring):
        if (seen := stream.sends.get(number)) is not None:
            place, at = (send.channel, send.send, send.start_byte), seen.message.first_ns
            if send.final:
                told[place] = min(at, told.get(place, at))
            else:
                up[place] = max(at, up.get(place, at))
    both = up.keys() & told.keys()
    return all(up[place] <= told[place] for place in both) if both else None
