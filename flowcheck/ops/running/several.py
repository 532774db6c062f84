"""Several data-parallel jobs on the same mirror ports: a replica for each, in a run directory of
its own below the first one's, with extractor and updater of its own behind the same capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, OwnConfig, check_clip, check_told_apart, encode_config
from flowcheck.errors import naming
from flowcheck.ops.running.foreknown import Foreknown, put
from flowcheck.ops.running.stated import with_factory
from flowcheck.plane.staging import Staging
from flowcheck.private_files import make_folder, write_own
from flowcheck.stages.jobs import count, folder_of
from flowcheck.stages.rundir import RunDir


def with_factories(config: JobConfig) -> JobConfig:
    """What each of several jobs states, with what its factory gives. Raises ConfigError."""
    if not config.several:
        return config
    made = tuple(
        msgspec.structs.replace(own, model=with_factory(own.model, joins=config.joins))
        if own.model is not None and own.model.factory is not None
        else own
        for own in config.job
    )
    check_told_apart(made)
    for own in made or (OwnConfig(),):
        check_clip(own.optimizer or config.optimizer, count(config), made)
    return msgspec.structs.replace(config, job=made)


def own_settings(config: JobConfig, number: int) -> JobConfig:
    """Of one of the jobs, from 1; the settings themselves where there is but one."""
    if not config.several and not config.job:
        return config
    own = config.job[number - 1] if config.job else OwnConfig()
    folder = None
    if config.checkpoint is not None:
        folder = str(Path(config.checkpoint) / folder_of(config, number))
    persist = config.persist
    if persist is not None:
        target = f"{persist.target.rstrip('/')}/{folder_of(config, number)}"
        persist = msgspec.structs.replace(persist, target=target)
    log = config.gradient_log
    if log.file is not None and number > 1:
        log = msgspec.structs.replace(log, file=f"{log.file}.{number}")
    return msgspec.structs.replace(
        config,
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


def create_beside(config: JobConfig, run: RunDir, mount: Path, known: Sequence[Foreknown]) -> None:
    """Run directories and staging of the further jobs; rings and flow tables are the first one's.
    known: [job]. Raises ConfigError or RingError, leaving nothing behind."""
    made: list[RunDir] = []
    try:
        for number in range(2, count(config) + 1):
            folder = run.beside(number).root
            make_folder(folder.parent)
            own = RunDir.create(folder, mount)
            made.append(own)
            with naming(folder):
                (folder / "port").unlink(missing_ok=True)
                (folder / "port").symlink_to(run.root.resolve())
                settings = own_settings(config, number)
                write_own(own.config, encode_config(settings))
                put(own, settings, known[number - 1])
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
