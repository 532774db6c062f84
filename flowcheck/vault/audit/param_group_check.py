"""Compares the param_groups in a trainer's file of any step with the groups that the job file
states.

A setting that differs proves that the job file is wrong, or that the file is from another job.
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
"""Keys of a group: the learning rate now, and the learning rate that the schedule began with
(torch/optim/lr_scheduler.py, LRScheduler.__init__)."""
IMPLEMENTATION_KEYS = frozenset(("params", "foreach", "fused", "capturable", "differentiable"))
"""Keys of a group that choose the code of a step, not its arithmetic, and the parameter list."""
KEYS_OF_NEWER_TORCH = frozenset(("maximize", "decoupled_weight_decay"))
"""Keys that later versions of torch added to its classes. A file of an older torch has none."""
SETTING_TOLERANCE = 1e-12
"""Largest relative difference of equal settings. 0.1 * 3 in a script differs from 0.3 in a job file
by the last bit, 1.2e-16. A choice: numbers that people write differ by more."""
TENSOR_SETTING_TOLERANCE = 2**-23
"""Largest relative difference of equal settings where one is kept as a tensor: the spacing of
float32."""


def check_settings(
    template: CheckpointTemplate, config: OptimizerConfig, layout: Layout, what: str
) -> None:
    """Checks the file's groups as `check_groups` does, against the stated settings. what: the
    file's name in errors. Does nothing where FlowCheck computes no steps."""
    if config.computes_steps:
        check_groups(template, config, ParamGroupSettings(config, layout), what)


@structure_errors_as_state_errors("the file")
def check_groups(
    template: CheckpointTemplate, config: OptimizerConfig, settings: ParamGroupSettings, what: str
) -> None:
    """Raises StateError that names every setting of the file's groups that contradicts the job
    file, and keys that belong to another optimizer class.

    Keys that the file does not have, and keys that the trainer's script added, are no
    contradiction. Settings that a schedule changes are not compared. A file without an optimizer's
    state passes.
    """
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
    """Whether counters in the file show that no step was taken yet. SGD keeps none, so that a file
    of SGD needs a counter of its own."""
    counts = [node[key] for node, key, _ in template.counters]
    counts += [scheduler["last_epoch"] for scheduler in template.schedulers]
    return template.step == 0 and bool(counts) and not any(counts)


def scheduled_keys(
    template: CheckpointTemplate, config: OptimizerConfig, settings: ParamGroupSettings
) -> list[frozenset[str]]:
    """[group] keys of the settings that the stated schedule changes at its first step or until the
    template's step. OneCycleLR changes momentum or betas too."""
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
    """Finds keys of a file's group that belong to another optimizer class; None: there are none.

    own: the group that the job file states. stated: the name of its class. A key that the trainer's
    script added may have the name of another class's key. Then the other keys of that class are
    missing, and the key is no evidence.
    """
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
    """The finding that a setting of a group differs. theirs: in the file; mine: in the job file."""
    file, stated = repr(plain_setting(theirs)), repr(plain_setting(mine))
    return settings_findings.SETTING_DIFFERS(group=number, setting=key, file=file, stated=stated)


def same_setting(one: Any, other: Any) -> bool:
    """Whether two values are the same setting, apart from the last bits of how they were computed
    or kept."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_setting, one, other))
    near = (
        TENSOR_SETTING_TOLERANCE
        if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
        else SETTING_TOLERANCE
    )
    one, other = plain_setting(one), plain_setting(other)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=near)
    return bool(one == other) or not (one or other)  # None is False


def plain_setting(value: Any) -> Any:
    """A setting in plain form: tensors become numbers, lists become tuples."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return tuple(map(plain_setting, value)) if isinstance(value, list | tuple) else value
