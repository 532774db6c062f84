"""Which parameters have a gradient in an iteration, by the map of used parameters after it in the
shard.

A parameter that no rank used keeps the gradient it had (torch/csrc/distributed/c10d/reducer.cpp,
copy_bucket_to_grad). With zero_grad(set_to_none=True), torch's default, it has none, and every
optimizer skips it. Its part of the bucket is zero then.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.hybrid_jobs import PADDING_NOT_ZERO
from flowcheck.findings.catalog.lost_steps import (
    NO_USED_MAP,
    UNUSED_IN_ONE_BACKWARD,
    UNUSED_NOT_ZERO,
)
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.training_spec import TrainingFacts

UsedMask = NDArray[np.bool_] | None
"""[parameters]: those that have a gradient; None: all."""


class UnusedParameterMap:
    """Splits the bytes of an iteration into gradient and map, for one job; and the padding of
    hybrid sharding off."""

    def __init__(self, job: TrainingFacts, backwards: int) -> None:
        """backwards: all-reduced backward passes per step of the trainer."""
        own = job.reduced[: job.map_index]
        self._bounds = list(pairwise(accumulate((p.nbytes for p in own), initial=0)))
        self._mapped, self._padded = job.has_usage_map, bool(job.padding)
        self.joined = job.awaits_base
        self._never = np.isin(np.arange(len(own)), job.unused_parameters)
        self._ranks = max(job.communicator_ranks, default=0)
        self._backwards = backwards
        self.gradient_bytes = self._bounds[-1][1]

    @property
    def may_skip_parameters(self) -> bool:
        """Whether iterations may leave out parameters."""
        return self._mapped or bool(self._never.any())

    def split(self, whole: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], UsedMask]:
        """(gradient, [parameters] bool) of an iteration's bytes as the shard has them."""
        if self._mapped:
            return whole[: self.gradient_bytes], self._counts(whole) > 0
        gradient = whole[: self.gradient_bytes] if self._padded else whole
        return gradient, ~self._never if self._never.any() else None

    def problem(self, whole: NDArray[np.uint8]) -> Finding | None:
        """What in an iteration contradicts that unused parameters have no gradient; None: nothing
        does."""
        if self._mapped:
            counts = self._counts(whole)
            if not counts.any() or counts.min() < 0 or counts.max() > self._ranks:
                return NO_USED_MAP()
        if self._padded and whole[self.gradient_bytes :].any():
            return PADDING_NOT_ZERO()
        _, used = self.split(whole)
        for index in np.flatnonzero(~used) if used is not None else ():
            start, stop = self._bounds[index]
            if whole[start:stop].any():
                return UNUSED_NOT_ZERO(index)
            if self._mapped and self._backwards > 1:
                return UNUSED_IN_ONE_BACKWARD(index)
        return None

    def _counts(self, whole: NDArray[np.uint8]) -> NDArray[np.int32]:
        return np.frombuffer(whole[self.gradient_bytes :].tobytes(), "<i4")


def note_first_unused_step(path: Path, step: Step) -> None:
    """Records the first step that left out a parameter which was used before."""
    if not path.exists():
        write_atomically(path, msgspec.json.encode(step))


def first_unused_step(path: Path) -> int | None:
    """The recorded step; None: there was none."""
    return msgspec.json.decode(path.read_bytes(), type=int) if path.exists() else None
