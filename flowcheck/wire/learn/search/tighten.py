"""The end of a tensor inside its last LL line, where no plan tells the size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.exponents import last_sends

WORD_BYTES = 4
"""Half of an LL line's data; the size of the common element types."""
HALF_BYTES = 2
_COMMON = 0.5
"""Share of words whose upper half is zero from which on these are small integers of 4 bytes."""


def tightened(cuts: Cuts) -> Cuts:
    """All-reduces read from sizes alone lose their last word, or half of it, where every copy,
    partial sums included, has zero there each time: rather padding than data. The sizes on the
    wire fit both ways."""
    ring = cuts.ring
    by_op: dict[Op, list[Cut]] = {}
    for cut in cuts.found:
        op = cut.op
        if (
            op.slack_is_open
            and op.kind is CollectiveKind.ALL_REDUCE
            and not op.work_bytes % 8
            and not op.end
        ):
            by_op.setdefault(cut.op, []).append(cut)
    better: dict[int, Cut] = {}
    for op, alike in by_op.items():
        zero = min((z for cut in alike if (z := _zeros_at_end(cut, ring)) is not None), default=0)
        less = WORD_BYTES if zero >= WORD_BYTES else 0
        if zero - less >= HALF_BYTES and not any(_small_integers(cut, ring) for cut in alike):
            less += HALF_BYTES
        if op.protocol is not Protocol.LL or not 0 < less < op.work_bytes:
            continue
        for cut in alike:
            shorter = cut.reread(replace(op, work_bytes=op.work_bytes - less), ring)
            if shorter is not None:
                better[id(cut)] = shorter
    return replace(cuts, found=tuple(better.get(id(cut), cut) for cut in cuts.found))


def _zeros_at_end(cut: Cut, ring: Ring) -> int | None:
    """Zero bytes the end of the tensor has in every copy; None if no copy of it was seen."""
    counts = []
    for data, seen in last_sends(cut, ring):
        if seen[-2 * WORD_BYTES :].all():
            nonzero = np.flatnonzero(data)
            counts.append(len(data) - 1 - int(nonzero[-1]) if len(nonzero) else len(data))
    return min(counts, default=None)


def _small_integers(cut: Cut, ring: Ring) -> bool:
    """Most words near the end have nothing in their upper half."""
    for data, seen in last_sends(cut, ring):
        whole = len(data) // WORD_BYTES * WORD_BYTES
        words = data[:whole].reshape(-1, WORD_BYTES)[seen[:whole].reshape(-1, WORD_BYTES).all(1)]
        if len(words) and (words[:, HALF_BYTES:] == 0).all(axis=1).mean() > _COMMON:
            return True
    return False
