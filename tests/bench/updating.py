"""Update: one optimizer step on the whole state, digests and all, against torch's fused kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from bench.measure import Figure, Scale, memory, wall_seconds
from flowcheck._core import ffi, lib
from flowcheck.config import OptimizerConfig
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.replica.workers import Workers

TARGET = 0.90
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-4)
LARGE_ELEMENTS = 300_000_000
LARGE_FREE_BYTES = 48 * LARGE_ELEMENTS
"""Two copies of three arrays, torch's own three and a gradient, with room."""
AGAINST = "fused, flat"


def layout(scale: Scale) -> Layout:
    """Square matrices with biases between: 16 or 64 million elements in all."""
    return Layout.of_shapes([(1024, 1024), (1024,)] * (16 if scale.quick else 48))


def figures(scale: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    every = len(os.sched_getaffinity(0))
    for threads in sorted({1, every}):
        yield from _figures(scale, layout(scale), threads)
    if not scale.quick:
        yield from _loops(scale, layout(scale))
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if free >= LARGE_FREE_BYTES:
            count = LARGE_ELEMENTS // (4096 * 4096 + 4096)
            yield from _figures(scale, Layout.of_shapes([(4096, 4096), (4096,)] * count), every)


def _figures(scale: Scale, shape: Layout, threads: int) -> Iterator[Figure]:
    """torch's fused step, and ours, on as many threads."""
    elements, rate = shape.elements, shape.elements / 1e6
    stage = f"update AdamW, {rate:.0f} M, {threads} thread{'s' * (threads > 1)}"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    gradient = torch.randn(elements)
    try:
        fused = wall_seconds(_torch([torch.randn(elements)], gradient, "fused"), scale.repeats)
        taken, bare = _replica(scale, shape, gradient.numpy(), threads)
    finally:
        torch.set_num_threads(before)
    yield Figure(stage, f"torch {AGAINST}", rate / fused, "M elements/s", note=_ms(fused))
    name = ffi.string(lib.fc_step_name()).decode()
    yield Figure(
        stage,
        f"Replica.apply, loop arithmetic ({name})",
        rate / taken,
        "M elements/s",
        fused / taken,
        AGAINST,
        TARGET,
        f"{_ms(taken)}, of it {_ms(taken - bare)} digests",
    )


def _loops(scale: Scale, shape: Layout) -> Iterator[Figure]:
    """The same arithmetic by torch itself."""
    rate = shape.elements / 1e6
    gradient = torch.randn(shape.elements)
    for name in ("foreach", "loop"):
        tensors = [torch.randn(p.shape) for p in shape.parameters]
        taken = wall_seconds(_torch(tensors, gradient, name), scale.repeats)
        what = f"torch {name}, {len(tensors)} tensors"
        yield Figure(f"update AdamW, {rate:.0f} M", what, rate / taken, "M elements/s")


def _torch(tensors: list[torch.Tensor], gradient: torch.Tensor, name: str) -> Callable[[], object]:
    """A step of torch's own AdamW over `tensors`."""
    at = 0
    for tensor in tensors:
        tensor.grad = gradient[at : at + tensor.numel()].view(tensor.shape)
        at += tensor.numel()
    kinds = {"foreach": name == "foreach", "fused": name == "fused"}
    return torch.optim.AdamW(tensors, lr=1e-4, **kinds).step


def _replica(
    scale: Scale, shape: Layout, gradient: np.ndarray, threads: int
) -> tuple[float, float]:
    """Seconds of a step, and of one whose digests nobody sums."""
    values = torch.randn(shape.elements).numpy()
    with memory(shape.size_bytes * 8) as folder:
        workers = Workers(threads)
        replica = Replica.create(folder / "replica", shape, ADAMW, values, workers=workers)
        del values
        taken = wall_seconds(lambda: replica.apply(replica.step + 1, gradient), scale.repeats)
        flat = replica._taker._flat
        begin = flat.begin

        def without(*arguments: object) -> object:
            passing = begin(*arguments)
            passing._job.digests = ffi.NULL
            return passing

        flat.begin = without
        bare = wall_seconds(lambda: replica.apply(replica.step + 1, gradient), scale.repeats)
        replica.close()
    return taken, bare


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"
