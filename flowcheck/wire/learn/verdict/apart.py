"""Weights of several dtypes, which are broadcast apart, put back together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.learn.reading import Collective
from flowcheck.wire.learn.trainer.grammar import Habits
from flowcheck.wire.seen import Range


def in_registration_order(
    habits: Habits, parts: Sequence[Collective]
) -> tuple[NDArray[np.uint8], tuple[Range, ...]]:
    """(all parameters back to back, which bytes of them were not seen). parts: the start-up
    broadcasts, one of each piece first."""
    counts = habits.shapes[0].counts
    sizes = [count * each for count, each in zip(counts, habits.each, strict=True)]
    starts = np.cumsum([0, *sizes])
    result = np.zeros(int(starts[-1]), np.uint8)
    seen = np.zeros(len(result), bool)
    for part, (indices, _) in zip(parts, habits.pieces, strict=False):
        covered = np.ones(part.bytes, bool)
        for begin, end in part.missing:
            covered[begin:end] = False
        at = 0
        for index in indices:
            here = slice(int(starts[index]), int(starts[index + 1]))
            own = slice(at, at + sizes[index])
            count = len(part.result[own])
            result[here][:count], seen[here][:count] = part.result[own], covered[own]
            at += sizes[index]
    edges = np.flatnonzero(np.diff(np.concatenate([[True], seen, [True]]).astype(np.int8)))
    missing = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return result, missing


def whole(habits: Habits, parts: Sequence[Collective]) -> bool:
    """Every piece was broadcast, and nothing about it is in doubt."""
    pieces = habits.pieces
    return len(parts) >= len(pieces) and not any(
        part.doubtful or part.conflicts or part.bytes < size
        for part, (_, size) in zip(parts, pieces, strict=False)
    )


def beside(habits: Habits, parts: Sequence[Collective], line_bytes: int) -> int:
    """Bytes among the weights that are neither parameters nor the buffers that the first forward
    broadcasts by themselves: frozen parameters, wherever they lie."""
    pieces = habits.pieces
    later = [part.bytes for part in parts[len(pieces) :]]
    for part, (_, size) in zip(parts, pieces, strict=False):
        rest = part.bytes - size
        if rest >= line_bytes and not any(abs(one - rest) < line_bytes for one in later):
            return rest
    return 0
