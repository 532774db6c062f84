"""What `analyze` is told of a capture beside its frames, and what of it these contradict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.config import ModelConfig, OwnConfig, SourceConfig
from flowcheck.ops.running.stated import log_at, sharded_model, with_factory
from flowcheck.plane.tape import Tape
from flowcheck.stages.learning.fitting import unlike_hosts
from flowcheck.stages.updating.model import unlike_stated
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.logged import of_another_job
from flowcheck.wire.parted import Parted
from flowcheck.wire.stated import Stated
from flowcheck.wire.terms import Rule, is_linear, rule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Statements, however they were made."""

    stated: Stated | None = None
    release: Rule | None = None
    blocks: tuple[int, ...] = ()
    parted: Parted | None = None
    factory: str | None = None
    """Of `stated.parameters`."""
    jobs: tuple[OwnConfig, ...] = ()
    """Of a job file, where hosts are stated."""

    def read(self, tape: Tape) -> Reading:
        return read_stream(
            tape.flows,
            tape.messages,
            stated=self.stated,
            release=self.release,
            blocks=self.blocks,
            parted=self.parted,
        )

    def unlike(self, reading: Reading) -> list[str]:
        """What is stated and of another job."""
        stated = self.stated or Stated()
        told = []
        if self.factory is not None and reading.job is not None:
            unlike = unlike_stated(reading.job, stated.parameters)
            told += [f"{self.factory}: {unlike}"] if unlike else []
        ranks = [collective.ranks for collective in reading.collectives if collective.ring]
        other = of_another_job(stated.rings, ranks)
        told += [other] if other else []
        found = [part.job for part in reading.parts if part.job is not None]
        return [*told, *unlike_hosts(self.jobs, found)]


def by_options(model: str | None, nccl_log: Path | None) -> Asked:
    """Raises ConfigError."""
    stated = with_factory(ModelConfig(factory=model)).stated if model is not None else None
    if nccl_log is None:
        return Asked(stated=stated, factory=model)
    logged = log_at("--nccl-log", nccl_log)
    told = msgspec.structs.replace(
        stated or Stated(),
        rings=logged.orders,
        linear=is_linear(logged.version) if logged.version is not None else None,
    )
    release = rule_of(logged.version) if logged.version is not None else None
    return Asked(stated=told, release=release, factory=model)


def by_job(job: Path, files: Sequence[Path]) -> Asked:
    """All that a job file states. Raises ConfigError."""
    from flowcheck.ops.running.chain import job_to_run

    config = job_to_run(job, sources=tuple(SourceConfig(file=str(file)) for file in files))
    sharded = sharded_model(config)
    return Asked(
        stated=config.stated,
        release=config.release,
        blocks=() if sharded is None else tuple(u.block_bytes for u in sharded.units),
        parted=None if sharded is None else sharded.parted,
        factory=config.model.factory,
        jobs=config.job or (OwnConfig(hosts=config.hosts),),
    )
