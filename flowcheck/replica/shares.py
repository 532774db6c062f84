"""Which thread steps which elements: each its own, where it also was the first to touch the pages;
who is done goes on with the others'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.replica.kept.digest import BLOCK_BYTES
from flowcheck.replica.layout import Layout

SHARE_BYTES = 2 * 1024 * 1024
"""Small tensors are kept together up to a page of this size."""


def blocks(layout: Layout, element_bytes: int, most_bytes: int) -> list[tuple[int, int, int]]:
    """[(first element, elements, parameter)] of every tensor, in pieces of at most `most_bytes`."""
    most = most_bytes // element_bytes
    return [
        (at, min(most, p.stop - at), index)
        for index, p in enumerate(layout.parameters)
        for at in range(p.start, p.stop, most)
    ]


def owners(sizes_bytes: Sequence[int] | np.ndarray, threads: int) -> np.ndarray:
    """[piece] its thread, 0 to threads - 1: as they lie, each to who has least so far, so that the
    pieces of a bucket, which lie together, are of all."""
    found: list[int] = []
    taken, turn, together = [0] * threads, 0, 0
    for size in map(int, sizes_bytes):
        if together + size > SHARE_BYTES:
            turn, together = taken.index(min(taken)), 0
        found.append(turn)
        taken[turn] += size
        together += size
    return np.array(found, np.intp)


def shares(layout: Layout, threads: int) -> list[list[tuple[int, int]]]:
    """[thread][(first, elements)] of a layout's flat state."""
    pieces = blocks(layout, layout.element_bytes, BLOCK_BYTES)
    made: list[list[tuple[int, int]]] = [[] for _ in range(threads)]
    sizes = [elements * layout.element_bytes for _, elements, _ in pieces]
    for (first, elements, _), owner in zip(pieces, owners(sizes, threads), strict=True):
        made[owner].append((first, elements))
    return made
