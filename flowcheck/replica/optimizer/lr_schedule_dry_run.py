"""Steps the stated learning-rate schedule several times before a chain starts, to find settings
that torch refuses only in a step. An error there would stop the replica later. Does not import
torch."""

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
TORCH_SCHEDULE_STEPS = 100
"""Steps for classes of torch.optim.lr_scheduler, a few microseconds each. A choice: more find
errors of later steps and delay the start."""
USER_SCHEDULE_STEPS = 1
"""Steps for a user's own schedule, whose length is not known: a table may end with the training."""
NUMBERS = ("int", "float")
"""Type annotations of arguments that must be numbers."""


def is_user_function(schedule: str) -> bool:
    """Whether the schedule is a user's function ("file.py:function") and not a class of torch."""
    return ":" in schedule or schedule.endswith(".py")


def check_numbers(kind: type, arguments: dict[str, Any]) -> None:
    """Raises ConfigError where an argument of the scheduler class is annotated as a number and is
    not one."""
    for name, parameter in inspect.signature(kind).parameters.items():
        own = parameter.annotation
        said = own if isinstance(own, str) else getattr(own, "__name__", "")
        value = arguments.get(name, 0)
        if said in NUMBERS and not isinstance(value, int | float):
            right = TAKES_A_NUMBER(schedule=kind.__name__, argument=name)
            raise ConfigError(f"{ARGUMENTS}.{name}", value, right)


def check_schedule(config: OptimizerConfig, settings: ParamGroupSettings) -> None:
    """Steps the schedule. Raises ConfigError where torch or the user's function fails."""
    stated = [part for part in config.per_optimizer if part.schedule is not None]
    own = config.factory is not None or any(
        is_user_function(part.schedule or "") for part in stated
    )
    for events in range(1, (USER_SCHEDULE_STEPS if own else TORCH_SCHEDULE_STEPS) + 1):
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
