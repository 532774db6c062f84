"""DeepSpeed's ZeRO stages 1 and 2, and Megatron-LM's distributed optimizer: what each step sends.

DeepSpeed: the weights, each parameter by itself; then gradients all-reduced in the model's type in
two buffers, last parameters first, and the flat parameters gathered, padded to two elements a rank.
Megatron-LM: parameters from the last one on, each at a multiple of 64 elements, in units padded to
a multiple of 128 and of the ranks; float32 gradients of each unit reduce-scattered, then gathered.
"""

from __future__ import annotations

from math import lcm, prod
from typing import Protocol

import torch
from support.netib import habits
from support.netib.fabric import Fabric
from support.netib.partition import up
from support.netib.reduction import all_gather, all_reduce, broadcast, octets, reduce_scatter

DRIFT = 0.01
"""Of a parameter in a step, which is about 0.1 large."""


class Runs(habits.Runs, Protocol):
    fabric: Fabric

    @property
    def dtype(self) -> torch.dtype: ...


def train(job: Runs) -> None:
    options = job.options
    values = [job.random(prod(shape), 0.1) for shape in options.shapes]
    if options.parted == "deepspeed":
        for value in values:
            job.run(broadcast(options, octets(value.to(job.dtype))), gap_us=60)
        job.truth.weights = b"".join(octets(value.to(job.dtype)) for value in values)
    units = _units(job)
    pending = False
    for job.step in range(options.steps):
        job.fabric.wait(5000)
        if pending:
            _gathered(job, values, units, backward=True)
        if options.parted == "deepspeed":
            for part in _halves(options.shapes):
                job.run(all_reduce(options, _drawn(job, sum(part), job.dtype)), gap_us=300)
        else:
            for _, size in units:
                job.run(reduce_scatter(options, _drawn(job, size, torch.float32)), gap_us=300)
        norm = [torch.rand(1) for _ in range(options.ranks)]
        job.run(all_reduce(options, norm), gap_us=400)
        if options.metric_every and (job.step + 1) % options.metric_every == 0:
            told = [torch.rand(30) for _ in range(options.ranks)]
            job.run(all_reduce(options, told), gap_us=400)
        if job.step + 1 == options.skipped:
            continue
        values = [v + DRIFT * job.random(v.numel(), 1) for v in values]
        job.truth.parted.append(b"".join(octets(v.to(job.dtype)) for v in values))
        pending = options.late and job.step + 1 != options.forced
        if not pending:
            _gathered(job, values, units, backward=False)


def _units(job: Runs) -> list[tuple[list[tuple[int, int]], int]]:
    """[unit] ([(parameter, its first element)], elements with their padding)."""
    options = job.options
    sizes = [prod(shape) for shape in options.shapes]
    if options.parted == "deepspeed":
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [(list(enumerate(starts)), up(sum(sizes), 2 * options.ranks))]
    found: list[tuple[list[tuple[int, int]], int]] = []
    own: list[tuple[int, int]] = []
    at = 0
    for i in reversed(range(len(sizes))):
        at = up(at, 64)
        own.append((i, at))
        at += sizes[i]
        if i == 0 or (options.unit_elements and at >= options.unit_elements):
            found.append((own, up(at, lcm(options.ranks, 128))))
            own, at = [], 0
    return found


def _gathered(
    job: Runs,
    values: list[torch.Tensor],
    units: list[tuple[list[tuple[int, int]], int]],
    *,
    backward: bool,
) -> None:
    ranks = job.options.ranks
    for places, size in units[::-1] if backward else units:
        flat = torch.zeros(size, dtype=job.dtype)
        for i, at in places:
            flat[at : at + values[i].numel()] = values[i].to(job.dtype)
        held = octets(flat)
        each = len(held) // ranks
        parts = [held[n * each : (n + 1) * each] for n in range(ranks)]
        job.run(all_gather(job.options, parts), gap_us=200)


def _halves(shapes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    sizes = [prod(shape) for shape in shapes][::-1]
    middle = len(sizes) // 2
    return [sizes[:middle], sizes[middle:]]


def _drawn(job: Runs, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [job.random(size, 1).to(dtype) for _ in range(job.options.ranks)]
