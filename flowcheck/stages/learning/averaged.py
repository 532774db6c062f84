"""Are reduced bytes the parameters themselves, rather than their gradient?

Model averaging (torch's PeriodicModelAverager behind post_localSGD_hook, local SGD, DiLoCo) reduces
all parameters in place of gradients, and of one bucket it is as large: only what it holds tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import RingError, StateError
from flowcheck.replica.kept.peek import newest_parameters
from flowcheck.replica.layout import Layout, numbers, size_of
from flowcheck.wire.job import Job

LOOKED_AT = 1 << 16
"""Values, the first ones."""
ENOUGH_VALUES = 64
ALIGNED = 0.95
"""Cosine of the angle between what was reduced and the parameters. A gradient of so many values
lies across them; that of a loss with weight decay in it, which does not, is much shorter."""
SHORTEST = 0.5
"""Of the parameters' length."""
AVERAGED = (
    "what was reduced holds the parameters, not their gradient (cosine {:.3f}): the trainer "
    "averages models (post_localSGD_hook, local SGD), and what its ranks do between that is not on "
    "the wire"
)


def averaged(replica: Path, gradient: NDArray[np.uint8], job: Job) -> str:
    """Why the bytes of a step are no gradient; empty: they may be one, or nothing tells.

    replica: its state file; gradient: all parameters', in registration order.
    """
    try:
        layout, flat = newest_parameters(replica)
    except (RingError, StateError):
        return ""  # not made yet
    if layout.gradient_bytes != gradient.nbytes:
        return ""
    every = tuple(range(len(layout.parameters)))
    held = _parameters(layout, flat.view(np.uint8))
    # Averaged models are sent in registration order, whatever the order in the bucket.
    for order in dict.fromkeys((every, *(job.buckets if len(job.buckets) == 1 else ()))):
        cosine = _cosine(held, _reduced(layout, gradient, order))
        if cosine > ALIGNED:
            return AVERAGED.format(cosine)
    return ""


def _cosine(held: NDArray[np.float64], reduced: NDArray[np.float64]) -> float:
    """0 where too little is there, or what was reduced is much shorter."""
    lengths = float(np.linalg.norm(held)), float(np.linalg.norm(reduced))
    if not np.isfinite(lengths).all() or np.count_nonzero(held) < ENOUGH_VALUES:
        return 0.0
    if lengths[1] < SHORTEST * lengths[0]:
        return 0.0
    return float(held @ reduced) / lengths[0] / lengths[1]


def _parameters(layout: Layout, flat: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[LOOKED_AT or less] the first values."""
    parts: list[NDArray[np.float64]] = []
    for parameter in layout.parameters:
        dtype = layout.dtype_of(parameter)
        start = parameter.start * (1 if parameter.dtype else layout.element_bytes)
        looked_at = min(parameter.elements, LOOKED_AT)
        parts.append(numbers(flat[start : start + looked_at * size_of(dtype)], dtype))
        if sum(map(len, parts)) >= LOOKED_AT:
            break
    return np.concatenate(parts)[:LOOKED_AT]


def _reduced(
    layout: Layout, gradient: NDArray[np.uint8], order: Sequence[int]
) -> NDArray[np.float64]:
    """[LOOKED_AT or less] the first values, as they came: parameters in this order."""
    types = [layout.gradient_dtype or layout.dtype_of(p) for p in layout.parameters]
    sizes = [p.elements * size_of(t) for p, t in zip(layout.parameters, types, strict=True)]
    starts = list(accumulate(sizes, initial=0))
    parts: list[NDArray[np.float64]] = []
    for index in order:
        looked_at = min(sizes[index], LOOKED_AT * size_of(types[index]))
        own = gradient[starts[index] : starts[index] + looked_at]
        parts.append(numbers(own, types[index]))
        if sum(map(len, parts)) >= LOOKED_AT:
            break
    return np.concatenate(parts)[:LOOKED_AT]
