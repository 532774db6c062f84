"""Parameters are stepped as soon as their gradients are there, while the others still arrive.

The step is committed only once its generation is COMPLETE: one that never is, or of which two
copies differ, is not seen by anybody. Bytes that are covered stay as they are until a generation is
opened anew (dpdk_ext/core/fc_place.c: what comes again must be equal), which its number tells.

A step that is made takes the copy of the oldest one. Begun early it takes it early: only where
nobody reads that copy, and where as many earlier steps stay as others may ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flowcheck.plane.shard import Shard, State
from flowcheck.replica.replica import Replica
from flowcheck.replica.started import Started
from flowcheck.stages.updating.used import Used

PART_BYTES_LEAST = 4 << 20
"""Gradients that are worth a call before the rest is there; fewer wait for more."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that is being made, and of which bytes."""

    started: Started
    step: int
    generation: int
    number: int
    """Of the generation's opening."""
    gradient: np.ndarray
    left: np.ndarray
    """[parameters] bool: not taken yet."""


class Ahead:
    """The step after the replica's, as far as its gradients came."""

    def __init__(
        self,
        replica: Replica,
        shard: Shard,
        *,
        alone: bool,
        least_bytes: int = PART_BYTES_LEAST,
        earlier_steps: int = 0,
    ) -> None:
        """alone: what an iteration's other bytes say, changes nothing in a parameter's step;
        earlier_steps: that must stay meanwhile (other rings of the training job may be behind)."""
        self._earlier_steps = earlier_steps
        self._alone = alone and replica.takes_parts
        self._replica, self._shard = replica, shard
        size = replica.layout.element_bytes
        self._bounds = np.array([(p.start, p.stop) for p in replica.layout.parameters]) * size
        self._least_bytes = least_bytes
        self._begun: _Begun | None = None
        self._seen: tuple[int, np.ndarray] | None = None
        """Parameters that are covered, and what `Shard.settled` was before they were looked at."""

    def look(self, step: int | None, iteration: int) -> int:
        """Steps what is there of `iteration`, the one that ends `step`; how many parameters. None:
        the trainer takes no step there."""
        shard, generation = self._shard, self._shard.generation_of(iteration)
        if step is None or generation is None or not self._alone:
            return 0
        if shard.state(generation) != State.OPEN:
            return 0
        if shard.conflict_bytes(generation):
            self._give_up()
            return 0
        number = shard.begun(generation)
        b = self._begun
        now = (step, generation, number)
        if b is None or not b.started.open or (b.step, b.generation, b.number) != now:
            if not self._replica.spares(self._earlier_steps):
                return 0
            b = self._begin(*now)
        return self._take(b)

    def _begin(self, step: int, generation: int, number: int) -> _Begun:
        self._give_up()
        gradient = self._shard.gradient(generation)
        started = self._replica.begin(step, gradient)
        left = np.ones(len(self._bounds), np.bool_)
        self._begun = _Begun(started, step, generation, number, gradient, left)
        return self._begun

    def _take(self, b: _Begun) -> int:
        settled = self._shard.settled
        if self._seen is None:
            ready = b.left & self._covered(b.generation)
            sizes = self._bounds[:, 1] - self._bounds[:, 0]
            if int(sizes[ready].sum()) >= self._least_bytes:
                self._seen = settled, ready
            return 0
        before, ready = self._seen
        if settled == before:
            return 0
        self._seen = None
        parameters = np.flatnonzero(ready)
        b.started.take(parameters.tolist())
        b.left[parameters] = False
        return len(parameters)

    def _covered(self, generation: int) -> np.ndarray:
        """[parameters] bool: nothing of them is missing."""
        missing = np.array(self._shard.missing(generation), np.int64).reshape(-1, 2)
        starts, stops = self._bounds[:, 0], self._bounds[:, 1]
        # The first hole that ends behind a parameter's start: does it begin before its end?
        first = np.searchsorted(missing[:, 1], starts, side="right")
        begins = np.append(missing[:, 0], np.iinfo(np.int64).max)[first]
        return np.asarray(begins >= stops)

    def finish(self, step: int, gradient: np.ndarray, used: Used) -> None:
        """Makes `step` the replica's: what was begun of these very bytes goes on, else all of it
        is done now. Raises as `Replica.apply`."""
        b, self._begun, self._seen = self._begun, None, None
        if b is not None and used is None and b.step == step and b.started.open:
            same = gradient.ctypes.data == b.gradient.ctypes.data
            whole = self._shard.state(b.generation) == State.COMPLETE
            if same and whole and self._shard.begun(b.generation) == b.number:
                b.started.commit()
                return
        self._replica.apply(step, gradient, used)

    def _give_up(self) -> None:
        if self._begun is not None:
            self._begun.started.abandon()
        self._begun, self._seen = None, None
