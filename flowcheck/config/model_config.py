"""Settings of the model, its replica and the gradient log: [model], [replica] and
[gradient_log]."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from flowcheck.config.config_decoding import ConfigSection, at_least
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    DTYPE_TWICE,
    DTYPES_OF_ONE_SIZE,
    FACTORY_FOR_ARGUMENTS,
    NAME_TWICE,
    ONE_OF,
)
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement, StatedTensor

ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Of the dtypes a replica may hold, by torch's names."""


class ModelConfig(ConfigSection, frozen=True, kw_only=True):
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
    loss: str | None = None
    """"file.py:function", called with the module, a loss: its backward tells the order of gradients
    where DistributedDataParallel's start-up was not seen."""
    bucket_cap_mb: float | None = None
    """DistributedDataParallel's there, where it is not torch's default."""
    find_unused_parameters: bool = False
    """And this."""
    parameters: tuple[Parameter, ...] = ()
    """Those that take gradients, in registration order: what the factory gave, or as stated."""
    everything: tuple[StatedTensor, ...] = ()
    """Frozen parameters and buffers as well, as the start-up broadcasts have them: what the factory
    gave, or as stated."""
    keys: tuple[tuple[str, str], ...] = ()
    """Of the module's state_dict, each with its tensor's name in `module_tensors`."""
    ready: tuple[int, ...] | None = None
    """Parameters in the order in which the backward of `loss` made their gradients."""
    order: Literal["registration", "reversed"] | tuple[str, ...] = ()
    """Of the gradients that a trainer without DistributedDataParallel sums, one by one or in flat
    buffers, where sizes leave it open; or all names in that order."""

    @property
    def operator_statement(self) -> OperatorStatement | None:
        """The model, for trainers that do not tell theirs; None where it is not stated."""
        every = range(len(self.parameters))
        if isinstance(self.order, str):
            order = tuple(every if self.order == "registration" else reversed(every))
        else:
            order = tuple(self.names.index(name) for name in self.order) if self.names else ()
        if not self.parameters:
            return None
        return OperatorStatement(
            parameters=self.parameters, module_tensors=self.everything, order=order
        )

    def __post_init__(self) -> None:
        if self.factory_arguments and self.factory is None:
            raise ConfigError("model.factory_arguments", "", FACTORY_FOR_ARGUMENTS("model.factory"))
        stated = {"dtype": self.dtype, "gradient_dtype": self.gradient_dtype}
        for key, value in (*stated.items(), *(("dtypes", one) for one in self.dtypes)):
            if value is not None and value not in ELEMENT_BYTES:
                raise ConfigError(f"model.{key}", value, ONE_OF(tuple(ELEMENT_BYTES)))
        if self.dtype is not None and self.dtypes:
            raise ConfigError("model.dtypes", self.dtypes, DTYPE_TWICE())
        if len({ELEMENT_BYTES[one] for one in self.dtypes}) < len(self.dtypes):
            raise ConfigError("model.dtypes", self.dtypes, DTYPES_OF_ONE_SIZE())
        twice = sorted(name for name, count in Counter(self.names).items() if count > 1)
        if twice:
            raise ConfigError("model.names", twice[0], NAME_TWICE())


class ReplicaConfig(ConfigSection, frozen=True, kw_only=True):
    """The state of the model and its optimizer."""

    keep_bytes: int = 512 << 20
    """Memory for whole steps beside the newest and the one being made, as many as fit: what a job
    that comes back from an older step, and an audit of a step gone by, ask for."""

    awaits_base: bool = False
    """The trainer itself resumes: its optimizer has a state, which `flowcheck base` gives."""

    joins: bool | None = None
    """Go on with a job that is known where its start, or steps between, were not seen: what it
    sends waits for a base. By default where a source is live."""

    threads: int | None = None
    """That take the steps; by default as many as there are CPUs to run on, but one."""

    cpus: tuple[int, ...] = ()
    """Where these threads are pinned, by their numbers; without them the kernel chooses."""

    def __post_init__(self) -> None:
        at_least("replica.keep_bytes", self.keep_bytes, 0)
        if self.threads is not None:
            at_least("replica.threads", self.threads, 1)


class GradientLogConfig(ConfigSection, frozen=True, kw_only=True):
    """Where gradients wait while a job's optimizer state is not known, and stay for a while."""

    memory_bytes: int = 512 << 20
    """Bytes of memory. Taken only when the first one comes. A choice: what does not fit goes to
    the file."""
    file: str | None = None
    """Goes on there when memory is full; without it the replica stops there."""
    file_bytes: int = 16 << 30
    """Bytes on disk. A choice: when full, the replica stops at its last good step."""
    taken_steps: int = 0
    """So many steps at least, twice as many at most, keep their gradients in memory once they were
    taken: on a file of the trainer's of one of them those behind it are taken again."""

    def __post_init__(self) -> None:
        at_least("gradient_log.memory_bytes", self.memory_bytes, 0)
        at_least("gradient_log.file_bytes", self.file_bytes, 0)
        at_least("gradient_log.taken_steps", self.taken_steps, 0)


class GradientsConfig(ConfigSection, frozen=True, kw_only=True):
    """`[gradients]`, in place of `[[source]]`: the replica is stepped from gradient logs that
    chains on other machines write, and this chain captures nothing."""

    logs: tuple[str, ...]
    """Files that `[gradient_log]` of a chain that follows the job names, in any order; they may
    overlap, and may still be written."""
