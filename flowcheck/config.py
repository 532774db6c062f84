"""The one tree of settings: typed, with units and reasons; TOML in, checked values out."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.optimizer import OptimizerConfig, check_optimizer
from flowcheck.strict import Section, at_least, convert
from flowcheck.wire.job import Parameter
from flowcheck.wire.stated import Stated
from flowcheck.wire.terms import Rule, rule_of

__all__ = [
    "ELEMENT_BYTES",
    "GradientLogConfig",
    "JobConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParseConfig",
    "ReplicaConfig",
    "RingConfig",
    "SourceConfig",
    "StagingConfig",
    "decode_config",
    "encode_config",
    "job_from",
    "load_job",
]

SLOTS_MAX = 1 << 26
CACHE_LINE_BYTES = 64
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Of the dtypes a replica may hold, by torch's names."""


class SourceConfig(Section, frozen=True, kw_only=True):
    """Where frames come from: exactly one of pci, vdev, interface, file."""

    pci: str | None = None
    """A NIC port by PCI address, "0000:3b:00.0"."""
    vdev: str | None = None
    """A DPDK virtual device with its arguments, "net_pcap0,rx_pcap=x.pcap"."""
    interface: str | None = None
    """A kernel interface by name, captured through net_af_packet."""
    file: str | None = None
    """A pcap or pcapng file; waits for the chain instead of dropping."""
    queues: int = 1
    """RX queues; each feeds a ring of its own."""
    engines: tuple[str, ...] = ()
    """Copy engines (dmadev names or PCI addresses); none: the CPU copies."""
    speed: float | None = None
    """Files only: pace by the time stamps, 1.0 as recorded; None: as fast as it goes."""
    idle_us: int = 50
    """Sleep of an idle capture loop; 0 spins, for a core of its own."""
    frames: int | None = None
    """End after so many frames; a file through DPDK has no end of its own."""

    @property
    def live(self) -> bool:
        """A full ring means drop and count, not wait."""
        return self.file is None and not (self.vdev or "").startswith("net_pcap")

    def __post_init__(self) -> None:
        kinds = [k for k in ("pci", "vdev", "interface", "file") if getattr(self, k) is not None]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise ConfigError("source", found, "name exactly one of pci, vdev, interface, file")
        at_least("source.queues", self.queues, 1)
        at_least("source.idle_us", self.idle_us, 0)
        if self.speed is not None and self.speed <= 0:
            raise ConfigError("source.speed", self.speed, "must be above 0")


class RingConfig(Section, frozen=True, kw_only=True):
    """Shared memory between capture and extraction, one ring per RX queue."""

    slots: int = 1 << 16
    """Frames a ring holds; a power of two so that positions mask to slots."""
    slot_bytes: int = 4352
    """Room for one frame and its 64-byte header; path MTU 4096 with encapsulation fits."""

    def __post_init__(self) -> None:
        if self.slots & (self.slots - 1) or not 2 <= self.slots <= SLOTS_MAX:
            raise ConfigError("ring.slots", self.slots, f"must be a power of two up to {SLOTS_MAX}")
        if self.slot_bytes % CACHE_LINE_BYTES or not 128 <= self.slot_bytes <= 65536:
            raise ConfigError(
                "ring.slot_bytes", self.slot_bytes, "must be a multiple of 64 from 128 to 65536"
            )


class ParseConfig(Section, frozen=True, kw_only=True):
    """How frames are read."""

    icrc_every: int = 1
    """Check the ICRC of every n-th frame; 0 of none."""

    def __post_init__(self) -> None:
        at_least("parse.icrc_every", self.icrc_every, 0)


class StagingConfig(Section, frozen=True, kw_only=True):
    """Where payloads wait until their plan is proved."""

    size_bytes: int = 256 << 20
    """Per ring. Must hold the start-up broadcast and iteration 0 as they lie on the wire."""

    def __post_init__(self) -> None:
        at_least("staging.size_bytes", self.size_bytes, 1 << 20)


class ModelConfig(Section, frozen=True, kw_only=True):
    """What the wire does not tell about the parameters."""

    names: tuple[str, ...] = ()
    """In registration order; default param.0, param.1, ..."""
    dtype: str | None = None
    """torch's name without the prefix, where two fit one element size: "float32", "bfloat16"."""
    dtypes: tuple[str, ...] = ()
    """In place of `dtype` where parameters are of several; which has which, the wire tells."""
    gradient_dtype: str | None = None
    """Of what a hook compresses gradients into: "float16" (fp16_compress_hook), "bfloat16"
    (bf16_compress_hook)."""
    factory: str | None = None
    """A function that makes the module, "file.py:function" or "package.module:function", called on
    torch's meta device: names and types come from it, and sizes where no trainer tells them."""
    factory_arguments: dict[str, float | int | str | bool] = msgspec.field(default_factory=dict)
    """Keyword arguments of the factory."""
    parameters: tuple[Parameter, ...] = ()
    """Those that take gradients, in registration order: what the factory gave, or as stated."""
    order: Literal["registration", "reversed"] | tuple[str, ...] = ()
    """Of the gradients that a trainer without DistributedDataParallel sums, one by one or in flat
    buffers, where sizes leave it open; or all names in that order."""

    @property
    def stated(self) -> Stated | None:
        """The model, for trainers that do not tell theirs; None where it is not stated."""
        every = range(len(self.parameters))
        if isinstance(self.order, str):
            order = tuple(every if self.order == "registration" else reversed(every))
        else:
            order = tuple(self.names.index(name) for name in self.order) if self.names else ()
        return Stated(parameters=self.parameters, order=order) if self.parameters else None

    def __post_init__(self) -> None:
        if self.factory_arguments and self.factory is None:
            raise ConfigError(
                "model.factory_arguments", "", "are of a factory: state model.factory"
            )
        stated = {"dtype": self.dtype, "gradient_dtype": self.gradient_dtype}
        for key, value in (*stated.items(), *(("dtypes", one) for one in self.dtypes)):
            if value is not None and value not in ELEMENT_BYTES:
                raise ConfigError(f"model.{key}", value, f"is one of {', '.join(ELEMENT_BYTES)}")
        if self.dtype is not None and self.dtypes:
            raise ConfigError("model.dtypes", self.dtypes, "is in place of model.dtype: state one")
        if len({ELEMENT_BYTES[one] for one in self.dtypes}) < len(self.dtypes):
            right = "two of one size: which parameter has which, the wire does not tell"
            raise ConfigError("model.dtypes", self.dtypes, right)
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise ConfigError("model.names", twice[0], "is the name of two parameters")


class ReplicaConfig(Section, frozen=True, kw_only=True):
    """The state of the model and its optimizer."""

    keep_bytes: int = 512 << 20
    """Memory for whole steps beside the newest and the one being made, as many as fit: what a job
    that comes back from an older step, and an audit of a step gone by, ask for."""

    awaits_base: bool = False
    """The trainer itself resumes: its optimizer has a state, which `flowcheck base` gives."""

    def __post_init__(self) -> None:
        at_least("replica.keep_bytes", self.keep_bytes, 0)


class GradientLogConfig(Section, frozen=True, kw_only=True):
    """Where gradients wait while a job's optimizer state is not known."""

    memory_bytes: int = 512 << 20
    """Taken only when the first one comes."""
    file: str | None = None
    """Goes on there when memory is full; without it the replica stops there."""
    file_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        at_least("gradient_log.memory_bytes", self.memory_bytes, 0)
        at_least("gradient_log.file_bytes", self.file_bytes, 0)


class JobConfig(Section, frozen=True, kw_only=True):
    """A whole job file."""

    source: tuple[SourceConfig, ...]
    """One per mirror port; `[[source]]` in TOML."""
    optimizer: OptimizerConfig | None = None
    run: str = "/run/flowcheck/job"
    """Directory of this run: sockets, logs, the learned job, steps.jsonl."""
    learned: str | None = None
    """A job.json that another run learned, its weights.bin beside it: taken instead of learning.
    Edit it to override what was read wrongly; needed where the start-up was not captured."""
    nccl: str | None = None
    """NCCL's version in the trainers, "2.21.5": decides where the frames fit the partitions of
    several releases, as they may where no clear-to-send entries are mirrored."""
    checkpoint: str | None = None
    """Directory a checkpoint is written to when the chain stops."""
    digests: bool = False
    """Write sha256 of every gradient and of the parameters to steps.jsonl."""
    ring: RingConfig = RingConfig()
    parse: ParseConfig = ParseConfig()
    staging: StagingConfig = StagingConfig()
    model: ModelConfig = ModelConfig()
    replica: ReplicaConfig = ReplicaConfig()
    gradient_log: GradientLogConfig = GradientLogConfig()

    def __post_init__(self) -> None:
        if not self.source:
            raise ConfigError("source", (), "state at least one [[source]] of frames")
        if self.optimizer is None:
            raise ConfigError(
                "optimizer",
                None,
                "the optimizer never crosses the wire: state the trainer's in [optimizer], "
                'such as name = "adamw", learning_rate = 1e-4',
            )
        check_optimizer(self.optimizer)
        try:
            _ = self.release
        except ValueError as error:
            raise ConfigError("nccl", self.nccl, 'state it as "2.21" or "2.21.5"') from error

    @property
    def release(self) -> Rule | None:
        """The era of the stated NCCL version; None where none is stated."""
        return rule_of(self.nccl) if self.nccl is not None else None

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
        raise ConfigError("job file", str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("job file", str(path), f"is not TOML: {error}") from error
    if sources is not None:
        tree["source"] = [
            {key: value for key, value in msgspec.to_builtins(source).items() if value is not None}
            for source in sources
        ]
    return job_from(tree)


def job_from(tree: dict[str, Any]) -> JobConfig:
    """The checked settings of a parsed job file."""
    return convert(tree, JobConfig)


def encode_config(config: JobConfig) -> bytes:
    """JSON for the run directory."""
    return msgspec.json.format(msgspec.json.encode(config), indent=1)


def decode_config(text: bytes) -> JobConfig:
    """What `encode_config` wrote."""
    return msgspec.json.decode(text, type=JobConfig)
