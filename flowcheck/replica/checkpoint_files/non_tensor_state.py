"""The part of a trainer's state that is not tensors, as JSON in the manifest, and its checks when
read back."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_damage import (
    GROUPS_OF_NO_OPTIMIZER,
    NO_MANIFEST,
    NO_PARAMETER,
    NUMBER_IN_NO_GROUP,
    NUMBER_TWICE,
    PLAIN_UNLIKE,
    SCALER_WITHOUT_SCALE,
)
from flowcheck.findings.catalog.unloadable_checkpoints import NESTED_TOO_DEEP, NOT_A_PLAIN_VALUE
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step

TUPLE, FLOAT, ITEMS = "__tuple__", "__float__", "__items__"
DEPTH_MAX = 64
"""Most levels of nested dictionaries and lists. A choice far below Python's recursion limit of
1,000; a trainer's state has a few levels."""


def to_json_value(value: Any, what: str, depth: int = 0) -> Any:
    """Converts `value` to JSON's types. Raises StateError that names `what` for a value that has no
    such form or is nested too deep."""
    if depth > DEPTH_MAX:
        raise StateError(NESTED_TOO_DEEP(what=what, depth=DEPTH_MAX))
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {
            TUPLE: [to_json_value(one, f"{what}[{i}]", depth + 1) for i, one in enumerate(value)]
        }
    if isinstance(value, list):
        return [to_json_value(one, f"{what}[{i}]", depth + 1) for i, one in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {k: to_json_value(one, f"{what}.{k}", depth + 1) for k, one in value.items()}
        pairs = [list(pair) for pair in value.items()]
        return {ITEMS: [to_json_value(pair, what, depth + 2) for pair in pairs]}
    if getattr(value, "dim", None) is not None and value.dim() == 0:
        return to_json_value(value.item(), what, depth + 1)  # a rate kept as a tensor
    raise StateError(NOT_A_PLAIN_VALUE(what=what, type=type(value).__name__))


def from_json_value(value: Any) -> Any:
    """Converts the result of `to_json_value` back to the original value."""
    if isinstance(value, list):
        return [from_json_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {TUPLE}:
        return tuple(from_json_value(value[TUPLE]))
    if value.keys() == {FLOAT}:
        return float(value[FLOAT])
    if value.keys() == {ITEMS}:
        return dict(from_json_value(value[ITEMS]))
    return {key: from_json_value(one) for key, one in value.items()}


class SavedOptimizerSplit(msgspec.Struct, frozen=True):
    """How parameter groups belong to several optimizers (replica/checkpoint/trainer_state.py)."""

    groups: tuple[int, ...]
    """Number of groups of each optimizer."""
    keys: tuple[str, ...]
    """Key of each optimizer's state in the trainer's checkpoint. Empty: the script saves a list."""


class SavedFrozenAndBuffers(msgspec.Struct, frozen=True):
    """Facts about a module's frozen parameters and buffers, without their tensors
    (replica/checkpoint/frozen_and_buffers.py)."""

    keys: tuple[tuple[str, str], ...]
    registered: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]
    constant_buffers: tuple[str, ...] = msgspec.field(name="still")
    step: Step
    sent: int | None = None
    followed: tuple[str, ...] = ()


class SavedParamGroup(msgspec.Struct, frozen=True):
    """The key of torch's parameter groups that is checked here."""

    params: tuple[int, ...]


class NonTensorState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of FlowCheck's own format that is not a tensor. None: the field was not written."""

    param_groups: list[dict[str, Any]] | None = None
    numbers: dict[str, int] | None = None
    """{parameter: its number in the optimizer's state}."""
    several: SavedOptimizerSplit | None = None
    scheduler: Any = None
    scaler: dict[str, int | float] | None = None
    state: dict[str, dict[str, Any]] = {}
    """{parameter: {name: value}} of optimizer states that are not tensors."""
    frozen_and_buffers: SavedFrozenAndBuffers | None = msgspec.field(default=None, name="beside")
    averaged: int = 0
    optimizer_steps: int | None = msgspec.field(default=None, name="taken")


def decode_non_tensor_state(
    plain: dict[str, Any], names: Collection[str], where: str
) -> NonTensorState:
    """Decodes and checks the field `plain` of a manifest. names: the parameters' names. Raises
    StateError that names `where` if FlowCheck would not have written such a field."""
    try:
        found = msgspec.convert(from_json_value(plain), NonTensorState)
        groups = [msgspec.convert(group, SavedParamGroup) for group in found.param_groups or ()]
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
        raise StateError(NO_MANIFEST(where=where, error=f"plain: {error}")) from error
    if (wrong := _unlike(found, groups, names)) is not None:
        raise StateError(NO_MANIFEST(where=where, error=PLAIN_UNLIKE(wrong)))
    return found


def _unlike(
    found: NonTensorState, groups: Sequence[SavedParamGroup], names: Collection[str]
) -> Finding | None:
    """What in `found` is inconsistent; None: nothing."""
    numbers = found.numbers or {}
    if strangers := (numbers.keys() | found.state.keys()) - set(names):
        return NO_PARAMETER(f"{min(strangers)!r:.300}")
    if len(set(numbers.values())) < len(numbers):
        return NUMBER_TWICE()
    held = [number for group in groups for number in group.params]
    if groups and not set(numbers.values()) <= set(held):
        return NUMBER_IN_NO_GROUP()
    if found.several is not None and not _parts(found.several, len(groups)):
        return GROUPS_OF_NO_OPTIMIZER()
    if found.scaler is not None and not {"scale", "_growth_tracker"} <= found.scaler.keys():
        return SCALER_WITHOUT_SCALE()
    return None


def _parts(several: SavedOptimizerSplit, groups: int) -> bool:
    counts, keys = several.groups, several.keys
    fits = sum(counts) == groups and all(count > 0 for count in counts)
    return fits and len(keys) in (0, len(counts)) and len(set(keys)) == len(keys)
