"""Decodes TOML tables into typed settings: unknown keys and wrong values are refused with the
path of the key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from flowcheck import foreign_messages
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import (
    ABOVE_TABLES,
    ALSO_UNKNOWN,
    AT_LEAST,
    DID_YOU_MEAN,
    KNOWN_KEYS,
    NOT_ACCEPTED,
    NOT_STATED,
    ONE_OF,
    UNKNOWN_KEY,
    UNKNOWN_KEYS,
    WRONG_LENGTH,
    WRONG_TYPE,
)
from flowcheck.findings.finding import Finding

OTHER_WORDS = {
    "lr": "learning_rate",
    "foreach": "implementation",
    "fused": "implementation",
    "folder": "target",
    "directory": "target",
}
"""{torch's name of a setting, or another usual one: the key of the job file}, for the hint after a
wrong key. Misspelt they count as well."""
NEAR = 0.6
"""Smallest likeness (difflib's ratio, 0 to 1) of a wrong key to one that may be meant. A choice:
lower suggests keys that share a few letters, higher misses two slips in a short key."""


class ConfigSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of every table in a settings file: frozen, and unknown keys are refused."""


def at_least(key: str, value: int, least: int) -> None:
    """Raises ConfigError if `value` is below `least`."""
    if value < least:
        raise ConfigError(key, value, AT_LEAST(least))


AnySection = TypeVar("AnySection", bound=ConfigSection)


def convert(tree: dict[str, Any], kind: type[AnySection]) -> AnySection:
    """Converts `tree` to `kind`. Raises ConfigError with the path of an unknown or wrong key."""
    refuse_unknown_keys(tree, kind)
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        text = str(error)
        where = foreign_messages.MSGSPEC_PLACE.search(text)
        key = where[1] if where else "job file"
        told = text[: where.start()] if where else text
        right = _plain(told, _choices(kind, key))
        if missing := foreign_messages.MSGSPEC_MISSING.fullmatch(told):
            key = f"{key}.{missing[1]}" if where and key else missing[1]
        raise ConfigError(key, _lookup(tree, key), right) from error


WORDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
"""{msgspec's name of a type: its name in a message}. msgspec's null is a key that is left out."""


def _plain(told: str, choices: tuple[str, ...]) -> Finding:
    """Translates msgspec's message about a value into a finding in words of the job file."""
    if choices:
        return ONE_OF(choices)
    if missing := foreign_messages.MSGSPEC_MISSING.fullmatch(told):
        return NOT_STATED(missing[1])
    if wrong := foreign_messages.MSGSPEC_LENGTH.fullmatch(told):
        return WRONG_LENGTH(wanted=int(wrong[1]), found=int(wrong[2]))
    if wrong := foreign_messages.MSGSPEC_TYPE.fullmatch(told):
        wanted = [WORDS.get(name, name) for name in wrong[1].split(" | ") if name != "null"]
        found = "a number with a point" if wrong[2] == "float" else WORDS.get(wrong[2], wrong[2])
        return WRONG_TYPE(wanted=" or ".join(wanted), found=found)
    return NOT_ACCEPTED(told)


def _choices(kind: type[ConfigSection], key: str) -> tuple[str, ...]:
    """The values that the key accepts; empty where it is not limited to a list."""
    *tables, last = re.sub(r"\[.*?\]", "", key).split(".")
    for table in tables:
        if table not in _sections(kind):
            return ()
        kind = _sections(kind)[table]
    types = {field.encode_name: field.type for field in _fields(kind)}
    found = types.get(last)
    for one in (found, *get_args(found)):  # a key that may be left out has None beside them
        if isinstance(one, type) and issubclass(one, Enum):
            return tuple(str(member.value) for member in one)
        if get_origin(one) is Literal:
            return get_args(one)
    return ()


def _lookup(tree: Any, key: str) -> object:
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            tree = tree[int(part)] if part.isdigit() else tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


@cache
def _fields(kind: type[ConfigSection]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """msgspec evaluates the annotations of a class each time it is asked."""
    return msgspec.structs.fields(kind)


@cache
def _sections(kind: type[ConfigSection]) -> Mapping[str, type[ConfigSection]]:
    """{key: class} of the fields of `kind` that are tables."""
    found: dict[str, type[ConfigSection]] = {}
    for field in _fields(kind):
        for candidate in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, ConfigSection):
                found[field.encode_name] = candidate
    return MappingProxyType(found)


def refuse_unknown_keys(tree: dict[str, Any], kind: type[ConfigSection]) -> None:
    """Raises ConfigError about the first key of `tree`, at any depth, that `kind` does not have; it
    names the others as well."""
    found = list(_unknown_keys(tree, kind, "", kind))
    if not found:
        return
    (key, value, hint), *more = found
    others = [ALSO_UNKNOWN(key=key, hint=hint) for key, _, hint in more]
    raise ConfigError(
        key, value, UNKNOWN_KEYS(hint=hint, others=others) if others else UNKNOWN_KEY(hint)
    )


def _unknown_keys(
    tree: dict[str, Any], kind: type[ConfigSection], above: str, root: type[ConfigSection]
) -> Iterator[tuple[str, object, Finding]]:
    """(key, value, what may be meant)."""
    known = [field.encode_name for field in _fields(kind)]
    for key, value in tree.items():
        if key not in known:
            words = {word: word for word in known}
            words |= {word: own for word, own in OTHER_WORDS.items() if own in known}
            near = difflib.get_close_matches(key, words, n=1, cutoff=NEAR)
            hint = DID_YOU_MEAN(f"{above}{words[near[0]]}") if near else KNOWN_KEYS(known)
            if above and key in [field.encode_name for field in _fields(root)]:
                hint = ABOVE_TABLES(key)
            yield f"{above}{key}", value, hint
            continue
        below = _sections(kind).get(key)
        for part in value if isinstance(value, list) else [value]:
            if below is not None and isinstance(part, dict):
                yield from _unknown_keys(part, below, f"{above}{key}.", root)
