"""The contents of a checkpoint in any format: model, optimizer, scheduler, scaler and averages
under the trainer's names.

The replica does not know everything (buffers, names, configuration). The rest comes from an earlier
checkpoint of the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import checkpoint_options as options
from flowcheck.findings.catalog import restored_state as gaps
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.catalog.hybrid_jobs import ONE_SHARD
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.checkpoint_save import numbers_of
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.taint import tainted_finding
from flowcheck.vault.checkpoint_formats.format_registry import PARTS
from flowcheck.vault.trainer_checkpoint.buffer_step_inference import (
    ObservedFile,
    buffers_of_other_steps,
    first_names,
    judge_buffers,
    newest_tensor,
)
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate


def averaged_model_state(
    model: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor] | None,
    averaged: int,
) -> dict[str, torch.Tensor] | None:
    """The state_dict of torch.optim.swa_utils.AveragedModel: the module's keys with the prefix
    `module.`, and n_averaged. None without averages.

    model: the module's state_dict. parameters: {name: tensor of `model`}. averages: {the same name:
    average}. Tensors that are not stepped are the module's own: update_parameters copies buffers,
    and the average of a constant tensor is the tensor.
    """
    if averages is None:
        return None
    of = {tensor.data_ptr(): averages[name] for name, tensor in parameters.items()}
    found = {f"module.{key}": of.get(tensor.data_ptr(), tensor) for key, tensor in model.items()}
    return {"n_averaged": torch.tensor(averaged, dtype=torch.long), **found}


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The contents of one step. Its tensors must not be changed."""

    trainer_state: TrainerState
    layout: Layout
    model: Mapping[str, torch.Tensor]
    """The known part of the module's state_dict. A tied weight stands under each of its names (the
    same tensor). Frozen parameters and buffers are in it if a stated model or an earlier file has
    them."""
    numbers: Mapping[int, str]
    """{the optimizer's number of a parameter: its name}."""
    carried_over: tuple[Finding, ...] = ()
    """Findings about parts that are from another step."""
    expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS
    """Checksums that the tensors must have."""
    buffers_of: Mapping[str, int] = field(default_factory=dict)
    """{buffer: its step}, for buffers from another step."""

    @property
    def older(self) -> dict[str, int]:
        """{parameter or buffer: its step}, for tensors from another step."""
        return {**self.trainer_state.older, **self.buffers_of}

    @property
    def frozen(self) -> dict[str, torch.Tensor]:
        """The tensors of `untied` that are known to be frozen parameters, not buffers."""
        auxiliary = self.trainer_state.frozen_and_buffers
        of = dict(auxiliary.keys)
        named = {key: key.removeprefix("module.") for key in self.untied}
        return {
            key: self.model[key]
            for key, one in named.items()
            if of.get(one, one) in auxiliary.frozen
        }

    @property
    def untied(self) -> dict[str, torch.Tensor]:
        """`model` with every tensor under its first name only."""
        first = {id(value): name for name, value in reversed(list(self.model.items()))}
        return {name: value for name, value in self.model.items() if first[id(value)] == name}

    @property
    def named_states(self) -> dict[str, dict[str, Any]]:
        """{parameter name: the optimizer's state}; {} without an optimizer's state."""
        held = (self.trainer_state.optimizer or {}).get("state", {})
        return {self.numbers[number]: state for number, state in held.items()}

    @property
    def named_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, with names in place of numbers."""
        groups = (self.trainer_state.optimizer or {}).get("param_groups", [])
        return [{**g, "params": [self.numbers[n] for n in g["params"]]} for g in groups]

    @property
    def resume_caveats(self) -> tuple[Finding, ...]:
        """Why a trainer that resumes from this step does not continue exactly as before. Empty: it
        does."""
        told = []
        if self.trainer_state.optimizer is None:
            told.append(gaps.NO_OPTIMIZER_STATE(self.trainer_state.step))
        told += [one for one in self.trainer_state.assumed if one.is_any_of(ONE_SHARD)]
        if self.trainer_state.older:
            told.append(gaps.EARLIER_PARAMETERS(len(self.trainer_state.older)))
        if self.trainer_state.tainted:
            told.append(tainted_finding(self.trainer_state.tainted, self.layout))
        return (*told, *self.carried_over)


def contents_of(
    given: TrainerState,
    layout: Layout,
    like: CheckpointTemplate | None = None,
    seen: Sequence[ObservedFile] = (),
) -> CheckpointContents:
    """The contents of a step: with the names and buffers of the checkpoint `like`, or without
    `like` under the replica's names. seen: other files of the trainer, as evidence about buffers.

    Raises StateError if `like` has other shapes.
    """
    order = numbers_of(given)
    if given.optimizer_config.takes_frozen:
        order |= {name: n for n, name in enumerate(given.frozen_and_buffers.registered)}
    if like is None:
        numbers = {number: name for name, number in order.items()}
        auxiliary, buffers = given.frozen_and_buffers, given.frozen_and_buffers.older(given.step)
        whole, kept = auxiliary.state_dict(given.model), _untold(auxiliary, buffers)
        return CheckpointContents(given, layout, whole, numbers, kept, buffers_of=buffers)
    new = dict(zip(given.model, like.names, strict=True))
    values = {new[name]: value for name, value in given.model.items()}
    by_memory = {t.data_ptr(): n for n, t in zip(like.names, like.parameters, strict=True)}
    model: dict[str, torch.Tensor] = {}
    others: dict[str, int] = {}
    for name, value in like.model.items():
        if not isinstance(value, torch.Tensor):
            continue
        own = name if name in values else by_memory.get(value.data_ptr()) if name else None
        if own is not None and values[own].shape == value.shape:
            model[name] = values[own]
        elif own is not None:
            raise StateError(
                findings.OTHER_SHAPE(tensor=name, shape=value.shape, own_shape=values[own].shape)
            )
        else:
            model[name], step = newest_tensor(
                given.frozen_and_buffers, name, value, of=like.step, now=given.step
            )
            if step != given.step:
                others[name] = step
    if not given.frozen_and_buffers.keys:
        judged = judge_buffers(like, list(others), seen)
        given = replace(given, assumed=(*given.assumed, *judged.assumed))
        others = {name: of for name, of in others.items() if name not in judged.same}
        kept = buffers_of_other_steps({name: others[name] for name in judged.stale})
    else:
        kept = buffers_of_other_steps(others)
    numbers = {number: new.get(name, name) for name, number in order.items()}
    renamed = replace(
        given,
        model=values,
        older={new[name]: of for name, of in given.older.items()},
        tainted={new[name]: own for name, own in given.tainted.items()},
        averages=_renamed_in(given.averages, new),
        masters=_renamed_in(given.masters, new),
    )
    return CheckpointContents(
        renamed, _renamed(layout, like.names), model, numbers, kept, buffers_of=others
    )


def _untold(auxiliary: FrozenAndBuffers, older: Mapping[str, int]) -> tuple[Finding, ...]:
    """Findings about tensors of the module that are unknown or from another step."""
    if not (missing := auxiliary.missing):
        return buffers_of_other_steps(older)
    only_buffers = set(missing) <= set(auxiliary.buffers)
    entry = gaps.BUFFERS_MISSING if only_buffers else gaps.TENSORS_MISSING
    return (*buffers_of_other_steps(older), entry(count=len(missing), names=first_names(missing)))


def _renamed_in(
    tensors: Mapping[str, torch.Tensor] | None, new: Mapping[str, str]
) -> dict[str, torch.Tensor] | None:
    return None if tensors is None else {new[name]: value for name, value in tensors.items()}


def _renamed(layout: Layout, names: Sequence[str]) -> Layout:
    own = zip(layout.parameters, names, strict=True)
    parameters = tuple(msgspec.structs.replace(p, name=name) for p, name in own)
    return msgspec.structs.replace(layout, parameters=parameters)


def refuse_several_optimizers(parts: CheckpointContents, who: str) -> None:
    """Raises StateError for a job with several optimizers, since the format `who` holds the state
    of only one."""
    if parts.trainer_state.several_optimizers is not None:
        count = len(parts.trainer_state.several_optimizers.groups)
        raise StateError(options.ONE_OPTIMIZER_ONLY(format=who, optimizers=count))


def tree_of(parts: CheckpointContents, keys: Mapping[str, str], *, named: bool) -> dict[str, Any]:
    """The step as one nested dictionary.

    keys: {part: its key in the dictionary}, see FormatOptions. named: the optimizer's state has
    parameter names in place of numbers. Raises ConfigError for an unknown part or keys that cannot
    be nested.
    """
    for part in keys:
        if part not in PARTS:
            raise ConfigError("--keys", part, options.ONE_OF(tuple(PARTS)))
    given = parts.trainer_state
    optimizer = given.optimizers
    if named and optimizer is not None:  # torch's get_optimizer_state_dict has all in one as well
        optimizer = {"state": parts.named_states, "param_groups": parts.named_groups}
    found: dict[str, Any] = {
        "model": dict(parts.model),
        "optimizer": optimizer,
        "scheduler": given.scheduler,
        "scaler": given.scaler,
        "averages": averaged_model_state(
            parts.model, given.model, given.averages, given.average_updates
        ),
        "masters": given.masters,
        "step": given.step,
    }
    tree: dict[str, Any] = {}
    for part, value in found.items():
        key = keys.get(part, part)
        if not key or value is None:
            continue
        *above, last = key.split(".")
        node = tree
        for name in above:
            node = node.setdefault(name, {})
            if any(node is other for other in found.values()):
                raise ConfigError("--keys", f"{part}={key}", options.KEY_OF_OTHER_PART(name))
        if last in node:
            raise ConfigError("--keys", f"{part}={key}", options.KEY_TWICE())
        node[last] = value
    return tree
