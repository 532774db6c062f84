"""Plain values into typed settings: whatever does not fit is named by its key."""

from __future__ import annotations

import difflib
import re
from typing import Any, TypeVar

import msgspec

from flowcheck.errors import ConfigError


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table of a file of settings: frozen, and no unknown keys."""


def at_least(key: str, value: int, least: int) -> None:
    """Raises ConfigError for a value that is less."""
    if value < least:
        raise ConfigError(key, value, f"must be {least} or more")


AnySection = TypeVar("AnySection", bound=Section)


def convert(tree: dict[str, Any], kind: type[AnySection]) -> AnySection:
    """`tree` as `kind`. Raises ConfigError with the path of the key that is unknown or wrong."""
    _refuse_unknown(tree, kind, "")
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        text = str(error)
        where = re.search(r"at `\$\.?(.*)`", text)
        key = where[1] if where else "job file"
        raise ConfigError(key, _lookup(tree, key), text.split(" - at ", maxsplit=1)[0]) from error


def _lookup(tree: Any, key: str) -> object:
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            tree = tree[int(part)] if part.isdigit() else tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _sections(kind: type[Section]) -> dict[str, type[Section]]:
    """Fields of `kind` that are tables themselves."""
    found: dict[str, type[Section]] = {}
    for field in msgspec.structs.fields(kind):
        for candidate in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                found[field.name] = candidate
    return found


def _refuse_unknown(tree: dict[str, Any], kind: type[Section], above: str) -> None:
    known = [field.name for field in msgspec.structs.fields(kind)]
    for key, value in tree.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {above}{near[0]}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"{above}{key}", value, f"is not a known key; {hint}")
        below = _sections(kind).get(key)
        for part in value if isinstance(value, list) else [value]:
            if below is not None and isinstance(part, dict):
                _refuse_unknown(part, below, f"{above}{key}.")
