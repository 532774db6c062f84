"""Sets of elements as ranges: what is in both, what is left of one without another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.shared_memory.merged_ranges import merged

Ranges = NDArray[np.int64]
"""[n, 2] first element and the one behind the last; ascending, none touches the next."""


def no_ranges() -> Ranges:
    """The empty set."""
    return np.zeros((0, 2), np.int64)


def count_elements(ranges: Ranges) -> int:
    """How many elements are in it."""
    return int((ranges[:, 1] - ranges[:, 0]).sum())


def elements_in(ranges: Ranges) -> NDArray[np.int64]:
    """[n] the elements of one range after the other; the ranges may touch, or be empty."""
    sizes = ranges[:, 1] - ranges[:, 0]
    before = np.cumsum(sizes) - sizes
    found: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(ranges[:, 0] - before, sizes)
    return found


def union(parts: list[Ranges]) -> Ranges:
    """All elements of all of them."""
    if not parts:
        return no_ranges()
    every = np.concatenate(parts)
    return merged(every[np.argsort(every[:, 0], kind="stable")])


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """The elements that are in both."""
    return _where(one, other, in_other=True)


def difference(one: Ranges, other: Ranges) -> Ranges:
    """The elements of one that are not in the other."""
    return _where(one, other, in_other=False)


def _where(one: Ranges, other: Ranges, *, in_other: bool) -> Ranges:
    if not len(one):
        return no_ranges()
    bounds = np.unique(np.concatenate((one.ravel(), other.ravel())))
    starts = bounds[:-1]
    kept = holds(one, starts) & (holds(other, starts) == in_other)
    return merged(np.stack((starts[kept], bounds[1:][kept]), axis=1))


def holds(ranges: Ranges, elements: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[n] bool: whether each of the elements is in it."""
    if not len(ranges):
        return np.zeros(len(elements), np.bool_)
    at = np.searchsorted(ranges[:, 0], elements, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (elements < ranges[np.maximum(at, 0), 1])
    return found


def cut_at(ranges: Ranges, borders: NDArray[np.int64]) -> tuple[Ranges, NDArray[np.int64]]:
    """(the ranges cut so that none crosses a border, the number of the last border at or before
    each). borders: ascending; several may be equal, of which the last counts."""
    if not len(ranges):
        return ranges, np.zeros(0, np.int64)
    inside = borders[holds(ranges, borders)]
    bounds = np.unique(np.concatenate((ranges.ravel(), inside)))
    starts = bounds[:-1]
    kept = holds(ranges, starts)
    pieces = np.stack((starts[kept], bounds[1:][kept]), axis=1)
    return pieces, np.searchsorted(borders, pieces[:, 0], side="right") - 1
