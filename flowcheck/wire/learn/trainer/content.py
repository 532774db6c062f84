"""What a collective carried, where all of it was seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.training_job.learned_job import MAP_BYTES

SLACK_BYTES = {protocol: grain - 1 for protocol, grain in GRAIN_BYTES.items()}
"""The wire may show up to so many more than were meant."""


def content_of(cut: Cut, ring: Ring) -> NDArray[np.uint8] | None:
    """The result; of the count, any rank's block; None where bytes are missing."""
    canvas, _, _ = paint(cut, ring)
    if not cut.op.kind.is_gather:
        # Of a size that only the wire tells, what fills up its last group may differ on each hop.
        least = len(canvas.result) - SLACK_BYTES[cut.op.protocol] * cut.op.slack_is_open
        whole = canvas.covered[:least].all() and not canvas.conflicts and not canvas.torn
        return canvas.result if whole else None
    size = cut.op.work_bytes
    seen = canvas.covered.reshape(ring.ranks, size).all(axis=1)
    blocks = [canvas.result[i * size : (i + 1) * size] for i in np.flatnonzero(seen)]
    same = blocks and all(np.array_equal(block, blocks[0]) for block in blocks[1:])
    return blocks[0] if same else None


def used_of(cut: Cut, parameters: int, ring: Ring) -> tuple[int, ...] | None:
    """[parameter] ranks that used it; None where it is no such map, or not seen whole. Whoever
    reduces a gradient used something."""
    canvas, _, _ = paint(cut, ring)
    size = MAP_BYTES * parameters
    if len(canvas.result) < size or not canvas.covered[:size].all() or canvas.conflicts:
        return None
    used: list[int] = canvas.result[:size].view("<i4").tolist()
    return tuple(used) if any(used) and all(0 <= n <= ring.ranks for n in used) else None
