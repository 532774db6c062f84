"""Several data-parallel jobs on the same mirror ports: the settings of each, and its run
directory below the first one's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.config import (
    JobConfig,
    JobTableConfig,
    check_clip_scope,
    check_jobs_distinguishable,
    encode_config,
)
from flowcheck.errors import naming_file
from flowcheck.ops.job_setup.job_file_references import with_factory_model
from flowcheck.ops.job_setup.prior_job_files import PriorJob, write_prior_job
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.private_files import make_folder, write_private
from flowcheck.stages.run_directory.job_run_dirs import job_count, job_folder_name
from flowcheck.stages.run_directory.run_dir import RunDir


def with_factory_models(config: JobConfig) -> JobConfig:
    """What each of several jobs states, with what its factory gives. Raises ConfigError."""
    if not config.several or config.all_shards:
        return config
    made = tuple(
        msgspec.structs.replace(own, model=with_factory_model(own.model, joins=config.late_join))
        if own.model is not None and own.model.factory is not None
        else own
        for own in config.job
    )
    check_jobs_distinguishable(made)
    for own in made or (JobTableConfig(),):
        check_clip_scope(own.optimizer or config.optimizer, job_count(config), made)
    return msgspec.structs.replace(config, job=made)


def job_settings(config: JobConfig, number: int) -> JobConfig:
    """Of one of the jobs, from 1; the settings themselves where there is but one."""
    if not config.several and not config.job:
        return config
    own = config.job[number - 1] if config.job else JobTableConfig()
    folder = None
    if config.checkpoint is not None:
        folder = str(Path(config.checkpoint) / job_folder_name(config, number))
    persist = config.persist
    if persist is not None:
        below = job_folder_name(config, number)
        target = f"{persist.target.rstrip('/')}/{below}"
        targets = tuple(f"{one.rstrip('/')}/{below}" for one in persist.targets)
        persist = msgspec.structs.replace(persist, target=target, targets=targets)
    log = config.gradient_log
    if log.file is not None and number > 1:
        log = msgspec.structs.replace(log, file=f"{log.file}.{number}")
    if log.folder is not None:
        own_folder = Path(log.folder) / job_folder_name(config, number)
        log = msgspec.structs.replace(log, folder=str(own_folder))
    sharded = config.sharded
    if sharded is not None and config.all_shards:
        sharded = msgspec.structs.replace(sharded, shard=number - 1)
    return msgspec.structs.replace(
        config,
        sharded=sharded,
        optimizer=own.optimizer or config.optimizer,
        model=own.model or config.model,
        hosts=own.hosts or config.hosts,
        last_step=own.last_step or config.last_step,
        together=not config.job if config.together is None else config.together,
        checkpoint=folder,
        gradient_log=log,
        persist=persist,
        serve=config.serve if number == 1 else None,
    )


def create_further_run_dirs(
    config: JobConfig, run: RunDir, mount: Path, known: Sequence[PriorJob]
) -> None:
    """Run directories and staging of the further jobs; rings and flow tables are the first one's.
    known: [job]. Raises ConfigError or RingError, leaving nothing behind."""
    made: list[RunDir] = []
    try:
        for number in range(2, job_count(config) + 1):
            folder = run.job_run_dir(number).root
            make_folder(folder.parent)
            own = RunDir.create(folder, mount)
            made.append(own)
            with naming_file(folder):
                (folder / "port").unlink(missing_ok=True)
                (folder / "port").symlink_to(run.root.resolve())
                settings = job_settings(config, number)
                write_private(own.config, encode_config(settings))
                write_prior_job(own, settings, known[number - 1])
            for ring in range(len(config.rings)):
                Staging.create(
                    own.staging(ring),
                    messages=2 * config.ring.slots,
                    data_bytes=config.staging.size_bytes,
                ).close()
    except BaseException:
        for own in made:
            own.remove()
        raise
