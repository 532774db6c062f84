"""TOML text of settings, which Python's tomllib only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_running import NO_TEXT_FOR

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that needs no quotes (TOML 1.0, Keys)."""


def toml_text(tree: Mapping[str, Any]) -> str:
    """The file with these tables: tomllib reads it as `tree`. Values that are None are left out.
    Raises ConfigError for a value that TOML, or a job file, has no kind for."""
    tree = {key: value for key, value in tree.items() if value is not None}
    plain = {k: v for k, v in tree.items() if not isinstance(v, dict) and not _is_tables(v)}
    lines = [f"{_key(key)} = {_value(key, value)}" for key, value in plain.items()]
    for key, value in tree.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(key)}]", *_pairs(key, value)]
        elif _is_tables(value):
            for one in value:
                lines += ["", f"[[{_key(key)}]]", *_pairs(key, one)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(o, dict) for o in value)


def _pairs(table: str, tree: Mapping[str, Any]) -> list[str]:
    """The lines of a table; tables within stand in one line each."""
    return [
        f"{_key(key)} = {_value(f'{table}.{key}', value)}"
        for key, value in tree.items()
        if value is not None
    ]


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which must be escaped here."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)  # inf and nan are written so too
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(key, one) for one in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(_pairs(key, value))
        return "{ " + pairs + " }" if pairs else "{}"
    raise ConfigError(key, str(value), NO_TEXT_FOR(type(value).__name__))
