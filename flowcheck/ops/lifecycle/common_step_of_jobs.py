"""The newest step that the replicas of all rings of one training job have, and the index of
their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig
from flowcheck.findings.catalog.how_chains_end import NO_COMMON_STEP, NO_STEPS_OF_JOB, STEPS_OF_JOB
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.held_steps import common_steps, in_replica
from flowcheck.stages.job_learning.job_file_match import addresses_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.overwrite_guard import INDEX
from flowcheck.wire.training_job.learned_job import LearnedJob


def common_step_to_keep(
    config: JobConfig, runs: Sequence[RunDir]
) -> tuple[Step | None, Finding | None]:
    """(step, reason): the step at which the rings of one training job are saved, or why they have
    no common step: the newest that is exact in all of them or, without such, the newest. (None,
    None) where the jobs are independent."""
    if not config.together or len(runs) < 2:
        return None, None
    held = [in_replica(run) for run in runs]
    steps = common_steps(held, exact=True) or common_steps(held, exact=False)
    if steps:
        return steps[-1], None
    each = [
        STEPS_OF_JOB(job=n, steps=tuple(sorted(own.every))) if own.every else NO_STEPS_OF_JOB(n)
        for n, own in enumerate(held, 1)
    ]
    return None, NO_COMMON_STEP(each)


def write_index(folder: Path, run: RunDir, kept: Sequence[Path | None], step: Step | None) -> None:
    """Writes the index of the checkpoints of all jobs into `folder`.

    kept: [job] folder of its checkpoint, inside `folder`; None: not saved.
    step: the common step; None: there is none.
    Raises OSError where it cannot be written.
    """
    jobs = [_entry(own, path, folder) for own, path in zip(all_run_dirs(run), kept, strict=True)]
    index = {"step": step, "jobs": jobs}
    write_atomically(folder / INDEX, msgspec.json.format(msgspec.json.encode(index), indent=1))


def _entry(run: RunDir, kept: Path | None, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"job": run.reader + 1, "checkpoint": None}
    if kept is not None:
        with suppress(ValueError):
            kept = kept.relative_to(folder)
        told["checkpoint"] = str(kept)
    training = training_of(run)
    if training is not None:
        told["ranks"] = training.communicator_ranks[0]
    if isinstance(training, LearnedJob):
        numbers = {key.dest_qp for edge in training.edges for key in edge.all_flows}
        told |= {"addresses": addresses_of(training), "queue_pairs": sorted(numbers)}
    return told
