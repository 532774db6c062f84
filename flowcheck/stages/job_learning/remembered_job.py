"""The job that an earlier run learned, and the model that the job file states, as files. Loads
no learner.

Apart from all that learns, so that a chain does not load that before its first stage.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig
from flowcheck.errors import LearnError
from flowcheck.private_files import make_folder
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import LearnedJob, decode_job, encode_job

REMEMBERED = "learned.json"
"""In the folder of checkpoints: the job learned last, for a chain that starts midstream."""
REMEMBERED_JOB_FILE, STATED_MODEL_FILE = "known.json", "expected.json"
"""In the folder of what is learned: what a run before this one learned, and the model as the job
file states it."""


def may_join_midstream(config: JobConfig) -> bool:
    """Where each step is one all-reduced backward; of more, which one comes nothing tells. Rings
    that are clipped together find no base alone."""
    optimizer = config.optimizer
    assert optimizer is not None
    return config.late_join and optimizer.synced_backwards == 1 and not optimizer.clip_together


def store_learned_job(config: JobConfig, job: LearnedJob) -> None:
    """Keeps what was learned beside the checkpoints, which outlive the machine. What cannot be
    kept is missed only by a later chain."""
    if config.checkpoint is None:
        return
    folder = Path(config.checkpoint)
    with suppress(OSError):
        make_folder(folder)
        write_atomically(folder / REMEMBERED, encode_job(job))


def newest_remembered_job(config: JobConfig, root: Path) -> bytes | None:
    """The job learned last by a chain of this run directory, or beside its checkpoints; to be read
    before the directory is made anew."""
    run = RunDir(root)
    places = [run.learned_job, run.learned_folder / REMEMBERED_JOB_FILE]
    if config.checkpoint is not None:
        places.append(Path(config.checkpoint) / REMEMBERED)
    found: list[tuple[float, bytes]] = []
    for place in places:
        with suppress(OSError, LearnError):
            text = place.read_bytes()
            decode_job(text)
            found.append((place.stat().st_mtime, text))
    return max(found)[1] if found else None
