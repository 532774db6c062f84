"""The state of a trainer's learning-rate scheduler, moved to another step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.step_numbers import Step
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

OF_SEVERAL = (
    "the template holds a schedule of several (SequentialLR): state optimizer.factory, which makes "
    "it, or its state after other steps cannot be told"
)
OF_WHICH = (
    "{} of the schedules that are stated have the state of one in the template: of which optimizer "
    "it is, is not told"
)
LearningRateAt = Callable[[int], float]
"""Learning rate of the step after so many were taken."""


def fill_scheduler(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    snapshot: Snapshot,
    rate: LearningRateAt,
    settings: ParamGroupSettings | None,
) -> None:
    """Moves a state of the template's to the snapshot's step: as the schedule that is stated has
    it, else as LambdaLR's kind. Raises StateError where it cannot be told."""
    if not _fill_stated(scheduler, template, snapshot, settings):
        _move(scheduler, snapshot.step - template.step, template, rate, snapshot.step)


def _fill_stated(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    snapshot: Snapshot,
    settings: ParamGroupSettings | None,
) -> bool:
    """Of the schedule that the job file states, its own state; False: it states none such."""
    config = snapshot.optimizer
    which = None if settings is None else which_of(scheduler, template, config, settings)
    if settings is None or which is None:
        return False
    was = template.step // config.schedule_every
    if config.scaler is None and scheduler["last_epoch"] != was:
        raise StateError(
            f"the scheduler has taken {scheduler['last_epoch']} steps at step {template.step}, "
            f"and {was} as stated (optimizer.schedule_every): the job file states another schedule"
        )
    events = scheduler_events(config, snapshot.step, snapshot.more.skipped)
    for key, value in (settings.schedulers(events)[which] or {}).items():
        if _plain(value) and not isinstance(value, bool):
            scheduler[key] = value
    return True


def which_of(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
) -> int | None:
    """Of which of the stated optimizers it is: the one whose schedule has this state at the
    template's step; None: none such is stated. Raises StateError where several differ then."""
    stated = settings.schedulers(0)
    alike = [
        n for n, own in enumerate(stated) if own is not None and own.keys() == scheduler.keys()
    ]
    if len(stated) == 1 or not alike:
        return alike[0] if alike else None
    then = settings.schedulers(scheduler_events(config, template.step, template.skipped))
    equal = [
        n
        for n in alike
        if all(scheduler[key] == v for key, v in (then[n] or {}).items() if _plain(v))
    ]
    if not equal or any(then[n] != then[equal[0]] for n in equal):
        raise StateError(OF_WHICH.format(len(equal)))
    return equal[0]


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | list)


def _move(
    scheduler: dict[str, Any],
    moved: int,
    template: CheckpointTemplate,
    rate: LearningRateAt,
    step: Step,
) -> None:
    """LRScheduler.state_dict: last_epoch and _step_count count its steps (torch/optim/
    lr_scheduler.py)."""
    if "_schedulers" in scheduler:
        raise StateError(OF_SEVERAL)
    if scheduler["last_epoch"] != template.step:
        raise StateError(
            f"the scheduler has taken {scheduler['last_epoch']} steps and the optimizer "
            f"{template.step}: a schedule that does not step with the optimizer cannot be restored"
        )
    scheduler["last_epoch"] += moved
    scheduler["_step_count"] += moved
    if "_last_lr" in scheduler:
        scheduler["_last_lr"] = [like(last, rate(step)) for last in scheduler["_last_lr"]]


def like(own: Any, value: float) -> Any:
    """The value as the file keeps it: a number, or a tensor."""
    return torch.full_like(own, value) if isinstance(own, torch.Tensor) else value
