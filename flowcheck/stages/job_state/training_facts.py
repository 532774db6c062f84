"""What a run knows of its training job: learned off the wire, or given with recorded gradients.

Whatever needs facts of the training (kind, parameters, evidence, assumptions) asks here, so that a
run without connections is saved, reset and shown like any other. Who needs connections reads
RunDir.learned_job.
"""

from __future__ import annotations

from pathlib import Path

from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import decode_job
from flowcheck.wire.training_job.training_spec import TrainingFacts, decode_spec


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
    path = training_file(run)
    decode = decode_job if path == run.learned_job else decode_spec
    return decode(path.read_bytes())
