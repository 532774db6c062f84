"""A made-up job whose trainer does more than train: metrics, evaluations, buffers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticRun,
    SyntheticTraffic,
)


class Disturbed(SyntheticRun):
    """A job whose trainer also does what `before` and `between` say, by step from 0."""

    def __init__(
        self,
        job: SyntheticJob,
        before: dict[int, Callable[[Disturbed], object]],
        between: dict[int, Callable[[Disturbed], object]],
    ) -> None:
        super().__init__(job)
        self.before, self.between, self.step, self.reduced = before, between, -1, 0

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        self.step += 1
        self.reduced = 0
        self.before.get(self.step, lambda run: None)(self)
        super()._step(buckets)

    def _all_reduce(self, tensors: list[bytes], dtype: torch.dtype) -> bytes:
        self.reduced += 1
        if self.reduced == 2:
            self.between.get(self.step, lambda run: None)(self)
        return super()._all_reduce(tensors, dtype)

    def metric(self, elements: int = 1, times: int = 1) -> None:
        for _ in range(times):
            values = np.arange(elements, dtype=np.float32).tobytes()
            super()._all_reduce([values] * self.job.ranks, torch.float32)

    def evaluate(self) -> None:
        self._broadcast(bytes(range(200)) * 50)
        self.metric(3, times=5)


def metric(run: Disturbed) -> None:
    run.metric()


def evaluation(run: Disturbed) -> None:
    run.evaluate()


class Buffered(Disturbed):
    """Buffers are broadcast before every step, as DDP does for BatchNorm."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        for size in (256, 16):
            self._broadcast(bytes(range(size)))
        super()._step(buckets)

    def generate(self) -> SyntheticTraffic:
        traffic = super().generate()
        self.metric()
        return traffic
