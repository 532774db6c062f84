"""Compares a replica with a checkpoint of the trainer, tensor by tensor, bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.findings.catalog.file_audits import ROUNDED_STEP_GONE
from flowcheck.replica.checkpoint.frozen_and_buffers import FrozenAndBuffers
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.state_sections import describe_sections, named_tensors
from flowcheck.replica.param_layout import FlatParameter, Layout
from flowcheck.replica.state_digest import tensor_digests
from flowcheck.replica.state_file.file_header import Description
from flowcheck.replica.taint import TaintedRange, tainted_elements
from flowcheck.step_numbers import Step
from flowcheck.vault.audit.step_settings_check import NO_DIFFERENCES, SettingDifferences
from flowcheck.vault.safe_torch_load import structure_errors_as_state_errors
from flowcheck.vault.trainer_checkpoint.checkpoint_template import (
    CheckpointTemplate,
    is_rounding,
    type_or_shape_differs,
)
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import (
    flat_sections,
    in_memory_order,
)
from flowcheck.vault.trainer_checkpoint.masters_averages_scaler import (
    averages_in,
    masters_in,
    scaler_in,
)

COUNTS = frozenset(("step", "mu_product"))
"""States of rules that step each element by itself which are one number for the whole tensor
(torch/optim/nadam.py, adam.py and others, _init_group)."""
_BITS: dict[int, np.dtype[Any]] = {n: np.dtype(f"<i{n}") for n in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor of the replica that differs from the trainer's."""

    name: str
    """Name of the parameter; for optimizer state followed by "/exp_avg" or another state's name."""
    elements: int | None = None
    """Number of elements that differ; None where only digests of the step are kept."""
    ulp: int | None = None
    """Largest distance in units in the last place. None: a NaN is involved, or only digests of the
    step are kept."""
    index: tuple[int, ...] | None = None
    """Index of the first element that differs, in C order; None: only digests are kept."""
    file_value: str = ""
    """That element in the file."""
    replica_value: str = ""
    """That element in the replica."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of the comparison of one step."""

    step: Step
    tensors: int
    """Number of compared tensors, optimizer state included."""
    differences: tuple[Difference, ...]
    """Tensors that differ, in registration order, each parameter before its state."""
    not_compared: tuple[str, ...]
    """Tensors of the file's model that the replica does not have (buffers)."""
    optimizer: bool
    """Whether the file holds an optimizer's state."""
    parameters_only: bool = False
    """True: the replica holds no optimizer state, so none was compared."""
    settings: SettingDifferences = NO_DIFFERENCES
    """Settings of the optimizer that differ between the file and the job file."""
    tainted_elements: int = 0
    """Elements of the compared tensors that rest on bytes which no mirror brought: not compared.
    Where only digests of the step are kept, all elements of their tensors."""
    compared_parameters: int = 0
    """Parameters of which elements were compared: all but those without an untainted element, or
    with a tainted one where only digests of the step are kept."""
    by_digests: bool = False
    """True: only digests of the step are kept."""
    rounded_to: str | None = None
    """Type of the file's model, to which the replica's values were rounded as torch rounds them
    before they were compared; None: all was compared as it is."""

    @property
    def equal(self) -> bool:
        """Whether all that was compared is equal."""
        return not self.differences

    @property
    def passed(self) -> bool:
        """Whether all that was compared is equal, and no setting differs that would change the
        replica's next step."""
        return self.equal and not self.settings.differing

    @property
    def first_difference(self) -> str | None:
        """The name of the first tensor that differs, else of the first setting that differs."""
        names = [d.name for d in self.differences]
        return names[0] if names else self.settings.first_setting


@structure_errors_as_state_errors("the file")
def audit_snapshot(template: CheckpointTemplate, snapshot: Snapshot) -> Audit:
    """Compares every parameter and optimizer state with a snapshot of the same step, but for
    elements that are tainted there. Raises StateError if the snapshot is of another step."""
    if template.step != snapshot.step:
        raise StateError(findings.OTHER_STEP(step=template.step, at=snapshot.step))
    pairs = [*_pairs(template, snapshot), *_optional_pairs(template, snapshot)]
    taint = _Taint(snapshot, template.names)
    found = [
        d
        for name, own, new in pairs
        if (d := _difference(name, own, new, taint.of(name, new))) is not None
    ]
    audit = _audit(template, len(pairs), found, snapshot.optimizer)
    return replace(
        audit,
        rounded_to=rounded_type(template, snapshot.layout),
        tainted_elements=taint.met,
        compared_parameters=sum(
            tainted_elements({p.name: snapshot.tainted.get(p.name, ())}) < p.elements
            for p in snapshot.layout.parameters
        ),
    )


class _Taint:
    """Tainted elements of a snapshot's tensors, in index order."""

    def __init__(self, snapshot: Snapshot, names: Sequence[str]) -> None:
        """names: the trainer's, of the parameters."""
        self._of: dict[str, tuple[FlatParameter, tuple[TaintedRange, ...]]] = {}
        self.met = 0
        for name, parameter in zip(names, snapshot.layout.parameters, strict=True):
            if ranges := snapshot.tainted.get(parameter.name):
                self._of[name] = self._of[parameter.name] = parameter, ranges

    def of(self, tensor: str, value: torch.Tensor) -> np.ndarray | None:
        """[elements] bool of a tensor, by its name; None: it has none. Numbers that count steps are
        exact whatever is missing."""
        name, _, kind = tensor.rpartition("/")
        found = self._of.get(tensor) or self._of.get(name if kind not in COUNTS else "")
        if found is None or value.shape != found[0].shape:
            return None
        parameter, ranges = found
        flat = np.zeros(parameter.elements, np.bool_)
        for one in ranges:
            flat[one.start : one.stop] = True
        self.met += int(flat.sum())
        # In memory order as the replica counts; bool has one byte, so strides are elements.
        view = np.lib.stride_tricks.as_strided(flat, parameter.shape, parameter.stride)
        return np.ascontiguousarray(view).reshape(-1)


@structure_errors_as_state_errors("the file")
def audit_digests(
    template: CheckpointTemplate,
    layout: Layout,
    optimizer: OptimizerConfig,
    digests: Sequence[bytes],
    tainted: Collection[str] = (),
) -> Audit:
    """Compares a checkpoint with a step of which only the tensors' digests are kept
    (digest_log.py).

    tainted: parameters with tainted elements, by the layout's names: they are not compared.
    digests: in the order of `named_tensors` (state_sections.py). Raises StateError if the
    checkpoint does not hold the same tensors, or holds rounded parameters.
    """
    if (dtype := rounded_type(template, layout)) is not None:
        raise StateError(ROUNDED_STEP_GONE(dtype=dtype, step=template.step))
    own = comparable_tensors(template, layout, optimizer, len(digests))
    theirs = [digests[tensor.number] for tensor in own]
    found = tensor_digests([tensor.array for tensor in own])
    names = zip(template.names, layout.parameters, strict=True)
    left_out = {name for name, parameter in names if parameter.name in tainted}
    left_out |= {one.name for one in own if one.name.rpartition("/")[0] in left_out}
    differ = [
        Difference(tensor.name)
        for tensor, a, b in zip(own, found, theirs, strict=True)
        if a != b and tensor.name not in left_out
    ]
    audit = _audit(template, len(own), differ, optimizer)
    uncompared = sum(one.array.size for one in own if one.name in left_out)
    return replace(
        audit,
        tainted_elements=uncompared,
        compared_parameters=sum(p.name not in tainted for p in layout.parameters),
        by_digests=True,
    )


class ComparableTensor(NamedTuple):
    """A tensor of the trainer's file, as the replica keeps it."""

    name: str
    """As in `Difference`."""
    number: int
    """Its place among the digests of a step."""
    array: np.ndarray
    """Flat, in the replica's order."""


def comparable_tensors(
    template: CheckpointTemplate, layout: Layout, optimizer: OptimizerConfig, tensors: int
) -> list[ComparableTensor]:
    """The file's tensors that the digests of a step tell of. tensors: number of digests of a step.
    Raises StateError if the checkpoint does not hold the same tensors."""
    sent = [
        in_memory_order(_as_sent(value, p, layout, optimizer), p, layout)
        for value, p in zip(template.parameters, layout.parameters, strict=True)
    ]
    own = [
        ComparableTensor(name, number, array)
        for number, (name, array) in enumerate(zip(template.names, sent, strict=True))
    ]
    if template.optimizer is None or not optimizer.computes_steps:
        return own
    description = _described(layout, optimizer, tensors)
    named = named_tensors(description, flat_sections(template, description))
    if all(s.name in state_section_names.REPLICA_SECTIONS for s in description.sections):
        return own
    return own + [
        ComparableTensor(_renamed(name, layout, template), number, array)
        for number, (name, array) in enumerate(named)
        if number >= len(own) and _is_optimizer_state(name)
    ]


@structure_errors_as_state_errors("the file")
def audit_frozen_and_buffers(
    found: Audit, template: CheckpointTemplate, auxiliary: FrozenAndBuffers
) -> Audit:
    """Adds the comparison of tensors that the optimizer does not step to the audit `found`: frozen
    parameters, buffers that are assumed constant, and buffers known at this step."""
    fixed = {*auxiliary.frozen, *auxiliary.constant_buffers}
    pairs = []
    for name in template.non_parameters:
        plain = name.removeprefix("module.")
        own = dict(auxiliary.keys).get(plain, plain)
        if own in auxiliary.tensors and (
            own in fixed or auxiliary.step_of_buffer(own) == template.step
        ):
            pairs.append((name, template.model[name], auxiliary.tensors[own]))
    # Buffers are saved in the model's type.
    if found.rounded_to is not None:
        pairs = [(name, own, _as_saved(own, new)) for name, own, new in pairs]
    differ = [d for name, own, new in pairs if (d := _difference(name, own, new)) is not None]
    held = {name for name, _, _ in pairs}
    return replace(
        found,
        tensors=found.tensors + len(pairs),
        differences=(*found.differences, *differ),
        not_compared=tuple(name for name in found.not_compared if name not in held),
    )


def _described(layout: Layout, optimizer: OptimizerConfig, tensors: int) -> Description:
    """The sections of a replica with `tensors` tensors. Raises StateError if none of these settings
    has so many."""
    for leaves_out in (False, True):
        description = Description(layout, tuple(describe_sections(layout, optimizer, leaves_out)))
        flat = {s.name: np.empty(0, s.dtype) for s in description.sections}
        if len(named_tensors(description, flat)) == tensors:
            return description
    raise StateError(findings.RECORD_OF_OTHER_SETTINGS(tensors))


def _is_optimizer_state(name: str) -> bool:
    """Whether a tensor of the replica is a state of torch's optimizer, or the record of the
    parameters that have one."""
    kind = name.rpartition("/")[2]
    return kind == state_section_names.STEPPED or kind not in state_section_names.REPLICA_SECTIONS


def _renamed(name: str, layout: Layout, template: CheckpointTemplate) -> str:
    """The tensor's name with the trainer's name of the parameter."""
    of, slash, kind = name.rpartition("/")
    places = {p.name: n for n, p in enumerate(layout.parameters)}
    return f"{template.names[places[of]]}{slash}{kind}" if slash else name


def _audit(
    template: CheckpointTemplate,
    tensors: int,
    differences: Sequence[Difference],
    config: OptimizerConfig,
) -> Audit:
    alone = not config.computes_steps
    optimizer = template.optimizer is not None
    return Audit(
        template.step, tensors, tuple(differences), template.non_parameters, optimizer, alone
    )


def _as_sent(
    own: torch.Tensor, parameter: FlatParameter, layout: Layout, config: OptimizerConfig
) -> torch.Tensor:
    """The trainer's parameter in the type of the replica's. Where FlowCheck computes no steps, the
    replica has parameters as they are gathered; the trainer's are rounded to that type as torch
    does before it sends them."""
    sent = getattr(torch, layout.dtype_of(parameter))
    if config.computes_steps or not own.is_floating_point() or is_rounding(sent, own.dtype):
        return own
    return own.to(sent)


def _as_saved(own: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The replica's values `new` rounded to the type in which the trainer saved them. NaN in both
    are the same: rounding keeps none of its bits."""
    if own.shape != new.shape or not is_rounding(new.dtype, own.dtype):
        return new
    rounded = new.to(own.dtype)
    return torch.where(rounded.isnan() & own.isnan(), own, rounded)


def rounded_type(template: CheckpointTemplate, layout: Layout) -> str | None:
    """The type to which a file's parameters were rounded when they were saved, of the first that
    was; None: they are in the replica's types."""
    for own, parameter in zip(template.parameters, layout.parameters, strict=True):
        if is_rounding(getattr(torch, layout.dtype_of(parameter)), own.dtype):
            return str(own.dtype).removeprefix("torch.")
    return None


def _pairs(
    template: CheckpointTemplate, snapshot: Snapshot
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    values = snapshot.parameters.values()
    for index, (name, own, new) in enumerate(
        zip(template.names, template.parameters, values, strict=True)
    ):
        parameter = snapshot.layout.parameters[index]
        sent = _as_sent(own, parameter, snapshot.layout, snapshot.optimizer)
        yield name, sent, _as_saved(sent, new)
        if snapshot.parameters_only:
            continue
        held = {k: v for k, v in template.optimizer_state(index).items() if v is not None}
        if template.optimizer is not None and held.keys() != snapshot.states[index].keys():
            own_states = sorted(snapshot.states[index])
            raise StateError(
                findings.OTHER_STATES(parameter=name, states=sorted(held), own=own_states)
            )
        for kind, value in held.items():
            mine = snapshot.states[index][kind]
            yield f"{name}/{kind}", torch.as_tensor(value), torch.as_tensor(mine)


def _optional_pairs(
    template: CheckpointTemplate, snapshot: Snapshot
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, trainer's tensor, replica's tensor) of master weights, averages and loss scale, where
    both have them."""
    more = snapshot.optional_state
    if more.masters is not None:
        inner = stepped_layout(snapshot.optimizer, snapshot.layout)
        theirs = masters_in(template, inner) or ()
        for (name, own), their in zip(more.masters.items(), theirs, strict=bool(theirs)):
            yield f"{name}/{state_section_names.MASTER}", their, own
    averages = averages_in(template) if more.averages is not None else None
    if more.averages is not None and averages is not None:
        for (name, own), their in zip(more.averages.items(), averages[0], strict=True):
            yield f"{name}/{state_section_names.AVERAGE}", their, own
        counts = torch.tensor(float(averages[1])), torch.tensor(float(more.average_updates))
        yield state_section_names.AVERAGED, *counts
    scaler = scaler_in(template.tree) if more.scaler else None
    if scaler is not None:
        for key, own_key in (("scale", "scale"), ("_growth_tracker", "growth_tracker")):
            own = torch.tensor(more.scaler[own_key], dtype=torch.float64)
            yield (
                f"{state_section_names.SCALER}/{key}",
                torch.tensor(scaler[key], dtype=own.dtype),
                own,
            )


def _difference(
    name: str, own: torch.Tensor, new: torch.Tensor, tainted: np.ndarray | None = None
) -> Difference | None:
    """tainted: [elements] bool, in index order, those that are not compared."""
    if own.shape != new.shape or own.dtype != new.dtype:
        raise StateError(type_or_shape_differs(name, own, new))
    one, other = _bits(own), _bits(new)
    differ = one != other
    if tainted is not None:
        differ &= ~tainted
    if not differ.any():
        return None
    nans = (torch.isnan(own) | torch.isnan(new)).contiguous().reshape(-1).numpy()
    nan = bool((nans & differ).any())
    a, b = _ordered(one[differ]), _ordered(other[differ])
    distance = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    first = int(differ.argmax())
    index = tuple(int(i) for i in np.unravel_index(first, tuple(own.shape)))
    values = (repr(value.reshape(-1)[first].item()) for value in (own, new))
    return Difference(name, int(differ.sum()), None if nan else int(distance.max()), index, *values)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The bits of the elements as integers, flat, in index order."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw.view(_BITS[tensor.element_size()])


def _ordered(bits: np.ndarray) -> np.ndarray:
    """IEEE 754 bits as int64 that ascend with the value, so that a difference counts ulps."""
    lowest = np.int64(np.iinfo(bits.dtype).min)
    wide = bits.astype(np.int64)
    return np.where(wide < 0, lowest - wide, wide)
