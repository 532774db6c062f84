"""Checks of the content of a complete iteration: model averaging, wrong units, unused parameters.

Model averaging (torch's PeriodicModelAverager with post_localSGD_hook, local SGD, DiLoCo) reduces
all parameters in place of gradients. With one bucket both have the same size: only the values tell
them apart.

In sharded training, units of one size are told apart by their order alone, and a gradient is as
large as its parameters where both have one type. If the trainer once sends a collective that it
never sent before, one could land in the other's place. Parameters change little in a step, so their
values show that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowcheck.errors import RingError, StateError
from flowcheck.findings.catalog.lost_steps import MODEL_AVERAGING, UNIT_CHANGED
from flowcheck.findings.finding import Finding
from flowcheck.replica.param_layout import Layout, as_float64, dtype_size_bytes
from flowcheck.replica.state_file.concurrent_reader import newest_parameters
from flowcheck.stages.job_state.unused_parameters import UnusedParameterMap
from flowcheck.wire.training_job.learned_job import FollowedData, LearnedJob

AVERAGING_VALUES_COMPARED = 1 << 16
"""Values that are compared, the first ones. A choice: more costs time in each step."""
AVERAGING_VALUES_MIN = 64
"""Values that are not zero, before a verdict. The cosine of unrelated vectors of 64 values scatters
by 1/8, so that AVERAGING_COSINE_LEAST is 7.6 standard deviations away."""
AVERAGING_COSINE_LEAST = 0.95
"""Cosine of the angle between what was reduced and the parameters. A gradient of so many values
lies across them; that of a loss with weight decay in it, which does not, is much shorter
(AVERAGING_LENGTH_SHARE_LEAST). Averages differ from the parameters by a few local steps; a choice:
higher misses longer intervals."""
AVERAGING_LENGTH_SHARE_LEAST = 0.5
"""Share of the parameters' length. Averaged parameters are as long as before; a choice: half leaves
room for what a few local steps change."""


def model_averaging_found(
    replica: Path, gradient: NDArray[np.uint8], job: LearnedJob
) -> Finding | None:
    """Why the bytes of a step are no gradient; None: they may be one, or nothing tells.

    replica: its state file; gradient: of all parameters, in registration order.
    """
    try:
        layout, flat = newest_parameters(replica)
    except (RingError, StateError):
        return None  # not made yet
    if layout.gradient_bytes != gradient.nbytes:
        return None
    every = tuple(range(len(layout.parameters)))
    held = _parameters(layout, flat.view(np.uint8))
    # Averaged models are sent in registration order, whatever the order in the bucket.
    for order in dict.fromkeys((every, *(job.buckets if len(job.buckets) == 1 else ()))):
        cosine = _cosine(held, _reduced(layout, gradient, order))
        if cosine > AVERAGING_COSINE_LEAST:
            return MODEL_AVERAGING(round(cosine, 3))
    return None


def _cosine(held: NDArray[np.float64], reduced: NDArray[np.float64]) -> float:
    """The cosine of the angle between both, where `reduced` is not zero, as it is where nothing
    came; 0 where too few values are there, or `reduced` is much shorter."""
    held, reduced = held[reduced != 0], reduced[reduced != 0]
    lengths = float(np.linalg.norm(held)), float(np.linalg.norm(reduced))
    if not np.isfinite(lengths).all() or np.count_nonzero(held) < AVERAGING_VALUES_MIN:
        return 0.0
    if lengths[1] < AVERAGING_LENGTH_SHARE_LEAST * lengths[0]:
        return 0.0
    return float(held @ reduced) / lengths[0] / lengths[1]


def _parameters(layout: Layout, flat: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[at most AVERAGING_VALUES_COMPARED] the first values."""
    parts: list[NDArray[np.float64]] = []
    for parameter in layout.parameters:
        dtype = layout.dtype_of(parameter)
        start = parameter.start * (1 if parameter.dtype else layout.element_bytes)
        looked_at = min(parameter.elements, AVERAGING_VALUES_COMPARED)
        parts.append(as_float64(flat[start : start + looked_at * dtype_size_bytes(dtype)], dtype))
        if sum(map(len, parts)) >= AVERAGING_VALUES_COMPARED:
            break
    return np.concatenate(parts)[:AVERAGING_VALUES_COMPARED]


def _reduced(
    layout: Layout, gradient: NDArray[np.uint8], order: Sequence[int]
) -> NDArray[np.float64]:
    """[at most AVERAGING_VALUES_COMPARED] the first values as they arrived: parameters in this
    order."""
    types = [layout.gradient_dtype or layout.dtype_of(p) for p in layout.parameters]
    sizes = [
        p.elements * dtype_size_bytes(t) for p, t in zip(layout.parameters, types, strict=True)
    ]
    starts = list(accumulate(sizes, initial=0))
    parts: list[NDArray[np.float64]] = []
    for index in order:
        looked_at = min(sizes[index], AVERAGING_VALUES_COMPARED * dtype_size_bytes(types[index]))
        own = gradient[starts[index] : starts[index] + looked_at]
        parts.append(as_float64(own, types[index]))
        if sum(map(len, parts)) >= AVERAGING_VALUES_COMPARED:
            break
    return np.concatenate(parts)[:AVERAGING_VALUES_COMPARED]


UNIT_VALUES_SAMPLED = 1 << 12
"""Values of each unit, evenly over it. A choice: more costs time in each step."""
UNIT_VALUES_MIN = 64
"""Values that are not zero, before a unit is judged. A choice: of fewer values the length is
chance."""
UNIT_CHANGE_MAX = 1.0
"""Change of a unit in a step, as a share of its length. Two unrelated vectors of one length differ
by sqrt(2) = 1.41 of it; an optimizer's step changes far less."""


class GatheredUnitCheck:
    """Compares a sample of every gathered unit with that of the step before."""

    def __init__(self, job: LearnedJob) -> None:
        """Passes everything where the type of the parameters is not known."""
        own = job.parameters if job.kind is FollowedData.PARAMETERS else ()
        self._units: list[tuple[slice, str]] = []
        at = 0
        for parameter in own:
            if parameter.dtype is None:
                self._units = []
                break
            self._units.append((slice(at, at + parameter.nbytes), parameter.dtype))
            at += parameter.nbytes
        self._before: list[NDArray[np.float64]] = []

    def problem(self, whole: NDArray[np.uint8]) -> Finding | None:
        """Why the bytes of a step must not be applied; None: they may, and the next step is
        compared with them."""
        now = list(self._sampled(whole))
        for number, (was, new) in enumerate(zip(self._before, now, strict=bool(self._before))):
            length = float(np.linalg.norm(was))
            change = float(np.linalg.norm(new - was))
            judged = np.count_nonzero(was) >= UNIT_VALUES_MIN and np.isfinite(change)
            if judged and change > UNIT_CHANGE_MAX * length:
                return UNIT_CHANGED(unit=number, change=round(change / length, 2))
        self._before = now
        return None

    def _sampled(self, whole: NDArray[np.uint8]) -> Iterator[NDArray[np.float64]]:
        for part, dtype in self._units:
            each = whole[part].reshape(-1, dtype_size_bytes(dtype))
            taken = each[:: max(1, len(each) // UNIT_VALUES_SAMPLED)]
            yield as_float64(np.ascontiguousarray(taken).reshape(-1), dtype)


class GradientCheck:
    """Checks the content of each iteration of one job."""

    def __init__(self, job: LearnedJob, each: int, replica: Path) -> None:
        """each: all-reduced backward passes per step; replica: the state file they step."""
        self._job, self._replica = job, replica
        self._map, self._steady = UnusedParameterMap(job, each), GatheredUnitCheck(job)

    def problem(self, whole: NDArray[np.uint8]) -> Finding | None:
        """Why the bytes of an iteration must not be applied; None: they may."""
        if self._job.kind is FollowedData.PARAMETERS:
            return self._steady.problem(whole)
        gradient, _ = self._map.split(whole)
        return self._map.problem(whole) or model_averaging_found(self._replica, gradient, self._job)
