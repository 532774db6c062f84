"""What a manifest keeps beside tensors, each part of the kind it is said to be of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from flowcheck.errors import StateError
from flowcheck.replica.files.plain import from_plain
from flowcheck.step_numbers import Step


class Several(msgspec.Struct, frozen=True):
    """Which groups are of which of several optimizers (replica/among.py)."""

    groups: tuple[int, ...]
    keys: tuple[str, ...]


class PlainBeside(msgspec.Struct, frozen=True):
    """The rest of a module but its tensors (kept/beside.py)."""

    keys: tuple[tuple[str, str], ...]
    registered: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]
    still: tuple[str, ...]
    step: Step
    sent: int | None = None
    followed: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """Of one of torch's parameter groups, what is read here."""

    params: tuple[int, ...]


class PlainParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the native form; what is None was not written."""

    param_groups: list[dict[str, Any]] | None = None
    numbers: dict[str, int] | None = None
    """By parameter, the optimizer's number of it."""
    several: Several | None = None
    scheduler: Any = None
    scaler: dict[str, int | float] | None = None
    state: dict[str, dict[str, Any]] = {}
    """By parameter: states that are no tensors."""
    beside: PlainBeside | None = None
    averaged: int = 0
    taken: int | None = None


def plain_parts(plain: dict[str, Any], names: Collection[str], where: str) -> PlainParts:
    """Of a manifest's `plain`. names: of its parameters. Raises StateError, which names `where`,
    for what no checkpoint of ours holds."""
    try:
        found = msgspec.convert(from_plain(plain), PlainParts)
        groups = [msgspec.convert(group, Group) for group in found.param_groups or ()]
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
        raise StateError(f"{where}: not a manifest of ours: plain: {error}") from error
    if (wrong := _unlike(found, groups, names)) is not None:
        raise StateError(f"{where}: not a manifest of ours: plain: {wrong}")
    return found


def _unlike(found: PlainParts, groups: Sequence[Group], names: Collection[str]) -> str | None:
    """What of it does not fit the rest; None: nothing."""
    numbers = found.numbers or {}
    if strangers := (numbers.keys() | found.state.keys()) - set(names):
        return f"{min(strangers)!r:.300} is no parameter"
    if len(set(numbers.values())) < len(numbers):
        return "two parameters have the same number"
    held = [number for group in groups for number in group.params]
    if groups and not set(numbers.values()) <= set(held):
        return "a parameter's number is in no group"
    if found.several is not None and not _parts(found.several, len(groups)):
        return "its groups are not those of its optimizers"
    if found.scaler is not None and not {"scale", "_growth_tracker"} <= found.scaler.keys():
        return "the scaler has no scale"
    return None


def _parts(several: Several, groups: int) -> bool:
    counts, keys = several.groups, several.keys
    fits = sum(counts) == groups and all(count > 0 for count in counts)
    return fits and len(keys) in (0, len(counts)) and len(set(keys)) == len(keys)
