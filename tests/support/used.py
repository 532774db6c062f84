"""Made-up trainers with find_unused_parameters or static_graph: not all parameters take part."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticRun, SyntheticTraffic


class Told(SyntheticRun):
    """A trainer that says more than DDP's usual start."""

    def tell(self, *values: int, code: str = "i") -> None:
        self._broadcast(struct.pack(f"<{len(values)}{code}", *values))

    def plan(self, buckets: Sequence[Sequence[int]]) -> None:
        self.tell(*(index for bucket in buckets for index in bucket), len(buckets))
        self.tell(*map(len, buckets))

    def map(self, *used: int) -> bytes:
        """The int32 of each parameter: does this rank use it?"""
        own = struct.pack(f"<{len(used)}i", *used)
        return self._all_reduce([own] * self.job.ranks, torch.int32)

    unused: frozenset[int] = frozenset()
    """Parameters whose gradient is made up as zero from now on."""

    def _step(self, buckets: Sequence[Sequence[int]]) -> None:
        made_up, count = self._made_up, 0

        def gradient(shape: tuple[int, ...]) -> bytes:
            nonlocal count
            index, count = count % len(self.job.shapes), count + 1
            made = made_up(shape)
            return bytes(len(made)) if index in self.unused else made

        self._made_up = gradient  # type: ignore[method-assign]
        super()._step(tuple(map(tuple, buckets)))
        self._made_up = made_up  # type: ignore[method-assign]


class Unused(Told):
    """find_unused_parameters=True: no plan, but a map after each iteration. Parameters of odd
    steps are all used, of even ones all but those of `left_out`."""

    left_out: frozenset[int] = frozenset()
    buckets: Sequence[Sequence[int]] = ((2, 3), (0, 1))

    def generate(self) -> SyntheticTraffic:
        self._startup_broadcasts()
        for step in range(1, self.job.steps + 1):
            self.unused = self.left_out if step % 2 == 0 else frozenset()
            self.iteration()
            if self.job.metric_every and step % self.job.metric_every == 0:
                self._all_reduce([struct.pack("<f", step)] * self.job.ranks, torch.float32)
        self.truth.frames = self.fabric.frames
        return self.truth

    def iteration(self) -> None:
        self._step(self.buckets)
        used = self.map(*(i not in self.unused for i in range(len(self.job.shapes))))
        self.truth.gradients[-1] += used


class SomeUnused(Unused):
    left_out = frozenset({1, 3})


class Static(Told):
    """static_graph=True: a map before iteration 0, and two iterations before the plan."""

    def _step(self, buckets: Sequence[Sequence[int]]) -> None:
        if not self.truth.gradients:
            self.map(*(i not in self.unused for i in range(len(self.job.shapes))))
            super()._step(buckets)
        super()._step(buckets)


class StaticUnused(Static):
    unused = frozenset({1})
