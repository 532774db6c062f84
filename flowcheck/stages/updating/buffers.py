"""The buffers of each step: they come with the forward behind it, in its iteration's generation.

torch/nn/parallel/distributed.py (_sync_buffers): rank 0's, as the iteration before left them. A
step is published without waiting for them; until they come its buffers are of a step before.
"""

from __future__ import annotations

import numpy as np
import torch

from flowcheck.plane.shard import Shard
from flowcheck.replica.kept.beside import read_beside, write_sent
from flowcheck.replica.replica import Replica
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.incarnation import Incarnation
from flowcheck.step_numbers import Iteration
from flowcheck.wire.job import Job


class Buffers:
    """Kept for as long as their steps are."""

    def __init__(self, run: RunDir, job: Job, replica: Replica, shard: Shard, each: int) -> None:
        """each: iterations per step."""
        self._path, self._replica, self._shard, self._each = run.replica, replica, shard, each
        self._kept: tuple[int, int] | None = None
        known = read_beside(run.replica)
        told = job.held and job.held_bytes == shard.held_bytes and bool(known.keys)
        numbers = [n for one in job.held if told for n in one.numbers]
        self._names = [known.buffers[n] for n in numbers]
        self._like = known.tensors
        if any(name not in known.tensors for name in self._names):
            self._names = []

    def look(self, followed: Incarnation) -> None:
        """Keeps those of the replica's step, if they came by now."""
        before = self._shard.applied_iteration
        if not self._names or followed.step is None or before <= followed.iterations:
            return  # of what a life begins with, its start-up told them
        step, now = followed.step_of(before, self._each), (followed.number, before)
        generation = self._shard.generation_of(Iteration(before + 1))
        if step != self._replica.step or self._kept == now or generation is None:
            return
        sent = self._shard.held(generation)
        if sent is not None:
            write_sent(self._path, step, self._cut(sent), min(self._replica.versions))
            self._kept = now

    def _cut(self, sent: np.ndarray) -> dict[str, torch.Tensor]:
        """{name: tensor}; sent: [bytes] as they were broadcast."""
        found = {}
        at = 0
        for name in self._names:
            like = self._like[name]
            raw = torch.from_numpy(sent[at : at + like.nbytes].copy())
            found[name] = raw.view(like.dtype).reshape(like.shape)
            at += like.nbytes
        return found
