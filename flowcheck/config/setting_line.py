"""In which line of a settings file a key stands, for errors about it.

tomllib tells no lines. So the file is parsed again and again, each time up to the end of one more
statement: the statement after which the key is there has it, in whatever way TOML lets it be
written.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.errors import ConfigError, RunDirError
from flowcheck.findings.catalog.general_errors import AT_LINE, BESIDE_SETTINGS, IN_FILE
from flowcheck.findings.finding import Finding

_STATEMENT = re.compile(r"""\s*(?:\[|[\w."'-]+\s*(?:\.\s*[\w"'-]+\s*)*=)""")
"""How a statement may begin; a line within a list or a text may look so as well."""
_FUNCTION = re.compile(r"(.*\.py):\w+")
_PART = re.compile(r"[^.\[\]]+")
"""Of a key such as source[0].speed."""
STATEMENTS_MAX = 2000
"""A choice: in a longer file no line is looked for, as each statement costs a parse."""
KeyPath = tuple[str | int, ...]


@contextmanager
def naming_file_and_line(path: Path, kind: type[msgspec.Struct]) -> Iterator[None]:
    """A ConfigError from within about a key of the settings in `path` tells the file, and the line
    where the key stands, and the file that is meant where a relative path is taken from the wrong
    folder. kind: the settings; an error about anything else stays as it is."""
    try:
        yield
    except ConfigError as error:
        if error.place is None and not isinstance(error, RunDirError):
            place = _place(path, kind, error)
            if place is not None and (found := _beside(path, error.value)) is not None:
                here = Path.cwd()
                error.correct(BESIDE_SETTINGS(why=error.right, found=found, folder=here))
            if place is not None:
                error.locate(place)
        raise


def _beside(settings: Path, value: object) -> Path | None:
    """The file that `value` names as seen from the settings file, where the working directory has
    none of that name; None: there is none, or it is no relative path. value: a path, or the
    "file.py:function" of a factory."""
    if not isinstance(value, str):
        return None
    stated = _FUNCTION.sub(r"\1", value)
    with suppress(OSError, ValueError):
        there = settings.absolute().parent / stated
        if not Path(stated).is_absolute() and there.is_file() and not Path(stated).exists():
            return there
    return None


def _place(path: Path, kind: type[msgspec.Struct], error: ConfigError) -> Finding | None:
    first = next(iter(_PART.findall(error.key)), "")
    known = first in {field.encode_name for field in msgspec.structs.fields(kind)}
    with suppress(OSError, ValueError, RecursionError):
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
        stated = first in tomllib.loads(text)
        if (known or stated) and (line := line_of_key(text, error.key, error.value)) is not None:
            return AT_LINE(file=path, line=line)
        if stated or (known and error.value is None):
            return IN_FILE(path)
    return None


def line_of_key(text: str, key: str, value: object) -> int | None:
    """The line, from 1, of the statement that states `key`, or else the table it belongs to; None
    where there is none, or where several may be meant. value: what the error says it is."""
    parts = _PART.findall(key)
    tree = tomllib.loads(text)
    while parts:
        found = list(_paths(tree, parts)) or list(_paths(tree, ["job", *parts]))
        if len(found) > 1:
            found = [one for one in found if _same(_at(tree, one), value)]
        if found:
            return _line_of_path(text, found[0]) if len(found) == 1 else None
        parts.pop()
    return None


def _paths(tree: Any, parts: Sequence[str]) -> Iterator[KeyPath]:
    """All places with these keys; a key without an index is looked for in each table of a list."""
    if not parts:
        yield ()
    elif isinstance(tree, dict) and parts[0] in tree:
        yield from ((parts[0], *rest) for rest in _paths(tree[parts[0]], parts[1:]))
    elif isinstance(tree, list):
        stated = parts[0].isdigit()
        rest = parts[1:] if stated else parts
        for number in [int(parts[0])] if stated else range(len(tree)):
            if number < len(tree):
                yield from ((number, *below) for below in _paths(tree[number], rest))


def _at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _same(stated: object, told: object) -> bool:
    return stated == told or (isinstance(told, tuple) and stated == list(told))


def _line_of_path(text: str, path: KeyPath) -> int | None:
    lines = text.split("\n")
    begins = [number for number, line in enumerate(lines) if _STATEMENT.match(line)]
    if len(begins) > STATEMENTS_MAX:
        return None
    first = None
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        first = begin if first is None else first
        with suppress(tomllib.TOMLDecodeError):  # within a list or a text
            tree = tomllib.loads("\n".join(lines[:end]))
            with suppress(LookupError, TypeError):
                _at(tree, path)
                return first + 1
            first = None
    return None
