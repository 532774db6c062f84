"""The table of the job file that nothing on the wire can stand in for: the trainer's optimizer."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.strict import Section, at_least


class OptimizerConfig(Section, frozen=True, kw_only=True):
    """The trainer's optimizer, as its script states it; nothing of this crosses the wire. One that
    has several parameter groups with settings of their own, or trains beside a second one, is not
    stated so: its replica is another from the first step on, and only an audit tells."""

    name: Literal["sgd", "adam", "adamw", "none"]
    """none: parameters are followed as they are sent, no step is computed."""
    implementation: Literal["loop", "foreach", "fused"] = "loop"
    """Which of torch's arithmetics the trainer runs; they round differently. CPU default: loop."""
    learning_rate: float
    """As the trainer's optimizer is made with; a schedule multiplies it."""
    schedule: str | None = None
    """LambdaLR's function: "file.py:factory" or "package.module:factory", which is called with
    `schedule_arguments` and returns the factor by number of steps taken."""
    schedule_arguments: dict[str, float | int | str | bool] = msgspec.field(default_factory=dict)
    """Keyword arguments of the factory."""
    clip_norm: float | None = None
    """Of torch.nn.utils.clip_grad_norm_ over all parameters, in registration order."""
    clip_alone: bool = False
    """Of several jobs on a port each is clipped by the norm of its own parameters."""
    clip_together: bool = False
    """Of the two rings of one job: by the norm over the parameters of both, each counted in every
    ring that holds it, as Megatron-LM sums it (replica/rules/clipping.py)."""
    clip_threads: int = 1
    """torch's threads in the trainer: a norm's last bits depend on them. torchrun's default: 1."""
    synced_backwards: int = 1
    """Backward passes with an all-reduce per step: accumulation without no_sync. The last one's
    gradient holds the earlier ones."""
    gradient_divisor: float = 1.0
    """By which the trainer itself divides what was reduced: the number of ranks where it sums and
    divides afterwards. DistributedDataParallel divides before: 1."""
    momentum: float = 0.0
    """SGD only."""
    dampening: float = 0.0
    """SGD only: of the momentum."""
    nesterov: bool = False
    """SGD only; needs a momentum and no dampening."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam and AdamW only: decay of the running averages."""
    eps: float = 1e-8
    """Adam and AdamW only: added to the denominator."""
    weight_decay: float | None = None
    """None: torch's own default for the optimizer (0 for SGD and Adam, 0.01 for AdamW)."""
    amsgrad: bool = False
    """Adam and AdamW only."""
    maximize: bool = False
    """Steps along the gradient instead of against it."""


def check_optimizer(optimizer: OptimizerConfig) -> None:
    """What torch would refuse at the first step is refused before anything starts."""
    for key in ("learning_rate", "momentum", "dampening", "eps", "weight_decay"):
        value = getattr(optimizer, key)
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"optimizer.{key}", value, "must be a finite number")
    if not (math.isfinite(optimizer.gradient_divisor) and optimizer.gradient_divisor > 0):
        value = optimizer.gradient_divisor
        raise ConfigError("optimizer.gradient_divisor", value, "must be a number above 0")
    at_least("optimizer.clip_threads", optimizer.clip_threads, 1)
    at_least("optimizer.synced_backwards", optimizer.synced_backwards, 1)
    if optimizer.clip_norm is not None and not optimizer.clip_norm > 0:
        raise ConfigError("optimizer.clip_norm", optimizer.clip_norm, "must be above 0")
    if optimizer.clip_together and (optimizer.clip_alone or optimizer.gradient_divisor != 1.0):
        other = "clip_alone" if optimizer.clip_alone else "gradient_divisor"
        raise ConfigError("optimizer.clip_together", True, f"does not go with {other}")
    if optimizer.learning_rate < 0:
        raise ConfigError("optimizer.learning_rate", optimizer.learning_rate, "must be 0 or more")
    if optimizer.nesterov and (optimizer.momentum <= 0 or optimizer.dampening):
        raise ConfigError("optimizer.nesterov", True, "needs a momentum and no dampening")
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        raise ConfigError("optimizer.betas", optimizer.betas, "must be from 0 to below 1")
    if optimizer.name != "sgd" and (optimizer.momentum or optimizer.nesterov):
        raise ConfigError("optimizer.momentum", optimizer.momentum, f"{optimizer.name} has none")
