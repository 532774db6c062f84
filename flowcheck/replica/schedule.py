"""The trainer's learning-rate schedule: its own Python function, called as LambdaLR calls it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.replica.user_code import file_module

Rate = Callable[[int], float]
"""Learning rate of the step that follows so many steps."""


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
            raise ConfigError("optimizer.schedule", config.schedule, f"gave {value!r} at {step}")
        return base * value

    rate(0)
    return rate


def _factor_of(
    where: str, arguments: dict[str, float | int | str | bool]
) -> Callable[[int], object]:
    """What the factory at "package.module:function" or "file.py:function" returns."""
    place, colon, name = where.rpartition(":")
    if not colon:
        raise ConfigError("optimizer.schedule", where, 'write "file.py:function" or "pkg.mod:fn"')
    try:
        factory = getattr(_module(place), name)
        factor: object = factory(**arguments)
    except SystemExit as error:
        raise ConfigError(
            "optimizer.schedule",
            where,
            f"ended with {error.code} when it was imported: put what it runs as a program behind "
            'if __name__ == "__main__"',
        ) from error
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            "optimizer.schedule", where, f"{type(error).__name__}: {error}"
        ) from error
    if not callable(factor):
        raise ConfigError("optimizer.schedule", where, f"returned {factor!r}, not a function")
    return factor


def _module(place: str) -> ModuleType:
    """A module by name, or the file at a path."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    return file_module(Path(place))
