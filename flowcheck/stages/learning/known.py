"""What an earlier run learned, and what the job file states: files that a chain finds as it begins.

Apart from all that learns, so that a chain does not load that before its first stage.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.errors import LearnError
from flowcheck.private_files import make_folder
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import write_whole
from flowcheck.wire.job import Job
from flowcheck.wire.job_file import decode_job, encode_job

REMEMBERED = "learned.json"
"""In the folder of checkpoints: the job learned last, for a chain that starts amid its run."""
KNOWN_JOB, EXPECTED = "known.json", "expected.json"
"""In the folder of what is learned: what a run before this one learned, and the model as the job
file states it."""


def may_join(config: JobConfig) -> bool:
    """Where each step is one all-reduced backward; of more, which one comes nothing tells. Rings
    that are clipped together find no base alone."""
    optimizer = config.optimizer
    assert optimizer is not None
    return config.joins and optimizer.synced_backwards == 1 and not optimizer.clip_together


def remember(config: JobConfig, job: Job) -> None:
    """Keeps what was learned beside the checkpoints, which outlive the machine. What cannot be
    kept is missed only by a later chain."""
    if config.checkpoint is None:
        return
    folder = Path(config.checkpoint)
    with suppress(OSError):
        make_folder(folder)
        write_whole(folder / REMEMBERED, encode_job(job))


def newest_known(config: JobConfig, root: Path) -> bytes | None:
    """The job learned last by a chain of this run directory, or beside its checkpoints; to be read
    before the directory is made anew."""
    run = RunDir(root)
    places = [run.learned_job, run.learned_folder / KNOWN_JOB]
    if config.checkpoint is not None:
        places.append(Path(config.checkpoint) / REMEMBERED)
    found: list[tuple[float, bytes]] = []
    for place in places:
        with suppress(OSError, LearnError):
            text = place.read_bytes()
            decode_job(text)
            found.append((place.stat().st_mtime, text))
    return max(found)[1] if found else None
