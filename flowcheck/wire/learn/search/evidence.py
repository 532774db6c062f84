"""What could have contradicted a reading and did not: the added ring step, and how many collectives
are counted from the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.p2p import partial_of
from flowcheck.wire.learn.cuts.place import Canvas, is_added, paint, unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.alike import is_multiple
from flowcheck.wire.learn.search.pairs import counted_until

ENOUGH_BYTES = 32
"""Bytes, not zero, that must be equal before chance is ruled out."""


def added_step_told(ring: Ring, cuts: Sequence[Cut]) -> bool:
    """Something seen bears out that the trainer's NCCL makes one ring step more. Sizes alone do
    not: a broadcast of the same size after each all-reduce looks alike."""
    reduces = [cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE]
    verdicts = [_added_equal(cut, ring) for cut in reduces]
    if False in verdicts:
        return False
    if True in verdicts or any(_empty_third(cut, ring) for cut in reduces):
        return True
    sums = [adds_up(cut, ring, paint(cut, ring)[0]) for cut in reduces]
    return True in sums and False not in sums


def copies_bear_out(ring: Ring, cuts: Sequence[Cut]) -> bool:
    """Added sends hold what the other direction says, wherever both were seen."""
    verdicts = [_added_equal(cut, ring) for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE]
    return bool(ring.extra_sends) and True in verdicts and False not in verdicts


def _added_equal(cut: Cut, ring: Ring) -> bool | None:
    """Added sends against final copies of the other direction; None: nothing to compare."""
    if not ring.extra_sends:
        return None
    canvas = paint(cut, ring, added=False)[0]
    equal = 0
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        if seen is None or not send.data_bytes or not is_added(send, cut, ring):
            continue
        data, mask = unpacked(seen, cut.op.protocol, send.data_bytes)
        part = slice(send.start_byte, send.start_byte + send.data_bytes)
        both = mask & canvas.covered[part]
        if (canvas.result[part][both] != data[both]).any():
            return False
        equal += int(np.count_nonzero(data[both]))
    return True if equal >= ENOUGH_BYTES else None


def _empty_third(cut: Cut, ring: Ring) -> bool:
    """Two sends without a byte in a row, the added one and the first of the next all-reduce: of
    two ranks' plain ring steps one at least holds bytes, and no broadcast is empty."""
    if ring.ranks != 2:
        return False
    for stream, number, send in cut.sends(ring):
        pair = [stream.sends.get(number), stream.sends.get(number + 1)]
        if is_added(send, cut, ring) and all(s is not None and not s.wire_bytes for s in pair):
            return True
    return False


def adds_up(cut: Cut, ring: Ring, canvas: Canvas) -> bool | None:
    """Two ranks that add the same: the result is twice what one of them sent; None: not told, as
    where what was sent is not looked at yet."""
    looked_at = canvas.covered.size > 0
    if ring.ranks != 2 or cut.op.kind is not CollectiveKind.ALL_REDUCE or not looked_at:
        return None
    verdicts = []
    for edge in ring.edges:
        own, seen = partial_of(cut, ring, edge)
        verdicts.append(is_multiple(own, canvas.result, seen & canvas.covered, ring.ranks))
    if False in verdicts:
        return False
    return True if True in verdicts else None


def counted(ring: Ring, cuts: Sequence[Cut]) -> int:
    """How many of the first cuts begin where the count of all sends says. Once sends are lost, a
    collective whose size nothing else tells may have taken sends of the next one."""
    contiguous = min(counted_until(ring, edge, cuts) for edge in ring.edges)
    parts = _parts_of_reduces(ring, cuts) if any(cut.lost for cut in cuts) else set()
    lost = 0
    for i, cut in enumerate(cuts[:contiguous]):
        lost += cut.lost
        named = cut.op.licensed and not cut.op.from_wire
        reduces = cut.op.kind is CollectiveKind.ALL_REDUCE
        known = any(other.op == cut.op and not other.lost for other in cuts[:contiguous])
        if not named and not reduces and (first := _may_be_elsewhere(ring, cuts, i)) is not None:
            return first
        single = not reduces and (cut.op.open_size or not cut.op.licensed)
        if single and any((id(of), send.wire_bytes) in parts for of, _, send in cut.sends(ring)):
            return i
        if lost and not named and not (reduces and cut.matched and (known or not cut.lost)):
            return i + (reduces and cut.matched > 0)
        if lost and not named and _turns(cut, ring):
            return i
    return contiguous


def _parts_of_reduces(ring: Ring, cuts: Sequence[Cut]) -> set[tuple[int, int]]:
    """(connection, wire bytes) of the sends of all all-reduces. Where sends were lost, a broadcast
    of just that size may be one of them, and what follows it another all-reduce."""
    reduces = {cut.op: cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE}.values()
    return {(id(of), send.wire_bytes) for cut in reduces for of, _, send in cut.sends(ring)}


def _turns(cut: Cut, ring: Ring) -> bool:
    """All its sends are of one size on each connection: sizes do not tell the first of them."""
    sizes: dict[int, set[int]] = {}
    for stream, _, send in cut.sends(ring):
        sizes.setdefault(id(stream), set()).add(send.wire_bytes)
    return all(len(of) == 1 for of in sizes.values())


def _may_be_elsewhere(ring: Ring, cuts: Sequence[Cut], i: int) -> int | None:
    """Where a broadcast has the size of every send of the all-reduces beside it, any of these
    may be it: the index of the first of them; None where sizes tell."""
    alike = {(id(stream), send.wire_bytes) for stream, _, send in cuts[i].sends(ring)}

    def mixes(cut: Cut) -> bool:
        sizes = [(id(stream), send.wire_bytes) for stream, _, send in cut.sends(ring)]
        return cut.op.kind is CollectiveKind.ALL_REDUCE and any(
            len({size for of, size in sizes if of == stream}) == 1 and (stream, wide) in sizes
            for stream, wide in alike
        )

    first = i
    while first and mixes(cuts[first - 1]):
        first -= 1
    after = i + 1 < len(cuts) and mixes(cuts[i + 1])
    return first if after or first < i else None


def lost_beside(ring: Ring, other: Ring) -> bool:
    """`other` runs between the same addresses and lost sends, or its start: its connections may
    be channels of `ring` after all."""
    ends = {(s.key.source, s.key.destination) for e in ring.edges for s in e.streams}
    return any(
        (s.key.source, s.key.destination) in ends and (not s.from_start or len(s.sends) < s.stop)
        for e in other.edges
        for s in e.streams
    )
