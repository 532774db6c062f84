"""The trainer's learning-rate schedule: its own Python function, called as LambdaLR calls it."""

from __future__ import annotations

import math
from collections.abc import Callable

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.replica.user_code import callable_at, in_words

Rate = Callable[[int], float]
"""Learning rate of the step that follows so many steps."""

KEY = "optimizer.schedule"


def rate_of(config: OptimizerConfig) -> Rate:
    """The learning rate by number of steps already taken, as LambdaLR.get_lr computes it
    (torch/optim/lr_scheduler.py: base rate times the factor). Constant without a schedule.

    Raises ConfigError where the factory cannot be had, or does not give numbers.
    """
    base = config.learning_rate
    if config.schedule is None:
        return lambda step: base
    factor = _factor_of(config.schedule, config.schedule_arguments)

    def rate(step: int) -> float:
        value = factor(step)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(KEY, config.schedule, f"gave {value!r} at {step}")
        return base * value

    rate(0)
    return rate


def _factor_of(
    where: str, arguments: dict[str, float | int | str | bool]
) -> Callable[[int], object]:
    """What the factory at "package.module:function" or "file.py:function" returns."""
    factory = callable_at(KEY, where)
    try:
        factor: object = factory(**arguments)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(KEY, where, in_words(error)) from error
    if not callable(factor):
        raise ConfigError(KEY, where, f"returned {factor!r}, not a function")
    return factor
