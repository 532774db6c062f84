"""A fact as a code with arguments; its sentence is made from the catalogue, last.

What is stored, sent or compared is the code and its arguments. The sentence stands beside them in
JSON for people, and no program reads it: rewording one changes no behaviour.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

Scalar = bool | int | float | str | None


class Finding(msgspec.Struct, frozen=True, eq=False):
    """One fact. Two findings are equal if code and arguments are."""

    code: str
    """`subject.what`, one of the catalogue's; another version of FlowCheck may know more."""
    arguments: dict[
        str, bool | int | float | str | Finding | tuple[Scalar | Finding, ...] | None
    ] = {}
    sentence: str = ""
    """As the version that made it said it; shown only where this one does not know the code."""

    def __str__(self) -> str:
        entry = _ENTRIES.get(self.code)
        if entry is None or set(entry.names) != set(self.arguments):
            return self.sentence or f"{self.code} {self.arguments}"
        return entry.sentence_of(self.arguments)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        return self.code == other.code and self.arguments == other.arguments

    def __hash__(self) -> int:
        return hash((self.code, tuple(sorted(self.arguments.items(), key=lambda item: item[0]))))

    def of(self, *entries: Entry) -> bool:
        """Whether its code is that of one of these."""
        return any(self.code == entry.code for entry in entries)

    @property
    def until_audit(self) -> bool:
        """It is assumed until an audit of a step taken since passes."""
        entry = _ENTRIES.get(self.code)
        return entry is not None and entry.until_audit

    @property
    def remedy(self) -> str:
        """What to do, of the catalogue; "" where nothing is to be done."""
        entry = _ENTRIES.get(self.code)
        return "" if entry is None else entry.remedy


class Entry:
    """One row of the catalogue; called with its arguments it makes the finding.

    Arguments are named in the sentence as str.format has it, `{bytes:,}`; positional ones take
    those names in the order of their first appearance.
    """

    def __init__(
        self,
        code: str,
        sentence: str,
        *,
        cause: str = "",
        remedy: str = "",
        until_audit: bool = False,
    ) -> None:
        """cause: what it means, remedy: what to do, both for the page of failures (Markdown).
        Raises ValueError where the code is another entry's already."""
        if code in _ENTRIES:
            raise ValueError(f"two entries of the catalogue have the code {code}")
        self.code, self.sentence = code, sentence
        self.cause, self.remedy, self.until_audit = cause, remedy, until_audit
        fields = (name for _, name, _, _ in string.Formatter().parse(sentence) if name)
        self.names = tuple(dict.fromkeys(name.split(".")[0].split("[")[0] for name in fields))
        _ENTRIES[code] = self

    def __repr__(self) -> str:
        return f"<{self.code}>"

    def __call__(self, *values: object, **named: object) -> Finding:
        """The finding. Raises TypeError where its arguments are not those of the sentence."""
        rest = [name for name in self.names if name not in named]
        if len(values) != len(rest) or not set(named) <= set(self.names):
            raise TypeError(f"{self.code} takes {self.names}, not {values} {named}")
        given = {**dict(zip(rest, values, strict=True)), **named}
        arguments = {name: _plain(given[name]) for name in self.names}
        return Finding(self.code, arguments, self.sentence_of(arguments))

    def sentence_of(self, arguments: Mapping[str, Any]) -> str:
        """The sentence with these arguments in their places."""
        return self.sentence.format_map({name: _shown(one) for name, one in arguments.items()})


_ENTRIES: dict[str, Entry] = {}


def entries() -> dict[str, Entry]:
    """{code: entry} of all modules of the catalogue that were imported."""
    return dict(_ENTRIES)


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of numpy's, paths and enums as what they hold."""
    if isinstance(value, Finding) or value is None:
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, set | frozenset):
        return tuple(_plain(one) for one in sorted(value))
    if isinstance(value, list | tuple | range):
        return tuple(_plain(one) for one in value)
    if isinstance(value, BaseException):
        return getattr(value, "finding", None) or str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} cannot be the argument of a finding")


def _shown(value: Any) -> Any:
    """As it stands in a sentence: lists of findings by semicolons, others by commas."""
    if isinstance(value, Finding):
        return str(value)
    if isinstance(value, tuple | list):
        findings = any(isinstance(one, Finding) for one in value)
        return ("; " if findings else ", ").join(map(str, value))
    return value
