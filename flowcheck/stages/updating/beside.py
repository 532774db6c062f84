"""What a stated model has beside the parameters that take steps: by the start-up broadcasts of a
job's life, or by a file of the trainer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.replica.kept.beside import beside_of, forget_sent, read_beside, write_beside
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.model import names_fit
from flowcheck.step_numbers import START, Step
from flowcheck.wire.job import Job

if TYPE_CHECKING:
    import torch


def keep_sent(run: RunDir, config: JobConfig, job: Job, sent: Path, *, step: Step = START) -> None:
    """Of a life that begins with `step`. sent: what was broadcast, where there was anything."""
    model = config.model
    if not model.keys or not names_fit(job, config):
        return
    held = np.fromfile(sent, np.uint8) if sent.exists() else None
    forget_sent(run.replica, Step(step + 1))
    made = beside_of(model.everything, model.keys, held, job.still)
    if held is None and step:
        return  # nothing newer is known
    write_beside(run.replica, replace(made, step=step))


def keep_given(run: RunDir, model: Mapping[str, torch.Tensor], step: Step) -> None:
    """By the state_dict of a file of the trainer's, of `step`."""
    known = read_beside(run.replica)
    named = {key.removeprefix("module."): value for key, value in model.items()}
    others = {*known.frozen, *known.buffers}
    found = {name: named[key] for key, name in known.keys if name in others and key in named}
    if found:
        tensors = {**known.tensors, **{name: value.clone() for name, value in found.items()}}
        write_beside(run.replica, replace(known, tensors=tensors, step=step))
