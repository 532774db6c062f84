"""Steps each parameter as soon as its gradient is there, while the others still arrive.

The step is committed only once its generation is COMPLETE. If the generation is never complete, or
two copies of a byte differ before that, nobody sees the step. Covered bytes do not change until the
generation is opened again (dpdk_ext/core/fc_shard_write.c: a copy that comes again must be equal);
the opening's number shows that.

A covered byte is not always readable yet: bytes are written into the shard past the caches, and the
extractor issues a fence at the end of a span and then increments a counter (`settled`). So the
updater looks at the coverage first and reads the counter after it; the covered bytes may be read
once the counter is greater than that. Why this holds on every processor: let a coverage bit belong
to the span that ends with count n. Counts up to n - 1 were stored before the bit, in that order
(fc_shard_settle: release). The counter was read after the bit, in that order
(fc_shard_next_missing: acquire), so it was n - 1 or more. A greater value is n or more, and the
bytes of that span were fenced before n was stored. In the reverse order the counter might be read
before the bit's span had begun, and the next count would end another span than the bit's.

If the extractor is killed, it leaves a span open, and the next extractor takes that span's coverage
back. The updater discards what it stepped with it, as other bytes may come instead
(`Opening.undone`, stored after the coverage was taken back and before anything new arrives).

A new step overwrites the copy of the oldest one. A step begun early overwrites it early: only where
nobody reads that copy, and where as many earlier steps remain as others may ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.pending_step import PendingStep
from flowcheck.stages.job_state.unused_parameters import UsedMask
from flowcheck.stages.replica_update.gradient_sources.gradient_source import (
    Opening,
    PartialCoverage,
)
from flowcheck.step_numbers import Iteration, Step
from flowcheck.wire.traffic.observed_messages import Range

PART_BYTES_LEAST = 4 << 20
"""Bytes of gradients that are worth a call before the rest is there; fewer wait for more. A choice:
smaller costs calls, larger leaves more for the end of the step."""


@dataclass(frozen=True, slots=True)
class _EarlyProgress:
    """A step that is being made, and from which bytes."""

    started: PendingStep
    step: Step
    opening: Opening
    gradient: np.ndarray
    left: np.ndarray
    """[parameters] bool: not taken yet."""


class EarlyStep:
    """The step after the replica's, as far as its gradients have arrived."""

    def __init__(
        self,
        replica: Replica,
        coverage: PartialCoverage | None,
        *,
        alone: bool,
        least_bytes: int = PART_BYTES_LEAST,
        earlier_steps: int = 0,
    ) -> None:
        """coverage: None where an iteration is seen only when it is complete. alone: a parameter's
        step does not depend on other bytes of the iteration. earlier_steps: how many earlier steps
        must remain meanwhile (other rings of the training job may be behind)."""
        self._earlier_steps = earlier_steps
        self._coverage = coverage if alone and replica.applies_early else None
        self._replica = replica
        size = replica.layout.element_bytes
        self._bounds = np.array([(p.start, p.stop) for p in replica.layout.parameters]) * size
        self._least_bytes = least_bytes
        self._begun: _EarlyProgress | None = None
        self._seen: tuple[int, np.ndarray] | None = None
        """What `settled` was behind the look that found parameters covered, and which."""

    def apply_available(self, step: Step | None, iteration: Iteration) -> int:
        """Steps the parameters of `iteration`, the one that ends `step`, whose gradients are there.
        Returns how many. step: None where the trainer applies no step after this iteration."""
        coverage = self._coverage
        opening = None if step is None or coverage is None else coverage.opening(iteration)
        if step is None or coverage is None or opening is None:
            return 0
        if coverage.contradicted(opening):
            self._give_up()
            return 0
        b = self._begun
        if b is None or not b.started.open or (b.step, b.opening) != (step, opening):
            if not self._replica.has_spare_copy(self._earlier_steps):
                return 0
            b = self._begin(coverage, step, opening)
        return self._take(coverage, b)

    def _begin(self, coverage: PartialCoverage, step: Step, opening: Opening) -> _EarlyProgress:
        self._give_up()
        gradient = coverage.gradient(opening)
        started = self._replica.begin(step, gradient)
        left = np.ones(len(self._bounds), np.bool_)
        self._begun = _EarlyProgress(started, step, opening, gradient, left)
        return self._begun

    def _take(self, coverage: PartialCoverage, b: _EarlyProgress) -> int:
        if self._seen is None:
            ready = b.left & self._covered(coverage.missing(b.opening))
            sizes = self._bounds[:, 1] - self._bounds[:, 0]
            if int(sizes[ready].sum()) >= self._least_bytes:
                self._seen = coverage.settled, ready  # read behind the look, never before it
            return 0
        behind, ready = self._seen
        if coverage.settled <= behind:
            return 0
        self._seen = None
        parameters = np.flatnonzero(ready)
        b.started.apply(parameters.tolist())
        b.left[parameters] = False
        return len(parameters)

    def _covered(self, holes: Sequence[Range]) -> np.ndarray:
        """[parameters] bool: the parameter's gradient has no missing byte."""
        missing = np.array(holes, np.int64).reshape(-1, 2)
        starts, stops = self._bounds[:, 0], self._bounds[:, 1]
        # The first hole that ends behind a parameter's start: does it begin before its end?
        first = np.searchsorted(missing[:, 1], starts, side="right")
        begins = np.append(missing[:, 0], np.iinfo(np.int64).max)[first]
        return np.asarray(begins >= stops)

    def finish(
        self,
        step: Step,
        gradient: np.ndarray,
        used: UsedMask,
        certain: Callable[[], bool] = lambda: True,
        missing: Sequence[Range] | Ranges = (),
    ) -> bool:
        """Makes `step` the replica's step. Continues what was begun with these very bytes, else
        does all of it now. Returns whether the step was made. certain: as PendingStep.commit takes
        it; missing: as `Replica.begin` takes it. Raises as `Replica.apply`."""
        b, self._begun, self._seen = self._begun, None, None
        coverage = self._coverage
        if len(missing):
            b = None  # where bytes that were there are not believed, what was begun is wrong
        if b is not None and coverage is not None and used is None and b.step == step:
            same = gradient.ctypes.data == b.gradient.ctypes.data
            if b.started.open and same and coverage.is_whole(b.opening):
                return b.started.commit(certain)
        return self._replica.begin(step, gradient, used, missing).commit(certain)

    def _give_up(self) -> None:
        if self._begun is not None:
            self._begun.started.abandon()
        self._begun, self._seen = None, None
