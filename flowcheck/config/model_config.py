"""Settings of the model, its replica and its gradient log: [model], [replica] and
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
    NEEDS_OTHER,
    ONE_OF,
)
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import (
    OperatorStatement,
    ShardCut,
    StatedTensor,
)

ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""{dtype by torch's name: bytes per element}, for the dtypes that a replica can hold."""


class ModelConfig(ConfigSection, frozen=True, kw_only=True):
    """Facts about the model's parameters that packets do not show."""

    names: tuple[str, ...] = ()
    """Names of the parameters, in registration order. Default: param.0, param.1, ..."""
    dtype: str | None = None
    """Dtype of all parameters, "float32" or "bfloat16". Needed where two dtypes have the element
    size that FlowCheck found."""
    dtypes: tuple[str, ...] = ()
    """Dtypes of the parameters, in place of `dtype`, where the model mixes dtypes. Each has another
    element size; FlowCheck finds each parameter's element size in the packets."""
    gradient_dtype: str | None = None
    """Dtype that a communication hook compresses gradients to: "float16" for fp16_compress_hook,
    "bfloat16" for bf16_compress_hook."""
    factory: str | None = None
    """Function that returns the module: "file.py:function" or "package.module:function". FlowCheck
    calls it on torch's meta device and takes names and dtypes from the module, and also sizes where
    no packet shows them."""
    factory_arguments: dict[str, float | int | str | bool] = msgspec.field(default_factory=dict)
    """Keyword arguments of the function `factory`."""
    seed: int | None = None
    """Of a trainer without DistributedDataParallel that broadcasts no weights: what the script
    gives torch.manual_seed before it calls the factory. The replica starts with the weights that
    the factory then makes on a CPU."""
    loss: str | None = None
    """Function "file.py:function" that takes the module and returns a loss. FlowCheck runs the
    loss's backward pass to learn the order of gradients. Used only where the start-up of
    DistributedDataParallel was not captured."""
    bucket_cap_mb: float | None = None
    """bucket_cap_mb of DistributedDataParallel, in MiB, where the trainer sets it. Used together
    with `loss`."""
    find_unused_parameters: bool = False
    """find_unused_parameters of DistributedDataParallel. Used together with `loss`."""
    parameters: tuple[Parameter, ...] = ()
    """Trainable parameters in registration order. FlowCheck fills this in from the factory; a job
    file may state it instead."""
    everything: tuple[StatedTensor, ...] = ()
    """All parameters, also frozen ones, and buffers, as in the start-up broadcasts. FlowCheck fills
    this in from the factory; a job file may state it instead."""
    keys: tuple[tuple[str, str], ...] = ()
    """(key of the module's state_dict, name of its tensor in `everything`)."""
    ready: tuple[int, ...] | None = None
    """Indices into `parameters`, in the order in which the backward pass of `loss` made their
    gradients."""
    padding: tuple[Parameter, ...] = ()
    """Zeros that are summed among the gradients. FlowCheck fills this in from the factory of
    [sharded]."""
    groups: tuple[tuple[int, ...], ...] = ()
    """[all-reduce of an iteration] indices into `parameters`, and behind them into `padding`, in
    their order in the tensor. FlowCheck fills this in from the factory of [sharded]."""
    cuts: tuple[ShardCut, ...] = ()
    """[parameter] which part of it the replica has; (): all of each. FlowCheck fills this in from
    the factory of [sharded]."""
    order: Literal["registration", "reversed"] | tuple[str, ...] = ()
    """Order in which a trainer without DistributedDataParallel sums its gradients, one by one or in
    flat buffers: "registration", "reversed", or the names of all parameters in order. Needed where
    sizes leave the order open."""

    @property
    def operator_statement(self) -> OperatorStatement | None:
        """The model as the operator states it, for trainers whose packets do not show it. None: no
        parameters are stated."""
        every = range(len(self.parameters))
        if isinstance(self.order, str):
            order = tuple(every if self.order == "registration" else reversed(every))
        else:
            order = tuple(self.names.index(name) for name in self.order) if self.names else ()
        if not self.parameters:
            return None
        unsent = self.seed is not None
        own_sums = bool(self.groups) or unsent
        typed = ELEMENT_BYTES[self.gradient_dtype] if own_sums and self.gradient_dtype else 0
        own = {parameter.element_bytes for parameter in self.parameters}
        return OperatorStatement(
            parameters=self.parameters,
            module_tensors=self.everything,
            order=order,
            padding=self.padding,
            groups=self.groups,
            gradient_element_bytes=0 if own == {typed} else typed,
            weights_unsent=bool(self.groups) or unsent,
        )

    def __post_init__(self) -> None:
        if self.factory_arguments and self.factory is None:
            raise ConfigError("model.factory_arguments", "", FACTORY_FOR_ARGUMENTS("model.factory"))
        if self.seed is not None and self.factory is None:
            raise ConfigError("model.seed", self.seed, NEEDS_OTHER("model.factory"))
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
    """The replica: FlowCheck's copy of the model and its optimizer state."""

    keep_bytes: int = 512 << 20
    """Bytes of memory for earlier steps, beside the newest step and the step in progress. FlowCheck
    keeps as many whole steps as fit. They serve a job that restarts from an earlier step, and the
    audit of an earlier step. A choice: more reaches further back."""

    awaits_base: bool = False
    """True: the trainer starts from a checkpoint of its own, so its optimizer already has a state.
    The replica then waits until `flowcheck base` gives it this state."""

    joins: bool | None = None
    """True: FlowCheck follows a known job also where its start, or steps in between, were not
    captured. Its gradients then wait for a base (`flowcheck base`). None: true where a source is
    live."""

    threads: int | None = None
    """Number of threads that compute steps. None: one less than the CPUs this process may use."""

    cpus: tuple[int, ...] = ()
    """Numbers of the CPUs that these threads are pinned to. Empty: the kernel chooses."""

    def __post_init__(self) -> None:
        at_least("replica.keep_bytes", self.keep_bytes, 0)
        if self.threads is not None:
            at_least("replica.threads", self.threads, 1)


class GradientLogConfig(ConfigSection, frozen=True, kw_only=True):
    """The gradient log: gradients wait in it while FlowCheck does not know the optimizer's state.
    It can also keep gradients of steps that the replica has applied (`taken_steps`)."""

    memory_bytes: int = 512 << 20
    """Bytes of memory for waiting gradients, reserved when the first one arrives. A choice: what
    does not fit goes to `file`."""
    file: str | None = None
    """File for gradients that no longer fit in memory. None: the replica stops when memory is
    full."""
    file_bytes: int = 16 << 30
    """Bytes of disk that `file` may take. A choice: when it is full, the replica stops at its last
    good step."""
    taken_steps: int = 0
    """Number of applied steps whose gradients stay in memory: at least this number, at most twice
    as many. When the trainer's checkpoint of such a step replaces the replica's state, FlowCheck
    applies the later steps again from these gradients. 0: none are kept."""
    folder: str | None = None
    """Folder on a disk for the gradients of applied steps: with a saved checkpoint (`[persist]`)
    they give each later step again after the chain or the machine has died (`flowcheck restore
    --checkpoint SAVED --gradients FOLDER`). No step waits for the disk, but each takes the updater
    the time to copy its gradient in memory, and more on a busy machine. None: they are kept in no
    folder."""
    folder_bytes: int = 64 << 30
    """Bytes of disk that `folder` may take; the oldest steps are dropped. It should hold the steps
    between two saves. A choice: 64 GiB is 40 steps of 400 million parameters in float32."""

    def __post_init__(self) -> None:
        at_least("gradient_log.memory_bytes", self.memory_bytes, 0)
        at_least("gradient_log.file_bytes", self.file_bytes, 0)
        at_least("gradient_log.taken_steps", self.taken_steps, 0)
        at_least("gradient_log.folder_bytes", self.folder_bytes, 1)
