"""Update: one optimizer step on the whole state, digests and all, against torch's fused kernel."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from bench.measure import Figure, Scale, by_turns, memory, wall_seconds
from flowcheck._core import ffi, lib
from flowcheck.config import OptimizerConfig
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.replica.workers import Workers

TARGET = 0.90
RULES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
LATEST = 0.83
"""One over 1.2: a step is published no later than so many fused steps after its last byte."""
BUCKET_ELEMENTS = 25 * 1024 * 1024 // 4
"""torch's DistributedDataParallel, bucket_cap_mb."""
LARGE_ELEMENTS = 300_000_000
LARGE_FREE_BYTES = 48 * LARGE_ELEMENTS
"""Two copies of three arrays, torch's own three and a gradient, with room."""
AGAINST = "fused, flat"


def layout(scale: Scale) -> Layout:
    """Square matrices with biases between: 16 or 64 million elements in all."""
    return Layout.of_shapes([(1024, 1024), (1024,)] * (16 if scale.quick else 48))


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    every = len(os.sched_getaffinity(0))
    for name in RULES:
        for threads in sorted({1, every}):
            yield from _figures(scale, name, layout(scale), threads)
    if not scale.quick:
        yield from _loops(scale, layout(scale))
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if free >= LARGE_FREE_BYTES:
            count = LARGE_ELEMENTS // (4096 * 4096 + 4096)
            large = Layout.of_shapes([(4096, 4096), (4096,)] * count)
            yield from _figures(scale, "adamw", large, every)


def _figures(scale: Scale, name: str, shape: Layout, threads: int) -> Iterator[Figure]:
    """torch's fused step, and ours, on as many threads, taken by turns."""
    rate = shape.elements / 1e6
    stage = f"update {name}, {rate:.0f} M, {threads} thread{'s' * (threads > 1)}"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    gradient = torch.randn(shape.elements)
    fused = _torch(name, [torch.randn(shape.elements)], gradient, "fused")
    try:
        with _replica(name, shape, threads) as replica:
            values = gradient.numpy()
            last = _LastBucket(replica, values)
            works = [fused, lambda: replica.apply(replica.step + 1, values), last.arrives]
            seconds = by_turns(scale.repeats, works, before=[int, int, last.others])
    finally:
        torch.set_num_threads(before)
    theirs, ours, late = (statistics.median(each) for each in seconds)
    ratio, lead = (_ratio(seconds[0], each) for each in seconds[1:])
    yield Figure(stage, f"torch {AGAINST}", rate / theirs, "M elements/s", note=_ms(theirs))
    twin = ffi.string(lib.fc_step_name()).decode()
    what = f"Replica.apply, loop arithmetic ({twin}), digests"
    yield Figure(stage, what, rate / ours, "M elements/s", ratio, AGAINST, TARGET, _ms(ours))
    what = "last bucket there, until published"
    yield Figure(stage, what, late * 1e3, "ms", lead, AGAINST, LATEST, "the others were stepped")


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median of neighbours in time."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


class _LastBucket:
    """A step whose gradients come bucket by bucket, in DDP's order, each stepped before the next is
    there; what is timed begins with the last."""

    def __init__(self, replica: Replica, gradient: np.ndarray) -> None:
        self._replica, self._gradient = replica, gradient
        self._buckets: list[list[int]] = [[]]
        size = 0
        for index, p in reversed(list(enumerate(replica.layout.parameters))):
            if size >= BUCKET_ELEMENTS:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(index)
            size += p.stop - p.start

    def others(self) -> None:
        self._started = self._replica.begin(self._replica.step + 1, self._gradient)
        for bucket in self._buckets[:-1]:
            self._started.take(bucket)

    def arrives(self) -> None:
        self._started.take(self._buckets[-1])
        self._started.commit()


def _loops(scale: Scale, shape: Layout) -> Iterator[Figure]:
    """The same arithmetic by torch itself."""
    rate = shape.elements / 1e6
    gradient = torch.randn(shape.elements)
    for name in ("foreach", "loop"):
        tensors = [torch.randn(p.shape) for p in shape.parameters]
        taken = wall_seconds(_torch("adamw", tensors, gradient, name), scale.repeats)
        what = f"torch {name}, {len(tensors)} tensors"
        yield Figure(f"update adamw, {rate:.0f} M", what, rate / taken, "M elements/s")


def _torch(
    rule: str, tensors: list[torch.Tensor], gradient: torch.Tensor, name: str
) -> Callable[[], object]:
    """A step of torch's own optimizer over `tensors`."""
    at = 0
    for tensor in tensors:
        tensor.grad = gradient[at : at + tensor.numel()].view(tensor.shape)
        at += tensor.numel()
    kinds = {"foreach": name == "foreach", "fused": name == "fused"}
    return RULES[rule](tensors, lr=1e-4, **kinds).step


@contextmanager
def _replica(rule: str, shape: Layout, threads: int) -> Iterator[Replica]:
    values = torch.randn(shape.elements).numpy()
    config = OptimizerConfig(name=rule, learning_rate=1e-4)
    with memory(shape.size_bytes * 8) as folder:
        workers = Workers(threads)
        replica = Replica.create(folder / "replica", shape, config, values, workers=workers)
        del values
        yield replica
        replica.close()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
