"""How many bytes an element of a bucket has, where its sizes on the wire do not tell.

A chunk of LL128 is as large on the wire with 20 bytes as with 1,900. A small bucket of many ranks
that a hook compresses to half its size is then as large as it would be without: only what stands in
it tells, copies of which differ behind its end, or numbers that are of one width and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.habits import BUCKET, COMPRESSED_BYTES, Habits

LEAST_NUMBERS = 64
"""Numbers, none of them zero, that must be there to be compared."""
USUAL = (10, 90)
"""Between these percentiles of upper bytes, signs aside, lie those of most numbers: what fills a
group up, or belongs elsewhere, may stand among them."""
MOST_SPAN, LEAST_SPAN = 64, 80
"""Of the usual upper bytes of numbers at most; of the low bits of numbers twice as wide, which may
be anything, at least."""
NEAR = 2
"""Lower and upper halves of words that are numbers each have usual upper bytes so near."""


def narrower(cut: Cut, size: int, ring: Ring) -> bool:
    """Its sends are those of a tensor of `size` bytes as well, of elements half as wide, and what
    they hold tells that they are."""
    other = _halved(cut, size, ring)
    if other is None:
        return False
    canvas = paint(other, ring)[0]
    if paint(cut, ring)[0].conflicts and not canvas.conflicts:
        return True
    return _width_of(canvas.result[canvas.covered]) == COMPRESSED_BYTES


def as_wide(habits: Habits, cuts: Sequence[Cut], ring: Ring) -> bool:
    """Every bucket seen would be as large on the wire in elements of another width, and nothing in
    them tells which it is."""
    types = habits.reduced or habits.each
    if set(types) != {2 * COMPRESSED_BYTES}:
        return False
    seen = [cut for cut in cuts if cut.op.meaning == BUCKET and cut.matched]
    halves = (_halved(cut, cut.op.work_bytes // 2, ring) for cut in seen)
    return bool(seen) and all(half is not None and not _width_in(half, ring) for half in halves)


def _halved(cut: Cut, size: int, ring: Ring) -> Cut | None:
    """As a tensor of half as wide elements; None if it would be another one on the wire."""
    if cut.op.protocol is not Protocol.LL128 or cut.op.tree or ring.sounding:
        return None
    return cut.reread(replace(cut.op, work_bytes=size, type_bytes=COMPRESSED_BYTES), ring)


def _width_in(cut: Cut, ring: Ring) -> int:
    """Of what was seen of its result, as `_width_of`."""
    canvas = paint(cut, ring)[0]
    return _width_of(canvas.result[canvas.covered])


def _width_of(data: NDArray[np.uint8]) -> int:
    """Bytes of each of the numbers in `data`, 2 or 4; 0: nothing tells."""
    words = data[: len(data) // 4 * 4].reshape(-1, 4)
    words = words[(words[:, :2].any(axis=1)) & (words[:, 2:].any(axis=1))]
    if len(words) < LEAST_NUMBERS:
        return 0
    low, high = words[:, 1] & 0x7F, words[:, 3] & 0x7F
    (low_least, low_most), (least, most) = (np.percentile(half, USUAL) for half in (low, high))
    if most - least > MOST_SPAN:
        return 0
    if abs(low_least - least) <= NEAR and abs(low_most - most) <= NEAR:
        return 2
    return 4 if low_most - low_least >= LEAST_SPAN else 0
