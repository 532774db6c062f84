"""What is known of each job before a frame of it is seen, as files for its extractor: the job that
a chain before this one followed, and models that the job file states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flowcheck.config import JobConfig
from flowcheck.ops.running.stated import sharded_model
from flowcheck.private_files import write_own
from flowcheck.replica.kept.gradients import ready_log
from flowcheck.stages.learning.known import EXPECTED, KNOWN_JOB, may_join, newest_known
from flowcheck.stages.rundir import RunDir

if TYPE_CHECKING:
    from flowcheck.wire.learn.jobs.late.amid import Expected


@dataclass(frozen=True, slots=True)
class Foreknown:
    """Contents of files; None: there is none of it."""

    job: bytes | None
    """For joining it amid its run."""
    model: bytes | None
    """What a stated one reduces, for a job whose start may not be seen."""
    units: bytes | None
    """Of a sharded model."""


def foreknown(
    own: Sequence[JobConfig], root: Path, expected: Sequence[Expected | None]
) -> list[Foreknown]:
    """[job] of each. To be read before run directories are made anew. own: [job] its settings;
    expected: [job], or () where no job is joined."""
    units = sharded_model(own[0])
    return [
        Foreknown(
            newest_known(config, RunDir(root).beside(number).root) if may_join(config) else None,
            None if model is None else msgspec.json.encode(model),
            None if units is None else msgspec.json.encode(units),
        )
        for number, (config, model) in enumerate(
            zip(own, expected or [None] * len(own), strict=True), 1
        )
    ]


def put(run: RunDir, config: JobConfig, known: Foreknown) -> None:
    """Into a run directory that was made just now. config: of this job."""
    if config.gradient_log.file is not None:
        ready_log(Path(config.gradient_log.file))  # of steps that no chain knows any more
    if known.job is not None:
        write_own(run.learned_folder / KNOWN_JOB, known.job)
    if known.model is not None:
        write_own(run.learned_folder / EXPECTED, known.model)
    run.units.unlink(missing_ok=True)
    if known.units is not None:
        write_own(run.units, known.units)
