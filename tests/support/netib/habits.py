"""What training scripts do beside DDP, or in place of its gradients, as torch does it."""

from __future__ import annotations

import struct
from math import prod
from typing import Protocol

import numpy as np
import torch
from support.netib.broadcasts import listed
from support.netib.options import Options, Truth
from support.netib.reduction import Operation, all_reduce, broadcast, octets

DELAYED = 75
"""Elements of the parameters that DDP leaves to a hook (delay_all_reduce_named_params)."""


class Runs(Protocol):
    """Whoever puts collectives on the wire."""

    options: Options
    rng: np.random.Generator
    step: int
    truth: Truth

    def run(
        self, *operations: Operation, background: tuple[Operation, ...] = (), gap_us: int = 200
    ) -> None: ...

    def random(self, count: int, scale: float) -> torch.Tensor: ...


def before(job: Runs) -> None:
    """Collectives before DDP begins."""
    options = job.options
    if options.habit == "early":
        told = [job.rng.bytes(40) for _ in range(options.ranks)]
        # A barrier (c10d/nccl2/ProcessGroupNCCL.cpp has one float), then all_gather_object.
        kind = torch.float32 if options.nccl2 else torch.uint8
        job.run(all_reduce(options, [torch.zeros(1, dtype=kind)] * options.ranks))
        job.run(*listed(options, [struct.pack("<q", 40)] * options.ranks))
        job.run(*listed(options, told))
        job.run(broadcast(options, struct.pack("<q", 1234)))
        summed(job, 5)
    if options.habit == "delayed":
        job.run(broadcast(options, octets(job.random(DELAYED, 0.1))))


def instead(job: Runs, buckets: list[list[int]]) -> bool:
    """Gradients in another form than buckets; False: buckets are due."""
    shapes = job.options.shapes
    if job.options.habit == "each alone":  # torch.compile's python_reducer
        for shape in reversed(shapes):
            summed(job, prod(shape))
        return True
    if job.options.habit != "low rank" or job.step < 2:
        return False
    for bucket in buckets:  # PowerSGD of rank 2, min_compression_rate 1
        matrices = [(shapes[i][0], prod(shapes[i][1:])) for i in bucket if len(shapes[i]) > 1]
        worth = [(n, m) for n, m in matrices if (n + m) * 2 < n * m]
        whole = sum(prod(shapes[i]) for i in bucket) - sum(n * m for n, m in worth)
        for count in (whole, 2 * sum(n for n, _ in worth), 2 * sum(m for _, m in worth)):
            if count:
                summed(job, count)
    return True


def behind(job: Runs) -> None:
    """Collectives behind a step."""
    options = job.options
    if options.habit == "zero":
        share(job)
    if options.habit == "delayed":
        summed(job, DELAYED)
    if options.habit == "averages" and job.step % 2:  # PeriodicModelAverager
        weights = torch.frombuffer(bytearray(job.truth.weights), dtype=torch.float32)
        near = [weights + job.random(len(weights), 1e-3) for _ in range(options.ranks)]
        job.run(all_reduce(options, [own / options.ranks for own in near]))


def summed(job: Runs, count: int) -> None:
    """An all-reduce of so many elements."""
    parts = [job.random(count, 1 / job.options.ranks) for _ in range(job.options.ranks)]
    job.run(all_reduce(job.options, parts), gap_us=60)


def share(job: Runs) -> None:
    """ZeroRedundancyOptimizer: the largest parameter first, to the rank that has the fewest bytes;
    each rank broadcasts its own in registration order."""
    sizes = [prod(shape) for shape in job.options.shapes]
    owned: list[list[int]] = [[] for _ in range(job.options.ranks)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        min(owned, key=lambda own: sum(sizes[i] for i in own)).append(index)
    for rank, own in enumerate(owned):
        for index in sorted(own):
            content = octets(job.random(sizes[index], 0.1))
            job.run(broadcast(job.options, content, rank), gap_us=40)
