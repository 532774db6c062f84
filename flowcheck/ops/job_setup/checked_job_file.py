"""A job file as a chain runs it: read, with all that it names looked for and checked."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flowcheck.config import JobConfig, SourceConfig, load_job, naming_job_file
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_commands import LEARNED_MISSING
from flowcheck.ops.job_setup.hybrid_job_model import with_hybrid_model
from flowcheck.ops.job_setup.job_file_references import (
    check_optimizers_of_jobs,
    with_factory_model,
    with_nccl_log,
    with_zero_groups,
)
from flowcheck.ops.job_setup.multi_job_setup import with_factory_models
from flowcheck.replica.preflight.optimizer_preflight import check_optimizer


def load_checked_job(path: Path, *, sources: tuple[SourceConfig, ...] | None = None) -> JobConfig:
    """`load_job`, and the Python functions and the log it names are looked for: before training
    begins is when somebody can still mend them. Raises ConfigError."""
    with naming_job_file(path):
        return _checked(load_job(path, sources=sources))


def _checked(config: JobConfig) -> JobConfig:
    assert config.optimizer is not None, "checked when the file was read"
    if config.learned is not None and not Path(config.learned).exists():
        raise ConfigError("learned", config.learned, LEARNED_MISSING())
    for own in (config.optimizer, *(own.optimizer for own in config.job)):
        if own is not None and own.factory is None:
            check_optimizer(own)
    config = with_hybrid_model(with_nccl_log(with_factory_models(config)))
    for table, served in (("watch", config.watch), ("serve", config.serve)):
        if served is not None:
            from flowcheck.vault.http_support.tls_context import server_tls
            from flowcheck.vault.serve.step_server import read_token

            server_tls(served, table)
            if served.token_file is not None:
                read_token(served.token_file)
    if config.persist is not None:
        from flowcheck.vault.checkpoint_formats.checkpoint_io import check_save_format
        from flowcheck.vault.erasure.target_choice import check_target

        check_target(config.persist)
        check_save_format(config.persist)
    if config.model.factory is not None:
        made = with_factory_model(config.model, joins=config.late_join or config.whole_zero)
        config = with_zero_groups(msgspec.structs.replace(config, model=made))
    check_optimizers_of_jobs(config)
    return config
