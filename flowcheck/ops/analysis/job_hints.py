"""What the user states about the job for `analyze` (model, NCCL log, job file), and where the
capture contradicts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.config import JobTableConfig, ModelConfig, SourceConfig
from flowcheck.findings.catalog.capture_file_problems import OTHER_MODEL
from flowcheck.findings.finding import Finding
from flowcheck.ops.job_setup.checked_job_file import load_checked_job
from flowcheck.ops.job_setup.job_file_references import (
    read_nccl_log,
    sharded_model,
    with_factory_model,
)
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents
from flowcheck.stages.job_learning.job_file_match import unlike_hosts
from flowcheck.stages.job_state.model_layout import stated_model_mismatch
from flowcheck.wire.collectives.nccl_debug_log import other_job_finding
from flowcheck.wire.collectives.nccl_parameters import NcclEra, era_of, has_linear_ll128
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHints:
    """Statements about the job, from options or from a job file."""

    stated: OperatorStatement | None = None
    nccl_era: NcclEra | None = None
    blocks: tuple[int, ...] = ()
    sharded: ShardedTraining | None = None
    factory: str | None = None
    """Name of the model factory that gave `stated.parameters`; None: no factory."""
    jobs: tuple[JobTableConfig, ...] = ()
    """Jobs of a job file that state their hosts."""

    def read(self, tape: CaptureContents) -> Reading:
        """What the capture contains, read with these statements."""
        return read_stream(
            tape.flows,
            tape.messages,
            stated=self.stated,
            release=self.nccl_era,
            blocks=self.blocks,
            parted=self.sharded,
        )

    def contradictions(self, reading: Reading) -> list[Finding]:
        """Findings about statements that the capture contradicts, so that they describe another
        job."""
        stated = self.stated or OperatorStatement()
        told: list[Finding] = []
        if self.factory is not None and reading.job is not None:
            unlike = stated_model_mismatch(reading.job, stated.parameters)
            told += (
                [OTHER_MODEL(factory=self.factory, mismatch=unlike)] if unlike is not None else []
            )
        ranks = [collective.ranks for collective in reading.collectives if collective.ring]
        other = other_job_finding(stated.rings, ranks)
        told += [other] if other is not None else []
        found = [part.job for part in reading.parts if part.job is not None]
        return [*told, *unlike_hosts(self.jobs, found)]


def hints_from_options(model: str | None, nccl_log: Path | None) -> JobHints:
    """Statements from the options --model and --nccl-log. Raises ConfigError for a factory or log
    that cannot be used."""
    stated = (
        with_factory_model(ModelConfig(factory=model)).operator_statement
        if model is not None
        else None
    )
    if nccl_log is None:
        return JobHints(stated=stated, factory=model)
    logged = read_nccl_log("--nccl-log", nccl_log)
    told = msgspec.structs.replace(
        stated or OperatorStatement(),
        rings=logged.orders,
        linear=has_linear_ll128(logged.version) if logged.version is not None else None,
    )
    release = era_of(logged.version) if logged.version is not None else None
    return JobHints(stated=told, nccl_era=release, factory=model)


def hints_from_job_file(job: Path, files: Sequence[Path]) -> JobHints:
    """Statements from a job file. files: the captures, for error messages. Raises ConfigError for
    an invalid job file."""
    config = load_checked_job(job, sources=tuple(SourceConfig(file=str(file)) for file in files))
    sharded = sharded_model(config)
    return JobHints(
        stated=config.stated,
        nccl_era=config.release,
        blocks=() if sharded is None else tuple(u.block_bytes for u in sharded.units),
        sharded=None if sharded is None else sharded.sharded_wire,
        factory=config.model.factory,
        jobs=config.job or (JobTableConfig(hosts=config.hosts),),
    )
