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
from flowcheck.errors import RingError
from flowcheck.findings.catalog.how_chains_end import NO_COMMON_STEP, NO_STEPS_OF_JOB, STEPS_OF_JOB
from flowcheck.findings.finding import Finding
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_learning.job_file_match import addresses_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.overwrite_guard import INDEX
from flowcheck.wire.training_job.learned_job import LearnedJob


def common_step(runs: Sequence[RunDir]) -> Step | None:
    """The newest step that every replica holds whole; None where there is none."""
    held = [replica_steps(run) for run in runs]
    both = set(held[0]).intersection(*held[1:]) if held else set()
    return max(both, default=None)


def replica_steps(run: RunDir) -> tuple[Step, ...]:
    """Steps that a run's replica holds; () without one."""
    with suppress(OSError, RingError):
        if run.replica.exists():
            return peek_versions(run.replica)[1]
    return ()


def common_step_to_keep(
    config: JobConfig, runs: Sequence[RunDir]
) -> tuple[Step | None, Finding | None]:
    """The step that the rings of one job are kept at, and why there is none; (None, None) where
    each job is one of its own."""
    if not config.together or len(runs) < 2:
        return None, None
    step = common_step(runs)
    if step is not None:
        return step, None
    held = [(n, replica_steps(run)) for n, run in enumerate(runs, 1)]
    each = [STEPS_OF_JOB(job=n, steps=steps) if steps else NO_STEPS_OF_JOB(n) for n, steps in held]
    return None, NO_COMMON_STEP(each)


def write_index(folder: Path, run: RunDir, kept: Sequence[Path | None], step: Step | None) -> None:
    """kept: [job] its checkpoint's folder, below `folder`; step: the one all of them are of."""
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
