"""What a checkpoint contains in any format: model, optimizer, scheduler, scaler, averages under
the trainer's names.

What no step of a replica tells (buffers, names, configuration) comes from an earlier checkpoint of
the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import checkpoint_options as options
from flowcheck.findings.catalog import resume_gaps as gaps
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint.checkpoint_save import numbers_of
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.trainer_state import TrainerState
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.param_layout import Layout
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
    """As torch.optim.swa_utils.AveragedModel.state_dict has them: the module's own keys behind
    `module.`, and n_averaged. None without averages.

    model: the module's state_dict; parameters: by name, the tensors that stand in it; averages: by
    those names. What takes no steps is the module's own, as update_parameters copies buffers and as
    an average of equal weights is these.
    """
    if averages is None:
        return None
    of = {tensor.data_ptr(): averages[name] for name, tensor in parameters.items()}
    found = {f"module.{key}": of.get(tensor.data_ptr(), tensor) for key, tensor in model.items()}
    return {"n_averaged": torch.tensor(averaged, dtype=torch.long), **found}


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """One step; tensors are not to be written."""

    trainer_state: TrainerState
    layout: Layout
    model: Mapping[str, torch.Tensor]
    """The module's state_dict as far as it is known: tied weights under each of their names (the
    same tensor), frozen ones and buffers where a stated model or an earlier file told them."""
    numbers: Mapping[int, str]
    """The optimizer's number of a parameter to its name."""
    carried_over: tuple[Finding, ...] = ()
    """What is not of this step."""
    expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS
    """What sums of its tensors are to be."""
    buffers_of: Mapping[str, int] = field(default_factory=dict)
    """Buffers that are of another step, and which."""

    @property
    def older(self) -> dict[str, int]:
        """Parameters and buffers that are of another step, and which."""
        return {**self.trainer_state.older, **self.buffers_of}

    @property
    def frozen(self) -> dict[str, torch.Tensor]:
        """Of `untied` the parameters that take no steps, as far as they are known to be none of the
        buffers."""
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
        """`model` with every tensor under its first name alone."""
        first = {id(value): name for name, value in reversed(list(self.model.items()))}
        return {name: value for name, value in self.model.items() if first[id(value)] == name}

    @property
    def named_states(self) -> dict[str, dict[str, Any]]:
        """The optimizer's state by parameter name; {} where there is none."""
        held = (self.trainer_state.optimizer or {}).get("state", {})
        return {self.numbers[number]: state for number, state in held.items()}

    @property
    def named_groups(self) -> list[dict[str, Any]]:
        """Its parameter groups with names in place of numbers."""
        groups = (self.trainer_state.optimizer or {}).get("param_groups", [])
        return [{**g, "params": [self.numbers[n] for n in g["params"]]} for g in groups]

    @property
    def resume_caveats(self) -> tuple[Finding, ...]:
        """Why a trainer does not go on from it as if nothing had happened; (): it does."""
        told = []
        if self.trainer_state.optimizer is None:
            told.append(gaps.NO_OPTIMIZER_STATE(self.trainer_state.step))
        if self.trainer_state.older:
            told.append(gaps.EARLIER_PARAMETERS(len(self.trainer_state.older)))
        return (*told, *self.carried_over)


def contents_of(
    given: TrainerState,
    layout: Layout,
    like: CheckpointTemplate | None = None,
    seen: Sequence[ObservedFile] = (),
) -> CheckpointContents:
    """A step under the names of `like`, with its buffers; under its own without. seen: other files
    of the trainer's.

    Raises StateError where `like` has other shapes.
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
        averages=_renamed_in(given.averages, new),
        masters=_renamed_in(given.masters, new),
    )
    return CheckpointContents(
        renamed, _renamed(layout, like.names), model, numbers, kept, buffers_of=others
    )


def _untold(auxiliary: FrozenAndBuffers, older: Mapping[str, int]) -> tuple[Finding, ...]:
    """What of a module is not known, or is of another step."""
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
    """Raises StateError for a job of several optimizers: the format `who` holds one's state."""
    if parts.trainer_state.several_optimizers is not None:
        count = len(parts.trainer_state.several_optimizers.groups)
        raise StateError(options.ONE_OPTIMIZER_ONLY(format=who, optimizers=count))


def tree_of(parts: CheckpointContents, keys: Mapping[str, str], *, named: bool) -> dict[str, Any]:
    """The step as one nested dictionary. named: the optimizer's state by names, not numbers.

    Raises ConfigError for an unknown part, or keys that cannot be nested.
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
