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
from flowcheck.replica.state_file.file_header import peek_tainted, peek_versions
from flowcheck.stages.job_learning.job_file_match import addresses_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.overwrite_guard import INDEX
from flowcheck.wire.training_job.learned_job import LearnedJob


def common_steps(runs: Sequence[RunDir], *, exact: bool) -> tuple[Step, ...]:
    """Steps that the replicas of all `runs` have in full, ascending. exact: only those without
    tainted elements in any replica."""
    held = [set(replica_steps(run)) for run in runs]
    both = set[Step]().union(*held[:1]).intersection(*held[1:])
    tainted = set[Step]().union(*map(_tainted_steps, runs)) if exact and both else set()
    return tuple(sorted(both - tainted))


def replica_steps(run: RunDir) -> tuple[Step, ...]:
    """Steps that the replica of a run has in full, ascending; () without a replica."""
    with suppress(OSError, RingError):
        if run.replica.exists():
            return peek_versions(run.replica)[1]
    return ()


def _tainted_steps(run: RunDir) -> frozenset[Step]:
    with suppress(OSError, RingError):
        return peek_tainted(run.replica)
    return frozenset()


def common_step_to_keep(
    config: JobConfig, runs: Sequence[RunDir]
) -> tuple[Step | None, Finding | None]:
    """(step, reason): the step at which the rings of one training job are saved, or why they have
    no common step: the newest that is exact in all of them or, without such, the newest. (None,
    None) where the jobs are independent."""
    if not config.together or len(runs) < 2:
        return None, None
    steps = common_steps(runs, exact=True) or common_steps(runs, exact=False)
    if steps:
        return steps[-1], None
    held = [(n, replica_steps(run)) for n, run in enumerate(runs, 1)]
    each = [STEPS_OF_JOB(job=n, steps=steps) if steps else NO_STEPS_OF_JOB(n) for n, steps in held]
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
