"""What a run knows of its training job: learned off the wire, or given with recorded gradients."""

from __future__ import annotations

from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import decode_job
from flowcheck.wire.training_job.training_spec import TrainingFacts, decode_spec


def training_of(run: RunDir) -> TrainingFacts | None:
    """What is known of the run's training job; None: nothing yet. Raises LearnError where a file is
    of another version, or damaged."""
    if run.learned_job.exists():
        return decode_job(run.learned_job.read_bytes())
    if run.training_spec.exists():
        return decode_spec(run.training_spec.read_bytes())
    return None
