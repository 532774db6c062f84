"""By how much what is sent changes: parameters little from one step to the next, gradients much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LITTLE = 0.5
"""Of their norm, that parameters change by in a step at most. Two gradients of other data are as
long and point elsewhere: 1.4; where half of each is the same, 1."""


def changes(
    held: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8], str]],
) -> float:
    """By how much of its norm what is held changes. held: (bytes before, bytes after, type)."""
    own = norm = 0.0
    for one, other, dtype in held:
        a, b = (_values(data, dtype) for data in (one, other))
        norm += float(np.square(a).sum())
        own += float(np.square(b - a).sum())
    # What is no number is no parameter.
    return float(np.sqrt(own / norm)) if norm and np.isfinite(own) else np.inf


def _values(data: NDArray[np.uint8], dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return (data.view("<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return data.view(np.dtype(dtype)).astype(np.float64)
