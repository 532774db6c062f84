"""Moves the state of a trainer's learning-rate scheduler to another step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.step_numbers import Step
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

LearningRateAt = Callable[[int], float]
"""The learning rate of the next step after the given number of steps."""


def fill_scheduler(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    snapshot: Snapshot,
    rate: LearningRateAt,
    settings: ParamGroupSettings | None,
) -> None:
    """Moves a scheduler's state in the template to the snapshot's step: by the schedule that the
    job file states, else as LambdaLR would. Raises StateError if the new state cannot be
    computed."""
    if not _fill_stated(scheduler, template, snapshot, settings):
        _move(scheduler, snapshot.step - template.step, template, rate, snapshot.step)


def _fill_stated(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    snapshot: Snapshot,
    settings: ParamGroupSettings | None,
) -> bool:
    """Fills in the state of the schedule that the job file states. False: the job file states no
    schedule with these keys."""
    config = snapshot.optimizer
    which = (
        None if settings is None else optimizer_of_scheduler(scheduler, template, config, settings)
    )
    if settings is None or which is None:
        return False
    was = template.step // config.schedule_every
    if config.scaler is None and scheduler["last_epoch"] != was:
        taken = scheduler["last_epoch"]
        raise StateError(findings.OTHER_SCHEDULE(taken=taken, step=template.step, stated=was))
    events = scheduler_events(config, snapshot.step, snapshot.optional_state.skipped)
    for key, value in (settings.schedulers(events)[which] or {}).items():
        if _plain(value) and not isinstance(value, bool):
            scheduler[key] = value
    return True


def optimizer_of_scheduler(
    scheduler: dict[str, Any],
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
) -> int | None:
    """The number of the stated optimizer that a scheduler's state belongs to: the optimizer whose
    schedule has this state at the template's step. None: no stated schedule has these keys. Raises
    StateError if no schedule has this state, or if several different ones have it."""
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
    if not equal:
        raise StateError(findings.NO_SCHEDULE_HAS_STATE())
    if any(then[n] != then[equal[0]] for n in equal):
        raise StateError(findings.AMBIGUOUS_SCHEDULES(len(equal)))
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
    """Moves a scheduler's state by `moved` steps. last_epoch and _step_count of
    LRScheduler.state_dict count its steps (torch/optim/lr_scheduler.py)."""
    if "_schedulers" in scheduler:
        raise StateError(findings.SEQUENTIAL_SCHEDULE())
    if scheduler["last_epoch"] != template.step:
        taken = scheduler["last_epoch"]
        raise StateError(findings.SCHEDULE_NOT_IN_STEP(taken=taken, step=template.step))
    scheduler["last_epoch"] += moved
    scheduler["_step_count"] += moved
    if "_last_lr" in scheduler:
        scheduler["_last_lr"] = [as_stored(last, rate(step)) for last in scheduler["_last_lr"]]


def as_stored(own: Any, value: float) -> Any:
    """`value` in the type of `own`, the file's value: a number or a tensor."""
    return torch.full_like(own, value) if isinstance(own, torch.Tensor) else value
