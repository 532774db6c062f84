"""Update: one optimizer step on the whole state, digests and all, against torch's fused kernel."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from bench.huge import huge_memory
from bench.measure import Figure, Scale, by_turns, memory, wall_seconds
from flowcheck._core import ffi, lib
from flowcheck.config import OptimizerConfig
from flowcheck.plane.shared_memory.shared_memory_location import (
    available_bytes,
    choose_memory_folder,
    shm_has_hugepages,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.worker_threads import WorkerThreads

TARGET = 0.90
RULES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
LATEST = 0.83
"""One over 1.2: a step is published no later than so many fused steps after its last byte."""
BUCKET_ELEMENTS = 25 * 1024 * 1024 // 4
"""torch's DistributedDataParallel, bucket_cap_mb."""
LARGE_ELEMENTS = 300_000_000
ARRAYS = 13
"""Two copies of three, torch's own three and a gradient, and three to spare: with fewer there is
room for, a large state is not tried."""
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
        count = -(-LARGE_ELEMENTS // (4096 * 4096 + 4096))
        large = Layout.of_shapes([(4096, 4096), (4096,)] * count)
        if available_bytes() >= ARRAYS * large.size_bytes:
            yield from _figures(scale, "adamw", large, every)


def _figures(scale: Scale, name: str, shape: Layout, threads: int) -> Iterator[Figure]:
    """torch's fused step, and ours, on as many threads, taken by turns, each behind one of its own
    kind: what a step leaves in the last-level cache is the next one's to write. With the pages that
    a run gets here, and with 2 MiB where those are others and can be had."""
    need_bytes = shape.size_bytes * 8
    with memory(need_bytes) as folder:
        yield from _by_turns(scale, name, shape, threads, folder, "")
    gc.collect()  # a replica's memory goes with the last view of it
    if (
        choose_memory_folder(need_bytes).huge_pages
        or shm_has_hugepages()
        or available_bytes() < ARRAYS * shape.size_bytes
    ):
        return
    with huge_memory(need_bytes) as found:
        if found is not None:
            yield from _by_turns(scale, name, shape, threads, found, ", 2 MiB pages")


def _by_turns(
    scale: Scale, name: str, shape: Layout, threads: int, folder: Path, pages: str
) -> Iterator[Figure]:
    rate = shape.elements / 1e6
    stage = f"update {name}, {rate:.0f} M, {threads} thread{'s' * (threads > 1)}{pages}"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    gradient = torch.randn(shape.elements)
    fused = _torch(name, [torch.randn(shape.elements)], gradient, "fused")
    try:
        with _replica(name, shape, threads, folder) as replica:
            values = gradient.numpy()
            last = _LastBucket(replica, values)
            works = [fused, lambda: replica.apply(replica.step + 1, values), last.arrives]
            seconds = by_turns(scale.repeats, works, before=[*works[:2], last.others])
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
            self._started.apply(bucket)

    def arrives(self) -> None:
        self._started.apply(self._buckets[-1])
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
def _replica(rule: str, shape: Layout, threads: int, folder: Path) -> Iterator[Replica]:
    values = torch.randn(shape.elements).numpy()
    config = OptimizerConfig(name=rule, learning_rate=1e-4)
    workers = WorkerThreads(threads)
    replica = Replica.create(folder / "replica", shape, config, values, workers=workers)
    del values
    yield replica
    replica.close()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
