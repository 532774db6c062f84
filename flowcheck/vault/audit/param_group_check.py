"""Compares the param_groups in a trainer's file of any step with those that the job file
states.

What a file says of its own optimizer is evidence that costs nothing: a setting that differs proves
the stated one wrong, or the file another job's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_settings as settings_findings
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer.optimizer_class import torch_optimizer_classes
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.replica.param_layout import Layout
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

RATE, INITIAL = "lr", "initial_lr"
"""torch/optim/lr_scheduler.py, LRScheduler.__init__: the rate that a schedule began with."""
IMPLEMENTATION_KEYS = frozenset(("params", "foreach", "fused", "capturable", "differentiable"))
"""Of a group: which code computes, not what."""
KEYS_OF_NEWER_TORCH = frozenset(("maximize", "decoupled_weight_decay"))
"""What torch's classes were given one after the other: a file of an older torch has none."""
DECIMAL = 1e-12
"""Relative difference. 0.1 * 3 in a script is the 0.3 of a job file but for the last bit, 1.2e-16;
a choice: any number people write differs by more."""
SINGLE = 2**-23
"""Relative difference of a number that is kept as a tensor: the spacing of float32."""


def check_settings(
    template: CheckpointTemplate, config: OptimizerConfig, layout: Layout, what: str
) -> None:
    """As `check_groups`; `what` names the file. Rules without an optimizer have nothing to hold
    against."""
    if config.computes_steps:
        check_groups(template, config, ParamGroupSettings(config, layout), what)


@structure_errors_as_state_errors("the file")
def check_groups(
    template: CheckpointTemplate, config: OptimizerConfig, settings: ParamGroupSettings, what: str
) -> None:
    """Raises StateError that names every setting of every group of the template's which
    contradicts the stated one, and keys of another class. Keys that the file does not have, and
    those of the trainer's own, contradict nothing; what a schedule changes is left alone. A
    file without an optimizer's state passes."""
    if template.optimizer is None:
        return
    groups = template.optimizer["param_groups"]
    began = settings.settings_at(0)
    if len(groups) != len(began):
        count = settings_findings.OTHER_GROUP_COUNT(file=what, found=len(groups), stated=len(began))
        raise StateError(count)
    moving, begun = scheduled_keys(template, config, settings), _begun(template)
    told: list[Finding] = []
    for number, (group, own) in enumerate(zip(groups, began, strict=True)):
        kind = type(settings.built.of_group(number)).__name__
        foreign = keys_of_another_class(number, group, own, kind)
        told += [foreign] if foreign else _differing(number, group, own, moving[number], begun)
    if told:
        raise StateError(settings_findings.OTHER_OPTIMIZER(file=what, differences=told))


def _begun(template: CheckpointTemplate) -> bool:
    """The file says itself that no step was applied yet; without a counter, SGD's never tells."""
    counts = [node[key] for node, key, _ in template.counters]
    counts += [scheduler["last_epoch"] for scheduler in template.schedulers]
    return template.step == 0 and bool(counts) and not any(counts)


def scheduled_keys(
    template: CheckpointTemplate, config: OptimizerConfig, settings: ParamGroupSettings
) -> list[frozenset[str]]:
    """[group] settings that the stated schedule changes, as OneCycleLR does momentum and betas:
    at its first step, or until the template's."""
    began = settings.settings_at(0)
    events = {config.schedule_every, scheduler_events(config, template.step, template.skipped)}
    later = [settings.settings_at(event) for event in sorted(events)]
    return [
        frozenset(key for key in own for at in later if at[number].get(key) != own[key])
        for number, own in enumerate(began)
    ]


def keys_of_another_class(
    number: int, group: Mapping[str, Any], own: Mapping[str, Any], stated: str
) -> Finding | None:
    """Which keys of a file's group are another class's; None: no key is. own: the stated group,
    stated: its class. A key that the trainer's script added to a group of the stated class may be
    called alike: the others of that class are not with it."""
    known = {*group, *IMPLEMENTATION_KEYS, *KEYS_OF_NEWER_TORCH, RATE, INITIAL}
    lacks = [key for key in own if key not in known and not isinstance(own[key], bool)]
    kinds = {kind.__name__: _keys_of(kind) for kind in torch_optimizer_classes().values()}
    whole = [name for name, keys in kinds.items() if keys <= group.keys() and keys - own.keys()]
    theirs = {key for name in (kinds if lacks else whole) for key in kinds[name] - own.keys()}
    keys = [key for key in group if key in theirs]
    if not keys:
        return None
    values = [f"{key} = {plain_setting(group[key])!r}" for key in keys]
    has = settings_findings.KEYS(values)
    if whole:
        has = settings_findings.KEYS_OF(values=values, classes=" or ".join(whole))
    if lacks:
        has = settings_findings.KEYS_WITHOUT(keys=has, missing=lacks)
    return settings_findings.OTHER_CLASS(
        group=number, keys=has, stated=stated, setting=f"{keys[0]}"
    )


def _keys_of(kind: type[torch.optim.Optimizer]) -> frozenset[str]:
    return (
        frozenset(list(inspect.signature(kind.__init__).parameters)[2:])
        - IMPLEMENTATION_KEYS
        - KEYS_OF_NEWER_TORCH
    )


def _differing(
    number: int,
    group: Mapping[str, Any],
    own: Mapping[str, Any],
    moving: frozenset[str],
    begun: bool,
) -> list[Finding]:
    left = {*IMPLEMENTATION_KEYS, *moving, RATE}
    if begun and (INITIAL in group) == (INITIAL in own):  # made by a schedule in both, or in none
        left -= {RATE}
    return [
        setting_differs(number, key, group[key], own[key])
        for key in group
        if key in own and key not in left and not same_setting(group[key], own[key])
    ]


def setting_differs(number: int, key: str, theirs: Any, mine: Any) -> Finding:
    """Of one setting of a group."""
    file, stated = repr(plain_setting(theirs)), repr(plain_setting(mine))
    return settings_findings.SETTING_DIFFERS(group=number, setting=key, file=file, stated=stated)


def same_setting(one: Any, other: Any) -> bool:
    """One setting, but for the last bits of how it was computed or kept."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_setting, one, other))
    near = SINGLE if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor) else DECIMAL
    one, other = plain_setting(one), plain_setting(other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=near)
    return bool(one == other) or not (one or other)  # None is False


def plain_setting(value: Any) -> Any:
    """As JSON and older torch have it: tensors as numbers, lists as tuples."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return tuple(map(plain_setting, value)) if isinstance(value, list | tuple) else value
