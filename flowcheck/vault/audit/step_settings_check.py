"""Compares a trainer's file of a known step with the replica's learning rates, scheduled
settings and schedule state.

param_group_check.py asks whether a file of any step may be of this job; here the step is known,
so that
rates and whatever else a schedule changes are compared as well, and the schedule's own state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.replica.optimizer.param_groups import (
    GroupSettings,
    ParamGroupSettings,
    scheduler_events,
)
from flowcheck.replica.param_layout import Layout
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import (
    FLAGS,
    INITIAL,
    RATE,
    foreign_keys,
    moving_keys,
    plain,
    same,
)
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.lr_scheduler_state import which_of

COUNT = "last_epoch"
"""torch/optim/lr_scheduler.py, LRScheduler.state_dict: how many steps the schedule took."""
OWN_FUNCTIONS = "lr_lambdas"
"""Of LambdaLR.state_dict: nothing of a function, the attributes of an object."""
EARLY = (
    "{}: {} = {}, one step less than the optimizer: the file was written before scheduler.step(), "
    "and restore --template does not take it"
)
UNSTATED = "a schedule in it ({}) is none that the job file states"


@dataclass(frozen=True, slots=True)
class SettingDifferences:
    """What a file says otherwise, one phrase each."""

    differing: tuple[str, ...] = ()
    """Settings that are not those of the replica: the trainer's next step is another."""
    notes: tuple[str, ...] = ()
    """What makes no other step, or the last bits of one."""


NO_DIFFERENCES = SettingDifferences()


@structure_errors_as_state_errors("the file")
def settings_of(
    template: CheckpointTemplate, config: OptimizerConfig, layout: Layout
) -> SettingDifferences:
    """What the file's groups and schedules say that is not as stated. A file without an optimizer's
    state says nothing, and without one there is nothing to say it of."""
    if template.optimizer is None or not config.computes_steps:
        return NO_DIFFERENCES
    settings = ParamGroupSettings(config, layout)
    groups: Sequence[Mapping[str, Any]] = template.optimizer["param_groups"]
    began = settings.at(0)
    if len(groups) != len(began):
        return SettingDifferences((f"{len(groups)} parameter groups = stated are {len(began)}",))
    kinds = [type(settings.built.of_group(number)).__name__ for number in range(len(groups))]
    foreign = [
        f"group {n}: {phrase}"
        for n, each in enumerate(zip(groups, began, kinds, strict=True))
        for phrase in foreign_keys(*each)
    ]
    if foreign:
        return SettingDifferences(tuple(foreign))
    unset = _unset(template, config, settings, groups)
    tries = [
        [
            {k: v for k, v in mine.items() if k not in keys}
            for mine, keys in zip(settings.at(at), unset, strict=True)
        ]
        for at in _times(template, config)
    ]
    own = min(tries, key=lambda now: sum(1 for _ in _differing(groups, now, template.step)))
    differing = list(_differing(groups, own, template.step))
    notes = [*_last_bits(groups, own), *_kernels(groups, began)]
    _add_schedules(template, config, settings, differing, notes)
    return SettingDifferences(tuple(differing), tuple(notes))


def _times(template: CheckpointTemplate, config: OptimizerConfig) -> list[int]:
    """After how many events the file's rates may be: as its schedules count; without one, scripts
    set a rate themselves, before the step or behind it."""
    events = scheduler_events(config, template.step, template.skipped)
    told = {int(own[COUNT]) * config.schedule_every for own in template.schedulers}
    if told and all(0 <= at <= events for at in told):
        return sorted(told)
    return [events] if told else sorted({max(events - 1, 0), events})


def _unset(
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
    groups: Sequence[Mapping[str, Any]],
) -> list[frozenset[str]]:
    """[group] keys that no schedule had set yet in the file, which was written before one was
    made."""
    if template.step:
        return [frozenset()] * len(groups)
    moving, own = moving_keys(template, config, settings), settings.at(0)
    return [
        keys | {RATE} if INITIAL in mine and INITIAL not in group else frozenset()
        for group, mine, keys in zip(groups, own, moving, strict=True)
    ]


def _differing(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings], step: Step
) -> Iterator[str]:
    for number, key, theirs, mine in _pairs(groups, own):
        if not same(theirs, mine):
            of = f" at step {step}" if key == RATE else ""
            told, stated = plain(theirs), plain(mine)
            yield f"group {number}: {key} = {told!r}{of}, stated is {stated!r}"


def _last_bits(groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]) -> Iterator[str]:
    for number, key, theirs, mine in _pairs(groups, own):
        one, other = plain(theirs), plain(mine)
        if same(theirs, mine) and one != other and (one or other):
            yield (
                f"group {number}: {key} = {one!r}, stated is {other!r}: the last bits alone, and "
                "of what is computed with it"
            )


def _pairs(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]
) -> Iterator[tuple[int, str, Any, Any]]:
    """(group, key, the file's, the stated), of keys that both have."""
    for number, (group, mine) in enumerate(zip(groups, own, strict=True)):
        for key in group:
            if key in mine and key not in FLAGS:
                yield number, key, group[key], mine[key]


def _kernels(groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]) -> Iterator[str]:
    for number, (group, mine) in enumerate(zip(groups, own, strict=True)):
        theirs, stated = _kernel(group), _kernel(mine)
        if theirs is not None and stated is not None and theirs != stated:
            yield (
                f"group {number}: its kernels are {theirs}, stated is {stated} "
                "(optimizer.implementation): each may round otherwise"
            )


def _kernel(group: Mapping[str, Any]) -> str | None:
    """torch/optim/optimizer.py, _default_to_fused_or_foreach: where both are None, the device
    decides, which no file tells."""
    if group.get("fused"):
        return "fused"
    told = group.get("foreach")
    return None if told is None else "foreach" if told else "loop"


def _add_schedules(
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
    differing: list[str],
    notes: list[str],
) -> None:
    events = scheduler_events(config, template.step, template.skipped)
    for number, own in enumerate(template.schedulers):
        name = "schedule" if len(template.schedulers) == 1 else f"schedule {number}"
        try:
            which = which_of(own, template, config, settings)
        except StateError as error:
            notes.append(str(error))
            continue
        if which is None:
            if any(": lr = " in phrase for phrase in differing):  # else it changes nothing yet
                keys = ", ".join(key for key in own if not key.startswith("_"))
                notes.append(UNSTATED.format(keys))
            continue
        wanted, found = events // config.schedule_every, int(own[COUNT])
        if found == wanted - 1:
            notes.append(EARLY.format(name, COUNT, found))
        elif found != wanted:
            every = f"optimizer.schedule_every = {config.schedule_every}"
            phrase = f"{name}: {COUNT} = {found} at step {template.step}, stated is {wanted}"
            differing.append(f"{phrase} ({every})")
        differing += _otherwise(name, own, settings.schedulers(events)[which] or {})


def _otherwise(name: str, own: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    """What a schedule was made with, as far as its state tells."""
    for key, value in own.items():
        counts = key in (COUNT, OWN_FUNCTIONS) or key.startswith("_")
        if key in mine and not counts and not same(value, mine[key]):
            yield f"{name}: {key} = {plain(value)!r}, stated is {plain(mine[key])!r}"
