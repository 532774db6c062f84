"""Settings of the trainer's optimizer: [optimizer] with its parameter groups, schedule,
clipping, scaler and averages."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flowcheck.config.config_decoding import ConfigSection
from flowcheck.optimizer_rules.optimizer_rule import OptimizerRule
from flowcheck.optimizer_rules.torch_optimizers import UNLISTED, rule_named

Plain = float | int | str | bool
"""Type of a factory's keyword arguments."""
Implementation = Literal["loop", "foreach", "fused"]


class GroupConfig(ConfigSection, frozen=True, kw_only=True):
    """One of torch's parameter groups, `[[optimizer.groups]]`. The tables stand in torch's order.
    Keys that are left out have the value of [optimizer]. Parameters that no table names form a
    last group."""

    parameters: tuple[str, ...] | Literal["rest"]
    """Patterns that choose the group's parameters: names with * and ? ("*.bias"), positions in
    registration order ("0", "3-7"), or numbers of dimensions ("ndim<2", "ndim>=2"). "rest": all
    parameters that no other table names."""
    learning_rate: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    amsgrad: bool | None = None
    maximize: bool | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys of torch's group for which this table has no key: { alpha = 0.9 }."""


class OptimizerPartConfig(GroupConfig, frozen=True, kw_only=True):
    """One of several optimizers over one model, `[[optimizer.each]]`. The tables stand in the order
    in which the script steps the optimizers. [optimizer] states what concerns the whole step:
    clipping, scaler, averages, master weights. Every parameter belongs to one of the optimizers."""

    name: str
    """A class of torch.optim, in any case."""
    key: str | None = None
    """Key of the optimizer's state in the trainer's checkpoint, where the script saves a dictionary
    {key: state}. None: the script saves a list."""
    implementation: Implementation | None = None
    groups: tuple[GroupConfig, ...] = ()
    """Parameter groups of this optimizer."""
    schedule: str | None = None
    schedule_arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", self.name.lower())


class AverageConfig(ConfigSection, frozen=True, kw_only=True):
    """torch.optim.swa_utils.AveragedModel over the parameters, updated after a step."""

    decay: float | None = None
    """Decay of get_ema_multi_avg_fn. None: all steps have the same weight, which is the default of
    AveragedModel."""
    foreach: bool = False
    """Without `decay`, true: the average uses get_swa_multi_avg_fn, which is AveragedModel's own
    choice on CUDA."""
    every: int = 1
    """The script calls update_parameters() after every n-th step."""
    start: int = 1
    """First step after which the script calls update_parameters()."""
    when_skipped: bool = True
    """True: the script calls update_parameters() also after a step that the scaler skipped."""


class ScalerConfig(ConfigSection, frozen=True, kw_only=True):
    """Arguments of torch.amp.GradScaler, and how the script calls it."""

    init_scale: float = 65536.0
    """Initial loss scale. This default and the next three are torch.amp.GradScaler's."""
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    unscale: bool | None = None
    """True: the script calls scaler.unscale_(optimizer) before the step. Otherwise fused kernels
    unscale gradients themselves, with another rounding. None: true where gradients are clipped."""


class ShardedGroup(ConfigSection, frozen=True, kw_only=True):
    """How DeepSpeed lays the parameters of one group end to end, and cuts them into parts."""

    ranks: int
    part_elements: int
    """Elements of a rank's part, padding included."""
    starts: tuple[tuple[int, int], ...]
    """(index of a parameter in registration order, its first element in the group), ascending."""


class OptimizerConfig(ConfigSection, frozen=True, kw_only=True):
    """The trainer's optimizer, as the training script states it. Packets show none of these
    settings. None means torch's default."""

    name: str = ""
    """Name of a class of torch.optim, in any case: "adamw". "none": FlowCheck computes no steps and
    takes the parameters from the packets."""
    factory: str | None = None
    """Function "file.py:function" that makes the optimizer, in place of `name` and the keys that
    describe it (class arguments, groups, each, schedule). FlowCheck calls it with the list of
    (name, parameter) of all trainable parameters, in the order of model.named_parameters(). It
    returns the optimizer, or (optimizer, scheduler). For several optimizers it returns a list, or a
    dictionary by the keys of their states in the trainer's checkpoint; or (optimizers, schedulers).
    """
    factory_arguments: dict[str, Plain] = msgspec.field(default_factory=dict)
    """Keyword arguments of the function `factory`."""
    implementation: Implementation | None = None
    """Which implementation of torch's optimizer the trainer runs: "loop", "foreach" or "fused".
    They round differently. None: torch's default, "loop" on a CPU and "foreach" on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that the trainer's optimizer runs on. Kernels of different devices round
    differently."""
    torch: str | None = None
    """The trainer's version of torch: "2.10.0". On GPUs torch 2.11 changed the fused kernels, and
    torch 2.10 the order in which norms are summed. None: 2.11 or newer."""
    learning_rate: float | None = None
    """Learning rate that the script makes the optimizer with. A schedule changes it."""
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    amsgrad: bool | None = None
    maximize: bool | None = None
    """True: the optimizer steps along the gradient instead of against it."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of torch's class for which this table has no key: { alpha = 0.9, centered = true }.
    """
    groups: tuple[GroupConfig, ...] = ()
    """Parameter groups with settings of their own. Empty: one group of all parameters."""
    each: tuple[OptimizerPartConfig, ...] = ()
    """Several optimizers over one model, such as Muon and AdamW, in place of `name`."""
    takes_frozen: bool = False
    """True: the script gives the optimizer frozen parameters too, AdamW(model.parameters()). The
    optimizer's state then numbers them as well."""
    schedule: str | None = None
    """A class of torch.optim.lr_scheduler ("OneCycleLR"), or a function "file.py:function" or
    "package.module:function". FlowCheck calls the function with `schedule_arguments`; it returns
    the function that LambdaLR takes, from the number of scheduler steps to the factor."""
    schedule_arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keyword arguments of the class or function that `schedule` names."""
    schedule_every: int = 1
    """Number of optimizer steps for each step of the scheduler. Where the scheduler steps once an
    epoch: the steps of an epoch."""
    schedule_when_skipped: bool = True
    """True: the script steps the scheduler also where the scaler skips the optimizer's step, as
    scripts do that call scheduler.step() after every iteration."""
    clip_norm: float | None = None
    """max_norm of torch.nn.utils.clip_grad_norm_, which the script calls with all parameters in
    registration order. None: the script does not clip by norm."""
    clip_norm_type: float = 2.0
    """norm_type of torch.nn.utils.clip_grad_norm_. inf: the norm is the largest element."""
    clip_error_if_nonfinite: bool = False
    """error_if_nonfinite of torch.nn.utils.clip_grad_norm_. True: the trainer ends where the norm
    is inf or NaN, and the replica stays at the step before."""
    clip_foreach: bool = True
    """False: the script calls torch.nn.utils.clip_grad_norm_ with foreach=False. On a GPU the last
    bit of a norm depends on it; on a CPU it does not."""
    clip_value: float | None = None
    """clip_value of torch.nn.utils.clip_grad_value_. With `clip_norm` too, the script clips by norm
    first."""
    clip_value_first: bool = False
    """True: the script clips by value before it clips by norm."""
    clip_alone: bool = False
    """With several jobs on a port, true: each job is clipped by the norm of its own gradients."""
    clip_together: bool = False
    """With several rings of one job, true: gradients are clipped by the norm over all rings. A
    parameter counts once in every ring that holds it, as in Megatron-LM
    (replica/optimizer/gradient_clipping.py)."""
    clip_order: tuple[int, ...] = ()
    """Numbers of all jobs, in the order in which the trainer sums their squared norms: the first
    two are added first. The last bit of a sum of more than two may depend on the order. Empty:
    ascending numbers are assumed where it does."""
    clip_wait_s: float = 600.0
    """Seconds that a ring waits for the norms of the other rings before all of them stop. A choice:
    longer reports a dead ring later, shorter stops all rings for a slow one."""
    threads: int = 1
    """Number of torch's threads in the trainer (torch.get_num_threads()). The last bits of a norm,
    and of parameters with two bytes per element, depend on it. torchrun's default is 1."""
    clip_threads: int | None = None
    """The earlier name of `threads`. Where it is stated it takes precedence."""
    synced_backwards: int = 1
    """Backward passes with an all-reduce per step: more than 1 where the script accumulates
    gradients without no_sync. The gradient of the last pass includes the earlier ones."""
    gradient_divisor: float = 1.0
    """Number by which the trainer divides gradients after the all-reduce: the number of ranks where
    it sums first and divides then. 1 for DistributedDataParallel, which divides before."""
    master_dtype: Literal["float32"] | None = None
    """Dtype of master weights. The optimizer steps master weights, which are copied from the
    parameters at the start; the model's parameters are the rounded master weights. None: there are
    no master weights."""
    rounding: str | None = None
    """Function "file.py:function" that rounds master weights to parameters, in place of rounding to
    nearest. FlowCheck calls it with the master weight, the step and the parameter's name; it
    returns the parameter."""
    sharded_groups: tuple[ShardedGroup, ...] = ()
    """Groups of a DeepSpeed ZeRO job whose whole state is followed. FlowCheck fills this in from
    [sharded] where `clip_norm` is stated, which is gradient_clipping of DeepSpeed then."""
    scaler: ScalerConfig | None = None
    """The trainer's gradient scaler. If stated, gradients in packets are of a scaled loss."""
    average: AverageConfig | None = None
    """Moving averages of the parameters."""

    def __post_init__(self) -> None:
        """Puts the name in lower case, whether it comes from a job file, a manifest or code, so
        that names can be compared."""
        msgspec.structs.force_setattr(self, "name", self.name.lower())

    @property
    def per_optimizer(self) -> tuple[OptimizerConfig, ...]:
        """The settings of each optimizer, one after the other: its own keys, and the keys of the
        whole step. With one optimizer: these settings themselves."""
        shared = set(msgspec.structs.asdict(self)) - {"parameters", "key"}
        return tuple(
            msgspec.structs.replace(
                self,
                each=(),
                **{k: v for k, v in msgspec.structs.asdict(own).items() if k in shared},
            )
            for own in self.each
        ) or (self,)

    @property
    def rule(self) -> OptimizerRule:
        """The rule for the optimizer's class. UNLISTED for a factory and for several optimizers;
        `per_optimizer` gives the settings, and so the rule, of each."""
        return UNLISTED if self.factory is not None or self.each else rule_named(self.name)

    @property
    def computes_steps(self) -> bool:
        """Whether FlowCheck computes steps. False: it takes the parameters from the packets."""
        return self.rule.computes_steps

    @property
    def per_element(self) -> bool:
        """Whether what a step makes of one element of the gradient stays with that element: by the
        rule of each optimizer, without a norm over all, a loss scale that skips whole steps, or
        code of the user's that rounds."""
        whole = self.clip_norm is not None or self.scaler is not None or self.rounding is not None
        own = all(part.rule.per_element for part in self.per_optimizer)
        return own and not whole and not self.clip_together

    @property
    def kernels(self) -> Implementation:
        """The implementation that the trainer runs: the stated one, or torch's default."""
        return self.implementation or ("loop" if self.device == "cpu" else "foreach")

    @property
    def torch_threads(self) -> int:
        """Number of torch's threads in the trainer."""
        return self.threads if self.clip_threads is None else self.clip_threads

    @property
    def skips(self) -> bool:
        """Whether the scaler may skip the optimizer's step in an iteration."""
        return self.scaler is not None


CLASS_ARGUMENTS = tuple(
    key
    for key in OptimizerConfig.__struct_fields__
    if key in GroupConfig.__struct_fields__ and key != "arguments"
)
"""Keys of [optimizer] and of its groups that are arguments of torch's class, by their names in job
files."""
