"""Ranges of bytes or of elements that overlap or touch, as fewer that do not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.traffic.observed_messages import Range


def merged(ranges: NDArray[np.int64], apart: int = 1) -> NDArray[np.int64]:
    """The same as [n, 2] ranges that do not touch; those with less than `apart` between become one.
    ranges: ascending by their start."""
    if not len(ranges):
        return ranges
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.flatnonzero(np.append(True, ranges[1:, 0] - ends[:-1] >= apart))
    lasts = np.append(begins[1:], len(ranges)) - 1
    return np.stack((ranges[begins, 0], ends[lasts]), axis=1)


def merged_spans(spans: Iterable[Range]) -> tuple[Range, ...]:
    """The same of pairs in any order."""
    every = np.array(sorted(spans), np.int64).reshape(-1, 2)
    return tuple((start, stop) for start, stop in merged(every).tolist())
