"""The job file as one typed tree of settings, and its loading from TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.config.capture_config import (
    MirrorConfig,
    ParseConfig,
    RingConfig,
    ServicesConfig,
    SourceConfig,
    StagingConfig,
)
from flowcheck.config.config_decoding import ConfigSection, convert
from flowcheck.config.model_config import GradientLogConfig, ModelConfig, ReplicaConfig
from flowcheck.config.multi_job_config import (
    JobTableConfig,
    addresses,
    check_job_tables,
    check_last,
)
from flowcheck.config.optimizer_config import OptimizerConfig
from flowcheck.config.optimizer_validation import validate_optimizer
from flowcheck.config.persist_serve_config import PersistConfig, ServeConfig
from flowcheck.config.sharding_config import ShardedConfig
from flowcheck.config.watch_log_config import LogConfig, WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import NOT_STATED
from flowcheck.findings.catalog.refused_settings import (
    EMPTY_SOURCES,
    NO_SOURCE,
    NOT_TOML,
    ONE_FSDP_JOB,
    UNREADABLE,
    VERSION,
)
from flowcheck.optimizer_rules.torch_optimizers import NO_OPTIMIZER
from flowcheck.step_numbers import Step
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra, era_of, has_linear_ll128
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardingStyle


class JobConfig(ConfigSection, frozen=True, kw_only=True):
    """A whole job file."""

    source: tuple[SourceConfig, ...]
    """One per mirror port; `[[source]]` in TOML."""
    optimizer: OptimizerConfig | None = None
    jobs: int = 1
    """Data-parallel jobs on these ports, with the same settings: as many replicas are kept."""
    job: tuple[JobTableConfig, ...] = ()
    """In place of `jobs`, where settings differ; `[[job]]` in TOML, `[job.optimizer]` below it."""
    together: bool | None = None
    """The jobs are rings of one training job, kept and given back at a step that all of them have.
    By default so where they have the same settings."""
    hosts: tuple[str, ...] = ()
    """Addresses the job uses, as `flowcheck analyze` prints them: no other job is followed."""
    run: str = "/run/flowcheck/job"
    """Directory of this run: sockets, logs, the learned job, steps.jsonl."""
    learned: str | None = None
    """A job.json that another run learned, its weights.bin beside it: taken instead of learning.
    Edit it to override what was read wrongly; needed where the start-up was not captured."""
    nccl: str | None = None
    """NCCL's version in the trainers, "2.21.5": decides where the frames fit the partitions of
    several releases, as they may where no clear-to-send entries are mirrored."""
    nccl_log: str | None = None
    """What rank 0 of the trainers printed with NCCL_DEBUG=INFO: its lines "Channel 00/02 : 0 1 ..."
    tell how rings pass through the GPUs of a node, where sizes do not; its version stands for
    `nccl`."""
    ring_orders: tuple[RingOrder, ...] = ()
    """What was read in that log."""
    last_step: Step | None = None
    """Of the trainer's, where it is known: once the replica took it the job is over, and nothing of
    it need arrive any more."""
    checkpoint: str | None = None
    """Directory a checkpoint is written to when the chain stops."""
    digests: bool = False
    """Write sha256 of every gradient and of the parameters to steps.jsonl."""
    ring: RingConfig = RingConfig()
    parse: ParseConfig = ParseConfig()
    staging: StagingConfig = StagingConfig()
    model: ModelConfig = ModelConfig()
    sharded: ShardedConfig | None = None
    replica: ReplicaConfig = ReplicaConfig()
    gradient_log: GradientLogConfig = GradientLogConfig()
    persist: PersistConfig | None = None
    """Checkpoints while the chain runs, and a last one when it stops."""
    serve: ServeConfig | None = None
    """Steps over HTTP while the chain runs."""
    mirror: tuple[MirrorConfig, ...] = ()
    """Switch ports whose copies come by these; `[[mirror]]` in TOML."""
    watch: WatchConfig | None = None
    """Metrics, health and the page over HTTP while it runs."""
    log: LogConfig = LogConfig()
    services: ServicesConfig = ServicesConfig()
    """Their user."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError("source", (), EMPTY_SOURCES())
        if self.optimizer is None:
            raise ConfigError("optimizer", None, NOT_STATED())
        validate_optimizer(self.optimizer)
        check_last(self.last_step, *(own.last_step for own in self.job))
        check_job_tables(self.jobs, self.job)
        msgspec.structs.force_setattr(self, "hosts", addresses("hosts", self.hosts))
        if self.several and self.sharded is not None and self.sharded.style is ShardingStyle.FSDP:
            raise ConfigError("sharded", "", ONE_FSDP_JOB())
        try:
            _ = self.release
        except ValueError as error:
            raise ConfigError("nccl", self.nccl, VERSION(short="2.21", long="2.21.5")) from error

    @property
    def release(self) -> NcclEra | None:
        """The era of the stated NCCL version; None: no version is stated."""
        return era_of(self.nccl) if self.nccl is not None else None

    @property
    def stated(self) -> OperatorStatement | None:
        """What the wire may not tell; None: nothing of it is stated."""
        model = self.model.operator_statement or OperatorStatement()
        linear = has_linear_ll128(self.nccl) if self.nccl is not None else None
        told = msgspec.structs.replace(model, rings=self.ring_orders, linear=linear)
        return told if told != OperatorStatement() else None

    @property
    def late_join(self) -> bool:
        """Whether a job may be joined midstream."""
        stated = self.replica.joins
        return any(source.live for source in self.source) if stated is None else stated

    @property
    def wants_final_checkpoint(self) -> bool:
        """A checkpoint is asked for when the chain stops."""
        return self.checkpoint is not None or self.persist is not None

    @property
    def several(self) -> bool:
        """More than one job is followed."""
        return max(self.jobs, len(self.job)) > 1

    @property
    def rings(self) -> tuple[tuple[int, int], ...]:
        """(source number, queue) of every ring, by ring number."""
        return tuple((n, q) for n, source in enumerate(self.source) for q in range(source.queues))


def load_job(path: Path, *, sources: tuple[SourceConfig, ...] | None = None) -> JobConfig:
    """A job file, checked. Raises ConfigError naming the key and what would be right.

    sources: take the place of the file's own, which may then be left out.
    """
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError("job file", str(path), UNREADABLE(error.strerror)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("job file", str(path), NOT_TOML(error)) from error
    if sources is not None:
        tree["source"] = [
            {key: value for key, value in msgspec.to_builtins(source).items() if value is not None}
            for source in sources
        ]
    return job_from(tree)


def job_from(tree: dict[str, Any]) -> JobConfig:
    """The checked settings of a parsed job file."""
    own = tree.get("job", [])
    told = isinstance(own, list) and all(isinstance(o, dict) and "optimizer" in o for o in own)
    if "optimizer" not in tree and own and told:
        tree = tree | {"optimizer": own[0]["optimizer"]}
    if "optimizer" not in tree and "sharded" in tree:
        tree = tree | {"optimizer": {"name": NO_OPTIMIZER.name, "learning_rate": 0.0}}
    if not tree.get("source"):
        raise ConfigError("source", None, NO_SOURCE())
    return convert(tree, JobConfig)


def encode_config(config: JobConfig) -> bytes:
    """JSON for the run directory."""
    return msgspec.json.format(msgspec.json.encode(config), indent=1)


def decode_config(text: bytes) -> JobConfig:
    """What `encode_config` wrote."""
    return msgspec.json.decode(text, type=JobConfig)
