"""Fills a trainer's checkpoint in place with the tensors, counters and schedule of a newer
step, and writes it.

The template is filled in place, so that structure, key order, shared tensors and everything that
does not depend on the step stay as the trainer wrote them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO

import torch

from flowcheck.errors import StateError
from flowcheck.findings.catalog import restored_state as gaps
from flowcheck.findings.catalog import restored_state as parts
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.optimizer_state_shapes import optimizer_state_shapes
from flowcheck.replica.optimizer.param_groups import ParamGroupSettings, scheduler_events
from flowcheck.replica.taint import tainted_finding
from flowcheck.step_numbers import Step
from flowcheck.vault.overwrite_guard import OutputTarget, new_output
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import ObservedFile, fill_buffers
from flowcheck.vault.trainer_checkpoint.checkpoint_template import (
    CheckpointTemplate,
    type_or_shape_differs,
)
from flowcheck.vault.trainer_checkpoint.lr_scheduler_state import (
    LearningRateAt,
    as_stored,
    fill_scheduler,
)
from flowcheck.vault.trainer_checkpoint.masters_averages_scaler import fill_auxiliary
from flowcheck.vault.trainer_checkpoint.param_numbering import OptimizerNumber


@dataclass(frozen=True, slots=True)
class FillReport:
    """What `fill_template` did to a template."""

    step: Step
    template_step: Step
    replaced: tuple[Finding, ...]
    """Parts that were filled with the replica's step."""
    unchanged: tuple[Finding, ...]
    """Parts that stay as in the template, since FlowCheck does not know them."""
    assumed: tuple[Finding, ...] = ()
    """Assumptions that the template could not have disproved."""
    resume_caveats: tuple[Finding, ...] = ()
    """Why a trainer that resumes from the file does not continue exactly as before. Empty: it
    does."""
    older: Mapping[str, int] = field(default_factory=dict)
    """{parameter or buffer: its step}, for tensors from another step."""
    untold: tuple[str, ...] = ()
    """Buffers in `older` that stay as in the template, since nothing newer is known."""


@structure_errors_as_state_errors("the template")
def fill_template(
    template: CheckpointTemplate,
    snapshot: Snapshot,
    rate: LearningRateAt,
    settings: ParamGroupSettings | None = None,
    seen: Sequence[ObservedFile] = (),
) -> FillReport:
    """Puts the snapshot's step into the template's tensors and counters.

    rate: the learning rate for all groups if `settings` is None. settings: stated parameter groups
    and schedule. seen: other files of the trainer, as evidence about buffers. Raises StateError if
    a shape, a type or a counter does not fit; the template must not be used then.
    """
    if snapshot.parameters_only:
        return _fill_parameters(template, snapshot, seen)
    replaced = [parts.PARAMETERS(len(template.parameters))]
    for name, own, new in zip(
        template.names, template.parameters, snapshot.parameters.values(), strict=True
    ):
        _same_kind(name, own, new)
        own.detach().copy_(new)  # a trainer may have saved the parameters themselves
    if template.optimizer is not None:
        replaced.append(_fill_optimizer(template, snapshot))
        _fill_groups(template.optimizer["param_groups"], snapshot, rate, settings)
    beside = fill_auxiliary(template, snapshot)
    replaced += [part for part, _ in beside]
    filled = {id(node) for _, node in beside}
    buffers = fill_buffers(template, snapshot, seen)
    replaced += [parts.BUFFERS(buffers.now)] if buffers.now else []
    kept: list[Finding] = []
    for scheduler in template.schedulers:
        fill_scheduler(scheduler, template, snapshot, rate, settings)
        replaced.append(parts.SCHEDULER())
    assumed = list(buffers.assumed)
    for node, key, path in template.counters:
        name = ".".join(path)
        if node[key] != template.step:
            kept.append(parts.OTHER_COUNTER(name=name, value=node[key], step=template.step))
            continue
        if template.step == 0:
            assumed.append(gaps.COUNTER_FROM_ZERO(name))
        node[key] = snapshot.step
        replaced.append(parts.COUNTER(name=name, value=snapshot.step))
    of = template.tree if isinstance(template.tree, dict) else {}
    left = [key for key in template.untouched if id(of.get(key)) not in filled]
    kept += map(parts.KEY_LEFT, left)
    return FillReport(
        snapshot.step,
        template.step,
        tuple(replaced),
        tuple(kept),
        tuple(assumed),
        resume_caveats=(*_taint_of(snapshot), *buffers.lacks),
        older={**snapshot.older, **buffers.older},
        untold=buffers.unknown_step,
    )


def _fill_parameters(
    template: CheckpointTemplate, snapshot: Snapshot, seen: Sequence[ObservedFile]
) -> FillReport:
    """Fills in parameters and buffers only, for sharded training, where FlowCheck knows no
    optimizer state. All other parts stay at the template's step."""
    rounded = 0
    for name, own, new in zip(
        template.names, template.parameters, snapshot.parameters.values(), strict=True
    ):
        if own.shape != new.shape or not own.is_floating_point():
            _same_kind(name, own, new)
        rounded += own.dtype != new.dtype
        own.detach().copy_(new)
    buffers = fill_buffers(template, snapshot, seen)
    kept = []
    if template.optimizer is not None:
        kept.append(parts.OPTIMIZER_LEFT(template.step))
    kept += [parts.SCHEDULER_LEFT(template.step)] * len(template.schedulers)
    kept += [
        parts.COUNTER_LEFT(name=".".join(path), value=node[key])
        for node, key, path in template.counters
    ]
    kept += map(parts.KEY_LEFT, template.untouched)
    what = [gaps.EARLIER_OPTIMIZER_STATE(step=snapshot.step, optimizer_step=template.step)]
    if template.optimizer is None:
        what = [gaps.NO_OPTIMIZER_STATE(snapshot.step)]
    if rounded:
        what.append(gaps.ROUNDED(rounded))
    if snapshot.older:
        what.append(gaps.EARLIER_PARAMETERS(len(snapshot.older)))
    return FillReport(
        snapshot.step,
        template.step,
        (parts.PARAMETERS(len(template.parameters)),),
        tuple(kept),
        buffers.assumed,
        resume_caveats=(*what, *buffers.lacks),
        older={**snapshot.older, **buffers.older},
        untold=buffers.unknown_step,
    )


def _taint_of(snapshot: Snapshot) -> tuple[Finding, ...]:
    return (tainted_finding(snapshot.tainted, snapshot.layout),) if snapshot.tainted else ()


def write_torch_file(tree: Any, target: OutputTarget) -> None:
    """Writes `tree` with torch.save, atomically. Raises as `new_output` does."""
    with new_output(target) as (place, _), place.open("wb") as file:
        save_torch_file(tree, file)


def save_torch_file(tree: Any, file: BinaryIO | IO[bytes] | io.RawIOBase) -> None:
    """Writes `tree` with torch.save. Raises OSError if there is no room."""
    try:
        torch.save(tree, file)  # type: ignore[arg-type]
    except RuntimeError as error:
        # torch still ends its archive after a write that failed, and tells of that instead.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _fill_optimizer(template: CheckpointTemplate, snapshot: Snapshot) -> Finding:
    assert template.optimizer is not None
    state: MutableMapping[OptimizerNumber, dict[str, Any]] = template.optimizer["state"]
    kinds = optimizer_state_shapes(
        snapshot.optimizer, stepped_layout(snapshot.optimizer, snapshot.layout)
    ).kinds
    for index, (name, new) in enumerate(zip(template.names, snapshot.states, strict=True)):
        if template.order[index] == -1:
            continue
        wanted = set(kinds[index])
        own = state.setdefault(template.order[index], {})
        if own and own.keys() - {k for k, v in own.items() if v is None} != wanted:
            raise StateError(
                findings.OTHER_STATES(parameter=name, states=sorted(own), own=sorted(wanted))
            )
        if not new:  # never stepped: torch has no entry of it
            del state[template.order[index]]
        for kind, value in new.items():
            if not isinstance(value, torch.Tensor):
                own[kind] = value
            elif own.get(kind) is None:
                own[kind] = value.clone()
            else:
                _same_kind(f"{name}/{kind}", own[kind], value)
                own[kind].copy_(value)
    told = sorted({kind for each in kinds for kind in each})
    return parts.OPTIMIZER_STATE(told or parts.NO_STATES())


def _fill_groups(
    groups: list[dict[str, Any]],
    snapshot: Snapshot,
    rate: LearningRateAt,
    settings: ParamGroupSettings | None,
) -> None:
    """Sets the learning rates, and other settings that the schedule changes."""
    config, skipped = snapshot.optimizer, snapshot.optional_state.skipped
    if settings is None:
        for group in groups:
            group["lr"] = as_stored(group["lr"], rate(snapshot.step))
        return
    began = settings.settings_at(0)
    now = settings.settings_at(scheduler_events(config, snapshot.step, skipped))
    if len(groups) != len(now):
        raise StateError(findings.OTHER_GROUP_COUNT(groups=len(groups), stated=len(now)))
    for group, own, first in zip(groups, now, began, strict=True):
        for key in group.keys() & own.keys():
            if key == "lr" or own[key] != first[key]:
                group[key] = as_stored(group[key], own[key])


def _same_kind(name: str, own: torch.Tensor, new: torch.Tensor) -> None:
    if own.shape != new.shape or own.dtype != new.dtype:
        raise StateError(type_or_shape_differs(name, own, new))
