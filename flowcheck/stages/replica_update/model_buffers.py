"""Buffers and frozen parameters of the model: from the start-up of the job's incarnation, from each
forward, or from a trainer checkpoint.

DDP broadcasts rank 0's buffers before each forward, as the iteration before left them
(torch/nn/parallel/distributed.py, _sync_buffers). A step is published without waiting for them;
until they come, its buffers are those of an earlier step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from flowcheck.config import JobConfig
from flowcheck.replica.checkpoint.frozen_and_buffers import (
    forget_broadcast_buffers,
    frozen_and_buffers_of,
    read_frozen_and_buffers,
    write_broadcast_buffers,
    write_frozen_and_buffers,
)
from flowcheck.replica.model_replica import Replica
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.job_state.model_layout import names_fit
from flowcheck.stages.replica_update.gradient_sources.gradient_source import GradientSource
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import START, Iteration, Step
from flowcheck.wire.training_job.training_spec import TrainingFacts

if TYPE_CHECKING:
    import torch


def store_broadcast_buffers(
    run: RunDir, config: JobConfig, job: TrainingFacts, sent: Path, *, step: Step = START
) -> None:
    """Stores the buffers of an incarnation that begins with `step`. sent: the broadcast bytes,
    where there was a broadcast."""
    model = config.model
    if not model.keys or not names_fit(job, config):
        return
    held = np.fromfile(sent, np.uint8) if sent.exists() else None
    forget_broadcast_buffers(run.replica, Step(step + 1))
    made = frozen_and_buffers_of(model.everything, model.keys, held, job.unchanged_buffers)
    if held is None and step:
        return  # nothing newer is known
    write_frozen_and_buffers(run.replica, replace(made, step=step))


def store_checkpoint_buffers(run: RunDir, model: Mapping[str, torch.Tensor], step: Step) -> None:
    """Stores the buffers of `step` from the state_dict of a trainer checkpoint."""
    known = read_frozen_and_buffers(run.replica)
    named = {key.removeprefix("module."): value for key, value in model.items()}
    others = {*known.frozen, *known.buffers}
    found = {name: named[key] for key, name in known.keys if name in others and key in named}
    if found:
        tensors = {**known.tensors, **{name: value.clone() for name, value in found.items()}}
        write_frozen_and_buffers(run.replica, replace(known, tensors=tensors, step=step))


class Buffers:
    """Buffers of the replica's steps, kept as long as their steps are."""

    def __init__(
        self, run: RunDir, job: TrainingFacts, replica: Replica, source: GradientSource, each: int
    ) -> None:
        """each: iterations per step."""
        self._path, self._replica, self._source, self._each = run.replica, replica, source, each
        self._kept: tuple[int, int] | None = None
        known = read_frozen_and_buffers(run.replica)
        told = (
            job.buffer_broadcasts
            and job.module_buffer_bytes == source.module_buffer_bytes
            and bool(known.keys)
        )
        numbers = [n for one in job.buffer_broadcasts if told for n in one.numbers]
        self._names = [known.buffers[n] for n in numbers]
        self._like = known.tensors
        if any(name not in known.tensors for name in self._names):
            self._names = []

    def store_arrived(self, followed: Incarnation) -> None:
        """Stores the buffers of the replica's step, if they have arrived."""
        before = self._source.applied_iteration
        if not self._names or followed.step is None or before <= followed.iterations:
            return  # of what a life begins with, its start-up told them
        step, now = followed.step_of(before, self._each), (followed.number, before)
        if step != self._replica.step or self._kept == now:
            return
        sent = self._source.module_buffers(Iteration(before + 1))
        if sent is not None:
            write_broadcast_buffers(
                self._path, step, self._split_by_name(sent), min(self._replica.versions)
            )
            self._kept = now

    def _split_by_name(self, sent: np.ndarray) -> dict[str, torch.Tensor]:
        """{name: tensor}; sent: [bytes] as they were broadcast."""
        found = {}
        at = 0
        for name in self._names:
            like = self._like[name]
            raw = torch.from_numpy(sent[at : at + like.nbytes].copy())
            found[name] = raw.view(like.dtype).reshape(like.shape)
            at += like.nbytes
        return found
