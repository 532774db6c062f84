"""The flat arrays (sections) of a replica's copy for the job's optimizer, and the position of each
tensor in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from flowcheck.config import OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.refused_optimizers import STATE_NAME_TAKEN
from flowcheck.optimizer_rules.optimizer_rule import StatePresence
from flowcheck.replica.flat_tensors import flat_tensor, parameter_views
from flowcheck.replica.optimizer.grad_scaler import check_scaler
from flowcheck.replica.optimizer.master_weights import stepped_layout
from flowcheck.replica.optimizer.optimizer_state_shapes import (
    NUMBERS,
    StateShape,
    optimizer_state_shapes,
)
from flowcheck.replica.optimizer.state_section_names import (
    AVERAGE,
    AVERAGED,
    MASTER,
    PARAMETERS,
    REPLICA_SECTIONS,
    SCALER,
    SCALER_NUMBERS,
    STEP_COUNT,
    STEPPED,
)
from flowcheck.replica.param_layout import STORED_AS, Layout
from flowcheck.replica.state_digest import NamedArray
from flowcheck.replica.state_file.file_header import Description, EntryPer, Section, TensorPlace

PLACE_ALIGN = 64
"""Alignment of tensors in bytes: a cache line, as in torch."""
_OF_PYTHON = frozenset(NUMBERS.values())


class StoredState(NamedTuple):
    """One state of one parameter, in place in its section."""

    tensor: torch.Tensor
    number: str = ""
    """Name of a Python number type (NUMBERS in optimizer_state_shapes.py); "": the state is a
    tensor."""

    @property
    def value(self) -> torch.Tensor | int | float | bool:
        """The state as torch's optimizer keeps it: a tensor, or a Python number."""
        return self.tensor.item() if self.number else self.tensor


def describe_sections(layout: Layout, config: OptimizerConfig, leaves_out: bool) -> list[Section]:
    """The sections of a copy; optimizer states are in the order in which torch creates them.
    leaves_out: steps may omit parameters. Raises ConfigError for settings that torch refuses,
    StateError where a state has a reserved name."""
    made = [Section(PARAMETERS, layout.numpy_dtype, layout.elements)]
    if not config.computes_steps:
        return [*made, _each(STEPPED, layout, "float32")] if leaves_out else made
    inner = stepped_layout(config, layout)
    own = inner.dtype if inner is not layout else ""
    if own:
        made.append(Section(MASTER, inner.numpy_dtype, inner.elements, holds=own))
    kinds = optimizer_state_shapes(config, inner).kinds
    for name in dict.fromkeys(name for each in kinds for name in each):
        if name in REPLICA_SECTIONS:
            raise StateError(STATE_NAME_TAKEN(repr(name)))
        made.append(_section(name, [each.get(name) for each in kinds], inner, own))
    if config.average is not None:
        made.append(Section(AVERAGE, layout.numpy_dtype, layout.elements))
        made.append(Section(AVERAGED, "<i8", 1, per=EntryPer.REPLICA))
    if config.scaler is not None:
        check_scaler(config, inner)
        made.append(Section(SCALER, "<f8", len(SCALER_NUMBERS), per=EntryPer.REPLICA))
    told_by = StatePresence.RECORDED if config.skips else config.rule.state_presence
    if told_by is StatePresence.FROM_FIRST_STEP and leaves_out:
        told_by = StatePresence.RECORDED
    if told_by is StatePresence.RECORDED:
        made.append(_each(STEPPED, layout, "float32"))
    return made


def _each(name: str, layout: Layout, holds: str) -> Section:
    count = len(layout.parameters)
    return Section(name, STORED_AS[holds], count, per=EntryPer.PARAMETER, holds=holds)


def _section(name: str, kinds: Sequence[StateShape | None], layout: Layout, holds: str) -> Section:
    """Of one state. layout: of what is stepped."""
    every = [kind for kind in kinds if kind is not None]
    alike = len(every) == len(kinds) and len({kind.dtype for kind in every}) == 1
    if alike and not any(kind.shape for kind in every):
        return _each(name, layout, every[0].dtype)
    if len(every) == len(kinds) and all(
        (kind.dtype, kind.shape) == (layout.dtype_of(p), p.shape) and _lies_so(kind, p.stride)
        for kind, p in zip(every, layout.parameters, strict=True)
    ):
        return Section(name, layout.numpy_dtype, layout.elements, holds=holds)
    places, at = [], 0
    for index, kind in enumerate(kinds):
        if kind is None:
            continue
        place = TensorPlace(index, at, kind.dtype, kind.shape, kind.stride)
        places.append(place)
        at += -(-place.size_bytes // PLACE_ALIGN) * PLACE_ALIGN
    return Section(name, "|u1", at, per=EntryPer.PLACE, places=tuple(places))


def _lies_so(kind: StateShape, stride: tuple[int, ...]) -> bool:
    """The stride of a dimension of size 1 says nothing, nor of an empty tensor."""
    pairs = zip(kind.shape, kind.stride, stride, strict=True)
    return not math.prod(kind.shape) or all(a == b for size, a, b in pairs if size > 1)


def named_tensors(description: Description, arrays: Mapping[str, np.ndarray]) -> list[NamedArray]:
    """(name, array) of each tensor of a copy: "weight", "weight/exp_avg", ...; then arrays with
    one number per parameter or for the whole replica: "step", "stepped", ... arrays: by section
    name."""
    layout = description.layout
    tensors: list[NamedArray] = []
    for section in description.sections:
        array = arrays[section.name]
        if section.per is EntryPer.ELEMENT:
            behind = "" if section.name == PARAMETERS else f"/{section.name}"
            own = layout_of_section(section, layout).parameters
            tensors += [(f"{p.name}{behind}", array[p.start : p.stop]) for p in own]
        elif section.per is EntryPer.PLACE:
            for place in section.places:
                name = layout.parameters[place.parameter].name
                part = array[place.start : place.start + place.size_bytes]
                tensors.append((f"{name}/{section.name}", part))
    return tensors + [
        (s.name, arrays[s.name])
        for s in description.sections
        if s.per in (EntryPer.PARAMETER, EntryPer.REPLICA)
    ]


def layout_of_section(section: Section, layout: Layout) -> Layout:
    """The layout of a section with one entry per element."""
    return layout.with_single_dtype(section.holds) if section.holds else layout


def tensors_of_section(
    description: Description, arrays: Mapping[str, np.ndarray], name: str
) -> list[torch.Tensor] | None:
    """[parameter] tensors of a section with one entry per element, in place and with the trainer's
    strides; None: no such section."""
    for section in description.sections:
        if section.name == name:
            own = layout_of_section(section, description.layout)
            return parameter_views(flat_tensor(arrays[name], own), own)
    return None


def stored_states(
    description: Description, arrays: Mapping[str, np.ndarray]
) -> list[dict[str, StoredState]]:
    """[parameter] {torch's name: state}, in place, whether or not the parameter was ever
    stepped."""
    found: list[dict[str, StoredState]] = [{} for _ in description.layout.parameters]
    for section in description.sections:
        array = arrays[section.name]
        if section.name in REPLICA_SECTIONS:
            continue
        if section.per is EntryPer.ELEMENT:
            own = layout_of_section(section, description.layout)
            for index, tensor in enumerate(parameter_views(flat_tensor(array, own), own)):
                found[index][section.name] = StoredState(tensor)
        elif section.per is EntryPer.PARAMETER:
            flat = _typed(array, section.holds)
            for index in range(len(found)):
                number = section.holds if section.holds in _OF_PYTHON else ""
                found[index][section.name] = StoredState(flat[index], number)
        else:
            for place in section.places:
                raw = array[place.start : place.start + place.size_bytes]
                tensor = torch.as_strided(_typed(raw, place.dtype), place.shape, place.stride)
                number = place.dtype if place.dtype in _OF_PYTHON else ""
                found[place.parameter][section.name] = StoredState(tensor, number)
    return found


def _typed(array: np.ndarray, dtype: str) -> torch.Tensor:
    """An array as a flat tensor of torch's dtype, or of one that holds Python's numbers."""
    words = {"int": "int64", "float": "float64"}
    return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, words.get(dtype, dtype)))


def has_state_mask(
    description: Description, arrays: Mapping[str, np.ndarray], *, stepped: bool
) -> np.ndarray:
    """[parameters] bool: whether torch has a state for it. stepped: at least one step was
    applied."""
    if STEPPED in arrays:
        return arrays[STEPPED] > 0
    if not stepped:
        return np.zeros(len(description.layout.parameters), np.bool_)
    if STEP_COUNT in arrays:
        return arrays[STEP_COUNT] > 0
    return np.ones(len(description.layout.parameters), np.bool_)
