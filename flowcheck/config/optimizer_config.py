"""Settings of the trainer's optimizer: [optimizer] with its parameter groups, schedule,
clipping, scaler and averages."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flowcheck.config.config_decoding import ConfigSection
from flowcheck.optimizer_rules.optimizer_rule import OptimizerRule
from flowcheck.optimizer_rules.torch_optimizers import UNLISTED, rule_named

Plain = float | int | str | bool
"""Of a factory's keyword arguments."""
Implementation = Literal["loop", "foreach", "fused"]


class GroupConfig(ConfigSection, frozen=True, kw_only=True):
    """One of torch's parameter groups, `[[optimizer.groups]]`, in torch's order; what it does not
    state, [optimizer] states. Parameters of no table are a group behind them."""

    parameters: tuple[str, ...] | Literal["rest"]
    """Names with * and ? ("*.bias"), places in the order of registration ("0", "3-7"), or numbers
    of dimensions ("ndim<2", "ndim>=2"). "rest": those of no other table."""
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
    """Keys of torch's group that have none of their own here."""


class OptimizerPartConfig(GroupConfig, frozen=True, kw_only=True):
    """One of several optimizers over one model, `[[optimizer.each]]`, in the order in which the
    script steps them. What is of the whole step (clips, scale, averages, masters), [optimizer]
    states. Every parameter is of one of them."""

    name: str
    """A class of torch.optim, in any case."""
    key: str | None = None
    """The key of its state in a file where the script saves {key: state}; of none: a list."""
    implementation: Implementation | None = None
    groups: tuple[GroupConfig, ...] = ()
    """Of its own parameters."""
    schedule: str | None = None
    schedule_arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", self.name.lower())


class AverageConfig(ConfigSection, frozen=True, kw_only=True):
    """torch.optim.swa_utils.AveragedModel over the parameters, updated behind a step."""

    decay: float | None = None
    """Of get_ema_multi_avg_fn; None: all steps weigh the same, as AveragedModel does by default."""
    foreach: bool = False
    """Without a decay: get_swa_multi_avg_fn, which AveragedModel takes on CUDA by itself."""
    every: int = 1
    """update_parameters() behind every n-th step."""
    start: int = 1
    """The first step it is called behind."""
    when_skipped: bool = True
    """Also behind a step that the scaler skipped."""


class ScalerConfig(ConfigSection, frozen=True, kw_only=True):
    """torch.amp.GradScaler, and in which order the script calls it."""

    init_scale: float = 65536.0
    """torch.amp.GradScaler has the same default, as the next three."""
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    unscale: bool | None = None
    """The script calls scaler.unscale_(optimizer) before its step, which fused kernels else do
    themselves, and round otherwise. None: where gradients are clipped."""


class OptimizerConfig(ConfigSection, frozen=True, kw_only=True):
    """The trainer's optimizer, as its script states it; nothing of this crosses the wire. What is
    None is as torch has it by default."""

    name: str = ""
    """A class of torch.optim, in any case: "adamw". none: parameters are followed as they are sent,
    no step is computed."""
    factory: str | None = None
    """In place of all that follows up to the schedule: "file.py:function", called with the list of
    (name, parameter) of those that take gradients, as model.named_parameters() gives them; returns
    the optimizer, or (optimizer, scheduler); of several a list of them, or a dictionary by the keys
    of their states in a file, alone or as (optimizers, schedulers)."""
    factory_arguments: dict[str, Plain] = msgspec.field(default_factory=dict)
    """Keyword arguments of the factory."""
    implementation: Implementation | None = None
    """Which of torch's arithmetics the trainer runs; they round differently. None: torch's default,
    the for-loop on a CPU, foreach on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the trainer's optimizer runs: its kernels there round as no other device's."""
    torch: str | None = None
    """The trainer's version of torch, "2.10.0": fused kernels for GPUs changed in 2.11. None: 2.11
    or newer."""
    learning_rate: float | None = None
    """As the trainer's optimizer is made with; a schedule changes it."""
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    amsgrad: bool | None = None
    maximize: bool | None = None
    """Steps along the gradient instead of against it."""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of torch's class, what has no key of its own: { alpha = 0.9, centered = true }."""
    groups: tuple[GroupConfig, ...] = ()
    """Parameter groups with settings of their own; none: one of all."""
    each: tuple[OptimizerPartConfig, ...] = ()
    """Several optimizers over one model, as Muon beside AdamW; in place of a name."""
    takes_frozen: bool = False
    """It was given frozen parameters as well, AdamW(model.parameters()), and numbers them too."""
    schedule: str | None = None
    """A class of torch.optim.lr_scheduler ("OneCycleLR"), or LambdaLR's function: "file.py:factory"
    or "package.module:factory", called with `schedule_arguments`, which returns the factor by
    number of applied steps."""
    schedule_arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keyword arguments of the class or the factory."""
    schedule_every: int = 1
    """Steps between two of the schedule: those of an epoch where it steps once an epoch."""
    schedule_when_skipped: bool = True
    """It steps also where the scaler skips the optimizer's step, as scripts do that call it
    behind every iteration."""
    clip_norm: float | None = None
    """Of torch.nn.utils.clip_grad_norm_ over all parameters, in registration order."""
    clip_norm_type: float = 2.0
    """Its norm_type; inf is the largest element."""
    clip_error_if_nonfinite: bool = False
    """The trainer ends where the norm is inf or NaN: the replica stays before that step."""
    clip_value: float | None = None
    """Of torch.nn.utils.clip_grad_value_; behind the norm where both are stated."""
    clip_value_first: bool = False
    """Before the norm."""
    clip_alone: bool = False
    """Of several jobs on a port each is clipped by the norm of its own parameters."""
    clip_together: bool = False
    """Of the rings of one job: by the norm over the parameters of all, each counted in every ring
    that holds it, as Megatron-LM sums it (replica/optimizer/gradient_clipping.py)."""
    clip_order: tuple[int, ...] = ()
    """All jobs by number, as their squares are summed, the first two first: the last bit of a sum
    of more than two may depend on it. Without it such a step rests on their own order."""
    clip_wait_s: float = 600.0
    """Seconds. The most that a ring waits for the norms of the others, before all of them stop.
    A choice: longer tells of a dead ring later, shorter stops all for a slow one."""
    threads: int = 1
    """torch's in the trainer: the last bits of a norm, and of parameters of two bytes an element,
    depend on them. torchrun's default: 1."""
    clip_threads: int | None = None
    """What `threads` was called before."""
    synced_backwards: int = 1
    """Backward passes with an all-reduce per step: accumulation without no_sync. The last one's
    gradient holds the earlier ones."""
    gradient_divisor: float = 1.0
    """By which the trainer itself divides what was reduced: the number of ranks where it sums and
    divides afterwards. DistributedDataParallel divides before: 1."""
    master_dtype: Literal["float32"] | None = None
    """The optimizer steps copies of the parameters in this type, made of them at the start; the
    model's are those, rounded."""
    rounding: str | None = None
    """"file.py:function" in place of rounding to nearest from masters: called with the master, the
    step and the parameter's name, returns the parameter."""
    scaler: ScalerConfig | None = None
    """Gradients on the wire are of a scaled loss."""
    average: AverageConfig | None = None
    """Moving averages of the parameters."""

    def __post_init__(self) -> None:
        """Wherever it comes from, a job file, a manifest or code, its name is in lower case from
        here on: all that compare it, and what it is told apart by, see one spelling."""
        msgspec.structs.force_setattr(self, "name", self.name.lower())

    @property
    def per_optimizer(self) -> tuple[OptimizerConfig, ...]:
        """Of each optimizer that is stated its own settings beside those of the whole step; itself
        where that is one."""
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
        """What is known of its class. Of a script's own factory, and of several optimizers taken
        together, nothing; `per_optimizer` has those of each."""
        return UNLISTED if self.factory is not None or self.each else rule_named(self.name)

    @property
    def computes_steps(self) -> bool:
        """False: parameters are followed as they are sent."""
        return self.rule.computes_steps

    @property
    def kernels(self) -> Implementation:
        """Which implementation it is, stated or not."""
        return self.implementation or ("loop" if self.device == "cpu" else "foreach")

    @property
    def torch_threads(self) -> int:
        """In the trainer."""
        return self.threads if self.clip_threads is None else self.clip_threads

    @property
    def skips(self) -> bool:
        """A step of the stream may be none of the optimizer's."""
        return self.scaler is not None


CLASS_ARGUMENTS = tuple(
    key
    for key in OptimizerConfig.__struct_fields__
    if key in GroupConfig.__struct_fields__ and key != "arguments"
)
"""Keys of [optimizer] and of its groups that are arguments of torch's class, by names of ours."""
