"""Steps a stated learning-rate schedule some times before anything starts, to find settings
that torch refuses. No torch at import.

torch refuses some settings only in a step, behind which a replica that was made would stand
still."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from flowcheck.config import OptimizerConfig
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_optimizers import CANNOT_STEP, TAKES_A_NUMBER
from flowcheck.foreign_messages import TORCH_SCHEDULE_ENDED

if TYPE_CHECKING:
    from flowcheck.replica.optimizer.param_groups import ParamGroupSettings

ARGUMENTS = "optimizer.schedule_arguments"
STEPS = 100
"""Calls of a class of torch's, a few microseconds each. A choice: more shows errors of later steps,
and delays the start."""
OWN_STEPS = 1
"""Of the script's own function, which may be of a table as long as the training is."""
NUMBERS = ("int", "float")
"""Annotations of arguments that are numbers."""


def is_user_function(schedule: str) -> bool:
    """A function of the script's own, no class of torch's."""
    return ":" in schedule or schedule.endswith(".py")


def check_numbers(kind: type, arguments: dict[str, Any]) -> None:
    """Raises ConfigError where an argument of torch's class must be a number and is not."""
    for name, parameter in inspect.signature(kind).parameters.items():
        own = parameter.annotation
        said = own if isinstance(own, str) else getattr(own, "__name__", "")
        value = arguments.get(name, 0)
        if said in NUMBERS and not isinstance(value, int | float):
            right = TAKES_A_NUMBER(schedule=kind.__name__, argument=name)
            raise ConfigError(f"{ARGUMENTS}.{name}", value, right)


def check_schedule(config: OptimizerConfig, settings: ParamGroupSettings) -> None:
    """Steps it. Raises ConfigError for what does not work out."""
    stated = [part for part in config.per_optimizer if part.schedule is not None]
    own = config.factory is not None or any(
        is_user_function(part.schedule or "") for part in stated
    )
    for events in range(1, (OWN_STEPS if own else STEPS) + 1):
        try:
            settings.settings_at(events * config.schedule_every)
        except ConfigError as error:
            if str(error.__cause__).startswith(TORCH_SCHEDULE_ENDED):
                return
            if own or not stated:
                raise
            arguments = [part.schedule_arguments for part in stated]
            told = arguments[0] if len(arguments) == 1 else arguments
            named = tuple(str(part.schedule) for part in stated)
            right = CANNOT_STEP(schedules=named, step=events, error=error.right)
            raise ConfigError(ARGUMENTS, told, right) from error
