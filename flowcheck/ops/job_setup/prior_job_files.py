"""Files that tell the extractor what is known of a job before its first frame: the job that the
chain before this one followed, and models that the job file states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flowcheck.atomic_write import atomic_path
from flowcheck.config import JobConfig
from flowcheck.ops.job_setup.job_file_references import sharded_model
from flowcheck.private_files import write_private
from flowcheck.replica.state_file.gradient_log import prepare_log
from flowcheck.stages.job_learning.remembered_job import (
    REMEMBERED_JOB_FILE,
    STATED_MODEL_FILE,
    may_join_midstream,
    newest_remembered_job,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.operator_statements import ShardingStyle

if TYPE_CHECKING:
    from flowcheck.wire.learn.jobs.late.amid import Expected


@dataclass(frozen=True, slots=True)
class PriorJob:
    """Contents of files; None: there is none of it."""

    job: bytes | None
    """For joining it midstream."""
    model: bytes | None
    """What a stated one reduces, for a job whose start may not be seen."""
    units: bytes | None
    """Of a sharded model."""


def prior_jobs(
    own: Sequence[JobConfig], root: Path, expected: Sequence[Expected | None]
) -> list[PriorJob]:
    """[job] of each. To be read before run directories are made anew. own: [job] its settings;
    expected: [job], or () where no job is joined."""
    units = sharded_model(own[0])
    return [
        PriorJob(
            newest_remembered_job(config, RunDir(root).job_run_dir(number).root)
            if may_join_midstream(config)
            else None,
            None if model is None else msgspec.json.encode(model),
            None if units is None else msgspec.json.encode(units),
        )
        for number, (config, model) in enumerate(
            zip(own, expected or [None] * len(own), strict=True), 1
        )
    ]


def write_prior_job(run: RunDir, config: JobConfig, known: PriorJob) -> None:
    """Into a run directory that was made just now. config: of this job."""
    if config.gradient_log.file is not None:
        prepare_log(Path(config.gradient_log.file))  # of steps that no chain knows any more
    if known.job is not None:
        write_private(run.learned_folder / REMEMBERED_JOB_FILE, known.job)
    if known.model is not None:
        write_private(run.learned_folder / STATED_MODEL_FILE, known.model)
    run.units.unlink(missing_ok=True)
    if known.units is not None:
        write_private(run.units, known.units)
    _write_stated_start(run, config)


def _write_stated_start(run: RunDir, config: JobConfig) -> None:
    """The weights that a model starts with whose factory and seed are stated. Raises ConfigError
    where the factory does not work out."""
    run.stated_start.unlink(missing_ok=True)
    model, sharded = config.model, config.sharded
    if sharded is not None and sharded.style is ShardingStyle.HYBRID and sharded.seed is not None:
        from flowcheck.replica.sharding.hybrid_probe import write_start_weights

        assert sharded.mesh is not None, "checked when the file was read"
        with atomic_path(run.stated_start) as place:
            which = sharded.mesh, sharded.own_shard
            write_start_weights(sharded.factory, *which, sharded.seed, place)
    elif model.seed is not None:
        from flowcheck.replica.sharding.seeded_weights import write_seeded_weights

        assert model.factory is not None, "checked when the file was read"
        with atomic_path(run.stated_start) as place:
            write_seeded_weights(model.factory, model.factory_arguments, model.seed, place)
