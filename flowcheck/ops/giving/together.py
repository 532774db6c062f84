"""The rings of one training job as one state: their checkpoints at a step that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import RingError
from flowcheck.replica.kept.header import peek_versions
from flowcheck.stages.jobs import every
from flowcheck.stages.learning.fitting import addresses_of
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.overwriting import INDEX
from flowcheck.whole import write_whole
from flowcheck.wire.job_file import decode_job

NO_COMMON = (
    "there is no step that the replicas of all jobs have ({}): each is kept as it is, and together "
    "they are no state of one training job"
)


def common_step(runs: Sequence[RunDir]) -> Step | None:
    """The newest step that every replica holds whole; None where there is none."""
    held = [versions(run) for run in runs]
    both = set(held[0]).intersection(*held[1:]) if held else set()
    return max(both, default=None)


def versions(run: RunDir) -> tuple[Step, ...]:
    """Steps that a run's replica holds; () without one."""
    with suppress(OSError, RingError):
        if run.replica.exists():
            return peek_versions(run.replica)[1]
    return ()


def steps_to_keep(config: JobConfig, runs: Sequence[RunDir]) -> tuple[Step | None, str]:
    """The step that the rings of one job are kept at, and why there is none; (None, "") where each
    job is one of its own."""
    if not config.together or len(runs) < 2:
        return None, ""
    step = common_step(runs)
    if step is not None:
        return step, ""
    told = ", ".join(
        f"job {n}: {', '.join(map(str, versions(run))) or 'none'}" for n, run in enumerate(runs, 1)
    )
    return None, NO_COMMON.format(told)


def write_index(folder: Path, run: RunDir, kept: Sequence[Path | None], step: Step | None) -> None:
    """kept: [job] its checkpoint's folder, below `folder`; step: the one all of them are of."""
    jobs = [_entry(own, path, folder) for own, path in zip(every(run), kept, strict=True)]
    index = {"step": step, "jobs": jobs}
    write_whole(folder / INDEX, msgspec.json.format(msgspec.json.encode(index), indent=1))


def _entry(run: RunDir, kept: Path | None, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {"job": run.reader + 1, "checkpoint": None}
    if kept is not None:
        with suppress(ValueError):
            kept = kept.relative_to(folder)
        told["checkpoint"] = str(kept)
    if run.learned_job.exists():
        job = decode_job(run.learned_job.read_bytes())
        told |= {
            "ranks": job.communicators[0].ranks,
            "addresses": addresses_of(job),
            "queue_pairs": sorted({key.dest_qp for edge in job.edges for key in edge.every_flow}),
        }
    return told
