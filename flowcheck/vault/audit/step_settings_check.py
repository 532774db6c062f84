"""Compares a trainer's file of a known step with the replica's learning rates, scheduled
settings and schedule state.

param_group_check.py checks whether a file of any step can be of this job. Here the step is known,
so that learning rates, other settings that a schedule changes, and the schedule's own state are
compared too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.trainer_settings import (
    GROUP_COUNT,
    IMPLEMENTATION,
    LAST_BITS,
    RATE_DIFFERS,
    SCHEDULE_BEFORE_STEP,
    SCHEDULE_COUNT,
    SCHEDULE_NOT_STATED,
    SCHEDULE_SETTING,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer.param_groups import (
    GroupSettings,
    ParamGroupSettings,
    scheduler_events,
)
from flowcheck.replica.param_layout import Layout
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.param_group_check import (
    IMPLEMENTATION_KEYS,
    INITIAL,
    RATE,
    keys_of_another_class,
    plain_setting,
    same_setting,
    scheduled_keys,
    setting_differs,
)
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.lr_scheduler_state import optimizer_of_scheduler

STEP_COUNT_KEY = "last_epoch"
"""Key of a scheduler's state with the number of its steps (torch/optim/lr_scheduler.py,
LRScheduler.state_dict)."""
LR_FUNCTIONS_KEY = "lr_lambdas"
"""Key of LambdaLR's state with its functions: None for a function, the attributes of an object."""


@dataclass(frozen=True, slots=True)
class SettingDifferences:
    """Differences between a trainer's file and the job file."""

    differing: tuple[Finding, ...] = ()
    """Settings with which the trainer's next step differs from the replica's."""
    notes: tuple[Finding, ...] = ()
    """Differences that do not change a step, or only its last bits."""

    @property
    def first_setting(self) -> str | None:
        """The name of the first setting that differs; None: no setting differs."""
        return setting_name(self.differing[0]) if self.differing else None


NO_DIFFERENCES = SettingDifferences()


def setting_name(differing: Finding) -> str:
    """The setting's name in a report: `group 0: lr`, `schedule: gamma` or `parameter groups`."""
    told = differing.arguments
    if differing.is_any_of(GROUP_COUNT):
        return "parameter groups"
    where = f"group {told['group']}" if "group" in told else told["schedule"]
    return f"{where}: {told['setting']}"


@structure_errors_as_state_errors("the file")
def compare_step_settings(
    template: CheckpointTemplate, config: OptimizerConfig, layout: Layout
) -> SettingDifferences:
    """Compares the file's groups and schedules with the job file at the template's step. Finds no
    differences in a file without an optimizer's state, or where FlowCheck computes no steps."""
    if template.optimizer is None or not config.computes_steps:
        return NO_DIFFERENCES
    settings = ParamGroupSettings(config, layout)
    groups: Sequence[Mapping[str, Any]] = template.optimizer["param_groups"]
    began = settings.settings_at(0)
    if len(groups) != len(began):
        return SettingDifferences((GROUP_COUNT(file=len(groups), stated=len(began)),))
    kinds = [type(settings.built.of_group(number)).__name__ for number in range(len(groups))]
    foreign = [
        keys_of_another_class(n, *of) for n, of in enumerate(zip(groups, began, kinds, strict=True))
    ]
    if any(foreign):
        return SettingDifferences(tuple(filter(None, foreign)))
    unset = _unset(template, config, settings, groups)
    tries = [
        [
            {k: v for k, v in mine.items() if k not in keys}
            for mine, keys in zip(settings.settings_at(at), unset, strict=True)
        ]
        for at in _times(template, config)
    ]
    own = min(tries, key=lambda now: sum(1 for _ in _differing(groups, now, template.step)))
    differing = list(_differing(groups, own, template.step))
    notes = [*_last_bits(groups, own), *_kernels(groups, began)]
    _add_schedules(template, config, settings, differing, notes)
    return SettingDifferences(tuple(differing), tuple(notes))


def _times(template: CheckpointTemplate, config: OptimizerConfig) -> list[int]:
    """Numbers of scheduler events after which the file's learning rates may be. The file's
    schedules count them. Without a schedule a script may set the rate before the step or after
    it."""
    events = scheduler_events(config, template.step, template.skipped)
    told = {int(own[STEP_COUNT_KEY]) * config.schedule_every for own in template.schedulers}
    if told and all(0 <= at <= events for at in told):
        return sorted(told)
    return [events] if told else sorted({max(events - 1, 0), events})


def _unset(
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
    groups: Sequence[Mapping[str, Any]],
) -> list[frozenset[str]]:
    """[group] keys that no schedule had set yet, for a file of step 0 that was written before the
    script made its schedule."""
    if template.step:
        return [frozenset()] * len(groups)
    moving, own = scheduled_keys(template, config, settings), settings.settings_at(0)
    return [
        keys | {RATE} if INITIAL in mine and INITIAL not in group else frozenset()
        for group, mine, keys in zip(groups, own, moving, strict=True)
    ]


def _differing(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings], step: Step
) -> Iterator[Finding]:
    for number, key, theirs, mine in _pairs(groups, own):
        if not same_setting(theirs, mine):
            differs = setting_differs(number, key, theirs, mine)
            yield RATE_DIFFERS(**differs.arguments, step=step) if key == RATE else differs


def _last_bits(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]
) -> Iterator[Finding]:
    for number, key, theirs, mine in _pairs(groups, own):
        one, other = plain_setting(theirs), plain_setting(mine)
        if same_setting(theirs, mine) and one != other and (one or other):
            yield LAST_BITS(group=number, setting=key, file=repr(one), stated=repr(other))


def _pairs(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]
) -> Iterator[tuple[int, str, Any, Any]]:
    """(group, key, value in the file, stated value), for keys that both have."""
    for number, (group, mine) in enumerate(zip(groups, own, strict=True)):
        for key in group:
            if key in mine and key not in IMPLEMENTATION_KEYS:
                yield number, key, group[key], mine[key]


def _kernels(
    groups: Sequence[Mapping[str, Any]], own: Sequence[GroupSettings]
) -> Iterator[Finding]:
    for number, (group, mine) in enumerate(zip(groups, own, strict=True)):
        theirs, stated = _kernel(group), _kernel(mine)
        if theirs is not None and stated is not None and theirs != stated:
            yield IMPLEMENTATION(group=number, file=theirs, stated=stated)


def _kernel(group: Mapping[str, Any]) -> str | None:
    """The implementation that a group's keys choose. None: neither `foreach` nor `fused` is set;
    then torch decides by the device, which no file states (torch/optim/optimizer.py,
    _default_to_fused_or_foreach)."""
    if group.get("fused"):
        return "fused"
    told = group.get("foreach")
    return None if told is None else "foreach" if told else "loop"


def _add_schedules(
    template: CheckpointTemplate,
    config: OptimizerConfig,
    settings: ParamGroupSettings,
    differing: list[Finding],
    notes: list[Finding],
) -> None:
    events = scheduler_events(config, template.step, template.skipped)
    for number, own in enumerate(template.schedulers):
        name = "schedule" if len(template.schedulers) == 1 else f"schedule {number}"
        try:
            which = optimizer_of_scheduler(own, template, config, settings)
        except StateError as error:
            notes.append(error.finding)
            continue
        if which is None:
            if any(one.arguments.get("setting") == RATE for one in differing):
                # else it changes nothing yet
                notes.append(SCHEDULE_NOT_STATED([k for k in own if not k.startswith("_")]))
            continue
        wanted, found = events // config.schedule_every, int(own[STEP_COUNT_KEY])
        if found == wanted - 1:
            notes.append(SCHEDULE_BEFORE_STEP(schedule=name, setting=STEP_COUNT_KEY, file=found))
        elif found != wanted:
            count = SCHEDULE_COUNT(
                schedule=name,
                setting=STEP_COUNT_KEY,
                file=found,
                step=template.step,
                stated=wanted,
                every=config.schedule_every,
            )
            differing.append(count)
        differing += _otherwise(name, own, settings.schedulers(events)[which] or {})


def _otherwise(name: str, own: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings for the arguments of a schedule that its state shows and that differ."""
    for key, value in own.items():
        counts = key in (STEP_COUNT_KEY, LR_FUNCTIONS_KEY) or key.startswith("_")
        if key in mine and not counts and not same_setting(value, mine[key]):
            file, stated = repr(plain_setting(value)), repr(plain_setting(mine[key]))
            yield SCHEDULE_SETTING(schedule=name, setting=key, file=file, stated=stated)
