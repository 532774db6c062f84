"""The job file as one typed tree of settings, and its loading from TOML."""

from __future__ import annotations

from contextlib import AbstractContextManager
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
from flowcheck.config.config_decoding import ConfigSection, convert, refuse_unknown_keys
from flowcheck.config.model_config import (
    GradientLogConfig,
    ModelConfig,
    ReplicaConfig,
)
from flowcheck.config.multi_job_config import (
    JobTableConfig,
    addresses,
    check_job_tables,
    check_last,
)
from flowcheck.config.optimizer_config import OptimizerConfig
from flowcheck.config.optimizer_validation import validate_optimizer
from flowcheck.config.persist_serve_config import PersistConfig, ServeConfig
from flowcheck.config.replica_copies_config import CopiesConfig, GradientsConfig
from flowcheck.config.setting_line import naming_file_and_line
from flowcheck.config.sharding_config import ShardedConfig
from flowcheck.config.toml_file import read_toml
from flowcheck.config.watch_log_config import AuditConfig, HookConfig, LogConfig, WatchConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import NOT_STATED, TABLE_NOT_NAME
from flowcheck.findings.catalog.refused_settings import (
    ADDRESSES_FOR_JOBS,
    COPIES_OF_ONE_JOB,
    EMPTY_SOURCES,
    IS_LAYOUT_FILE,
    LEARNED_FOR_LOGS,
    LEARNED_FROM_CHAIN,
    LOGS_BESIDE_SOURCES,
    LOGS_OF_ONE_JOB,
    NO_SOURCE,
    NOT_OF_ALL_SHARDS,
    ONE_FSDP_JOB,
    OTHER_SCALER,
    SHARDS_ARE_JOBS,
    VERSION,
)
from flowcheck.findings.named_run import DEFAULT_RUN
from flowcheck.optimizer_rules.torch_optimizers import NO_OPTIMIZER, followed_names
from flowcheck.step_numbers import Step
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra, era_of, has_linear_ll128
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardingStyle


class JobConfig(ConfigSection, frozen=True, kw_only=True):
    """A whole job file."""

    source: tuple[SourceConfig, ...] = ()
    """Sources of frames, one per mirror port; `[[source]]` in TOML."""
    optimizer: OptimizerConfig | None = None
    jobs: int = 1
    """Number of data-parallel jobs on these ports that share all settings. Each has a replica."""
    job: tuple[JobTableConfig, ...] = ()
    """One table per job, in place of `jobs`, where the jobs' settings differ; `[[job]]` in TOML,
    with `[job.optimizer]` below it."""
    together: bool | None = None
    """True: the jobs are rings of one training job. They are saved and restored at a step that all
    of them have. None: true where the jobs have the same settings."""
    hosts: tuple[str, ...] = ()
    """IP addresses that the job uses, as `flowcheck analyze` prints them. Jobs on other addresses
    are ignored. Empty: any job is followed."""
    run: str = DEFAULT_RUN
    """Run directory: it holds sockets, logs, the learned job and steps.jsonl."""
    learned: str | None = None
    """A job.json that another run learned, with weights.bin in the same folder. FlowCheck uses it
    and learns nothing itself. Needed where the job's start-up was not captured; edit the file to
    correct what FlowCheck learned wrongly."""
    nccl: str | None = None
    """NCCL's version in the trainers: "2.21.5". It decides where the frames fit the chunk layout of
    several NCCL releases. That can happen where clear-to-send messages are not mirrored."""
    nccl_log: str | None = None
    """File with what rank 0 of the trainers printed under NCCL_DEBUG=INFO. FlowCheck reads the
    order of the GPUs in each ring from lines such as "Channel 00/02 : 0 1 ...", for where message
    sizes leave the order open. NCCL's version in the file takes the place of `nccl`."""
    ring_orders: tuple[RingOrder, ...] = ()
    """Ring orders that FlowCheck read from the file `nccl_log`."""
    last_step: Step | None = None
    """Number of the trainer's last step, where it is known. When the replica has applied it, the
    job is over; FlowCheck then waits for no further packets of the job."""
    checkpoint: str | None = None
    """Directory for the checkpoint that is written when the chain stops."""
    digests: bool = False
    """True: steps.jsonl has the sha256 of every gradient and of the parameters after each step."""
    ring: RingConfig = RingConfig()
    parse: ParseConfig = ParseConfig()
    staging: StagingConfig = StagingConfig()
    model: ModelConfig = ModelConfig()
    sharded: ShardedConfig | None = None
    replica: ReplicaConfig = ReplicaConfig()
    gradient_log: GradientLogConfig = GradientLogConfig()
    gradients: GradientsConfig | None = None
    """Other chains, or their gradient logs, as the source of gradients, in place of `source`."""
    persist: PersistConfig | None = None
    """Saves checkpoints while the chain runs, and a last one when it stops."""
    serve: ServeConfig | None = None
    """Serves steps over HTTP while the chain runs."""
    copies: CopiesConfig | None = None
    """Gives the changes of the replica to chains on other machines that keep a copy of it."""
    mirror: tuple[MirrorConfig, ...] = ()
    """Switch ports whose traffic is mirrored to the sources; `[[mirror]]` in TOML."""
    watch: WatchConfig | None = None
    """Serves metrics, health and a web page over HTTP while the chain runs."""
    audit: AuditConfig | None = None
    """Compares the trainer's checkpoints with the replica as they appear in a folder."""
    hook: HookConfig | None = None
    """Asks the trainer for the values of elements whose packets were lost, while the chain runs."""
    log: LogConfig = LogConfig()
    services: ServicesConfig = ServicesConfig()
    """The user that the chain's processes run as."""

    def __post_init__(self) -> None:
        self._check_origin()
        if self.optimizer is None:
            raise ConfigError("optimizer", None, NOT_STATED())
        if self.whole_zero and self.optimizer.scaler is not None:
            raise ConfigError("optimizer.scaler", self.optimizer.scaler.init_scale, OTHER_SCALER())
        if self.whole_zero and self.optimizer.master_dtype is None:
            # Its optimizer steps float32 copies of whatever the model has.
            masters = msgspec.structs.replace(self.optimizer, master_dtype="float32")
            msgspec.structs.force_setattr(self, "optimizer", masters)
        if self.all_shards and self.optimizer.clip_norm is not None:
            # torch's clip_grad_norm_ takes the norm of whole DTensors.
            clipped = msgspec.structs.replace(self.optimizer, clip_together=True)
            msgspec.structs.force_setattr(self, "optimizer", clipped)
        validate_optimizer(self.optimizer)
        check_last(self.last_step, *(own.last_step for own in self.job))
        self._add_shards()
        check_job_tables(self.jobs, self.job)
        msgspec.structs.force_setattr(self, "hosts", addresses("hosts", self.hosts))
        if self.all_shards and (self.audit is not None or self.hook is not None):
            key = "audit.folder" if self.audit is not None else "hook"
            raise ConfigError(key, "", NOT_OF_ALL_SHARDS())
        style = self.sharded.style if self.sharded is not None else None
        if self.several and style is ShardingStyle.FSDP:
            raise ConfigError("sharded", "", ONE_FSDP_JOB())
        if self.several and style is ShardingStyle.HYBRID and not self.all_shards:
            raise ConfigError("sharded", "", ADDRESSES_FOR_JOBS())
        if style is ShardingStyle.HYBRID and not self.optimizer.computes_steps:
            raise ConfigError("optimizer", None, NOT_STATED())
        try:
            _ = self.release
        except ValueError as error:
            raise ConfigError("nccl", self.nccl, VERSION(short="2.21", long="2.21.5")) from error

    def _add_shards(self) -> None:
        """Makes a job of each shard where all are followed."""
        if not self.all_shards or self.job:
            return
        assert self.sharded is not None
        own = tuple(
            JobTableConfig(name=f"shard-{number}", hosts=(address,))
            for number, address in enumerate(self.sharded.addresses)
        )
        msgspec.structs.force_setattr(self, "job", own)
        msgspec.structs.force_setattr(self, "together", True)

    def _check_origin(self) -> None:
        """Checks that the file states one origin of gradients: `source`, or `gradients` with all
        it needs. Raises ConfigError."""
        if self.copies is not None and self.several:
            raise ConfigError("copies", self.copies.port, COPIES_OF_ONE_JOB())
        if self.gradients is None:
            if not self.source:
                raise ConfigError("source", (), EMPTY_SOURCES())
            return
        if self.source:
            raise ConfigError("gradients", self.gradients.logs, LOGS_BESIDE_SOURCES())
        if self.gradients.chains and self.learned is not None:
            raise ConfigError("learned", self.learned, LEARNED_FROM_CHAIN())
        if self.learned is None and self.gradients.logs:
            raise ConfigError("learned", None, LEARNED_FOR_LOGS())
        if self.several:
            raise ConfigError("gradients", self.gradients.logs, LOGS_OF_ONE_JOB())

    @property
    def release(self) -> NcclEra | None:
        """The NCCL era of the version that `nccl` states; None: `nccl` is not stated."""
        return era_of(self.nccl) if self.nccl is not None else None

    @property
    def stated(self) -> OperatorStatement | None:
        """What the operator states about the job because packets may not show it; None: the file
        states nothing of this kind."""
        model = self.model.operator_statement or OperatorStatement()
        ready = self.model.ready or ()
        if self.whole_zero and not model.order and len(ready) == len(model.parameters):
            # Its stage 2 sums gradients as the backward pass finishes them.
            model = msgspec.structs.replace(model, order=ready)
        if self.whole_zero and self.sharded is not None:
            most = self.sharded.bucket_elements
            model = msgspec.structs.replace(model, bucket_elements=most)
        linear = has_linear_ll128(self.nccl) if self.nccl is not None else None
        told = msgspec.structs.replace(
            model, rings=self.ring_orders, linear=linear, steps_masters=self.whole_zero
        )
        return told if told != OperatorStatement() else None

    @property
    def whole_zero(self) -> bool:
        """Whether the file states all that the whole state of a ZeRO job is followed by."""
        sharded, optimizer = self.sharded, self.optimizer
        zero = sharded is not None and sharded.style is ShardingStyle.ZERO
        stated = self.model.factory is not None or bool(self.model.parameters)
        return zero and stated and optimizer is not None and optimizer.computes_steps

    @property
    def all_shards(self) -> bool:
        """Whether the jobs are all shards of one model (hybrid sharding)."""
        return self.sharded is not None and bool(self.sharded.addresses)

    @property
    def late_join(self) -> bool:
        """Whether FlowCheck may join a job in the middle of its training."""
        stated = self.replica.joins
        return any(source.live for source in self.source) if stated is None else stated

    @property
    def wants_final_checkpoint(self) -> bool:
        """Whether the file asks for a checkpoint when the chain stops."""
        return self.checkpoint is not None or self.persist is not None

    @property
    def several(self) -> bool:
        """Whether the file states more than one job."""
        return max(self.jobs, len(self.job)) > 1

    @property
    def rings(self) -> tuple[tuple[int, int], ...]:
        """(source number, RX queue) of every ring, in the order of ring numbers."""
        return tuple((n, q) for n, source in enumerate(self.source) for q in range(source.queues))


def load_job(path: Path, *, sources: tuple[SourceConfig, ...] | None = None) -> JobConfig:
    """Reads and checks a job file. Raises ConfigError that names the key and what it must be.

    sources: replace the sources of the file, which may then state none.
    """
    tree = read_toml(path, "job file", "job file")
    if "cable" in tree or "monitor" in tree:
        tables = [f"[[{key}]]" for key in ("cable", "monitor") if key in tree]
        raise ConfigError("job file", str(path), IS_LAYOUT_FILE(tables=tables, file=path))
    if sources is not None:
        tree["source"] = [
            {key: value for key, value in msgspec.to_builtins(source).items() if value is not None}
            for source in sources
        ]
    with naming_job_file(path):
        return job_from(tree)


def naming_job_file(path: Path) -> AbstractContextManager[None]:
    """A ConfigError from within about a key of the job file names the file and the line."""
    return naming_file_and_line(path, JobConfig)


def job_from(tree: dict[str, Any]) -> JobConfig:
    """The checked settings of a job file whose TOML is parsed. Raises ConfigError."""
    refuse_unknown_keys(tree, JobConfig)  # first, for a misspelt table looks like a missing one
    if isinstance(name := tree.get("optimizer"), str):
        raise ConfigError("optimizer", name, TABLE_NOT_NAME(followed_names()))
    _refuse_beside_addresses(tree)
    own = tree.get("job", [])
    told = isinstance(own, list) and all(isinstance(o, dict) and "optimizer" in o for o in own)
    if "optimizer" not in tree and own and told:
        tree = tree | {"optimizer": own[0]["optimizer"]}
    if "optimizer" not in tree and "sharded" in tree:
        tree = tree | {"optimizer": {"name": NO_OPTIMIZER.name, "learning_rate": 0.0}}
    if not tree.get("source") and "gradients" not in tree:
        raise ConfigError("source", None, NO_SOURCE())
    return convert(tree, JobConfig)


def _refuse_beside_addresses(tree: dict[str, Any]) -> None:
    """Raises ConfigError where a file tells shards apart twice."""
    sharded = tree.get("sharded")
    if not isinstance(sharded, dict) or not sharded.get("addresses"):
        return
    for key in ("jobs", "job", "hosts", "together"):
        if key in tree:
            raise ConfigError(key, str(tree[key]), SHARDS_ARE_JOBS())
    if "shard" in sharded:
        raise ConfigError("sharded.shard", sharded["shard"], SHARDS_ARE_JOBS())


def encode_config(config: JobConfig) -> bytes:
    """The settings as JSON, for the run directory."""
    return msgspec.json.format(msgspec.json.encode(config), indent=1)


def decode_config(text: bytes) -> JobConfig:
    """Reads the settings from JSON that `encode_config` wrote."""
    return msgspec.json.decode(text, type=JobConfig)
