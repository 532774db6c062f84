"""What a run knows of its training job: learned off the wire, or given with recorded gradients.

Whatever needs facts of the training (kind, parameters, evidence, assumptions) asks here, so that a
run without connections is saved, reset and shown like any other. Who needs connections reads
RunDir.learned_job.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flowcheck.errors import LearnError
from flowcheck.findings.catalog.refused_files import RECORD_REFUSED
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import LearnedJob, decode_job
from flowcheck.wire.training_job.training_spec import TrainingFacts, decode_spec

Facts = TypeVar("Facts")


def training_file(run: RunDir) -> Path:
    """The file that `training_of` reads; it does not exist before something is known."""
    return run.learned_job if run.learned_job.exists() else run.training_spec


def is_training_known(run: RunDir) -> bool:
    """Whether anything is known of the run's training job."""
    return training_file(run).exists()


def training_of(run: RunDir) -> TrainingFacts | None:
    """What is known of the run's training job; None: nothing yet. Raises LearnError where a file is
    of another version, or damaged."""
    return known_training(run) if is_training_known(run) else None


def known_training(run: RunDir) -> TrainingFacts:
    """As `training_of`, of a run whose replica exists. Raises FileNotFoundError where nothing is
    known."""
    if run.learned_job.exists():
        return learned_job_of(run)
    return _decoded(run.training_spec, decode_spec)


def learned_job_of(run: RunDir) -> LearnedJob:
    """What was learned off the wire. Raises FileNotFoundError where nothing was, LearnError as
    `training_of`."""
    return _decoded(run.learned_job, decode_job)


def _decoded(path: Path, decode: Callable[[bytes], Facts]) -> Facts:
    try:
        return decode(path.read_bytes())
    except LearnError as error:
        raise LearnError(RECORD_REFUSED(path=path, why=error.finding)) from error
