"""A fact as a code with arguments; its sentence is made from the catalogue, last.

What is stored, sent or compared is the code and its arguments. The sentence stands beside them in
JSON for people, and so do the cause and the remedy; no program reads any of the three: rewording
one changes no behaviour.

Which entries have a remedy: whatever stops an operator. That is each error that is raised (an
option, a job file, a capture, a checkpoint, a switch refused), each reason why a job is not
followed, and each lost step. The sentence says what was found, the cause what it means where the
sentence does not say it, the remedy what to do: no sentence of an error holds advice. Only a
wrapper needs none, whose argument is the finding that has it. Facts, evidence, assumptions and
progress have none: nothing is to be done about them. tests/unit/test_remedies.py holds this over
the places that raise and refuse.
"""

from __future__ import annotations

import importlib
import math
import os
import pkgutil
import re
import shlex
import string
from collections.abc import Iterator, Mapping
from enum import Enum, StrEnum
from functools import cache
from typing import Any, TypeVar

import msgspec

import flowcheck.findings.catalog
from flowcheck.findings.named_run import FIELD, named_run, run_option

Code = TypeVar("Code", bound=StrEnum)
Scalar = bool | int | float | str | None
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 64) - 1
"""What msgspec encodes as JSON; a file of somebody else's may hold any number."""
HEX_SHOWN = 60
"""Characters of such a number that are kept."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
"""A link in Markdown: of its two parts a terminal shows the first."""
UNTIL_AUDIT = " (no audit has shown it yet)"
"""Ends the sentence of what is assumed until an audit of a step applied since passes."""


class Finding(msgspec.Struct, frozen=True, eq=False):
    """One fact. Two findings are equal if code, arguments and `until_audit` are."""

    code: str
    """`subject.what`, one of the catalogue's; another version of FlowCheck may know more."""
    arguments: dict[
        str, bool | int | float | str | Finding | tuple[Scalar | Finding, ...] | None
    ] = {}
    until_audit: bool = False
    """It is assumed until an audit of a step applied since passes."""
    sentence: str = ""
    """As the version that made it said it; shown only where this one does not know the code."""
    stored_remedy: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="remedy")
    """Likewise; JSON has the key only where something is to be done."""
    stored_cause: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="cause")
    """Likewise; JSON has the key only where the sentence does not say what it means."""

    def __str__(self) -> str:
        entry = _entry(self.code)
        said = None if entry is None else entry.sentence_of(self.arguments)
        if said is None:
            return self.sentence or f"{self.code} {self.arguments}"
        return said + UNTIL_AUDIT if self.until_audit else said

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        return self._key == other._key

    def __ne__(self, other: object) -> bool:
        # msgspec's own would compare identities.
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.code, self.until_audit, tuple(sorted(self.arguments.items()))

    def is_any_of(self, *entries: Entry) -> bool:
        """Whether its code is that of one of these."""
        return any(self.code == entry.code for entry in entries)

    def until_audited(self) -> Finding:
        """The same, assumed until an audit passes."""
        return msgspec.structs.replace(self, until_audit=True).with_current_texts()

    def with_current_texts(self) -> Finding:
        """The same, with the sentence, the cause and the remedy that this version has for it."""
        return msgspec.structs.replace(
            self,
            sentence=str(self),
            stored_remedy=self.remedy or msgspec.UNSET,
            stored_cause=self.cause or msgspec.UNSET,
        )

    @property
    def remedy(self) -> str:
        """What to do; "" where nothing is to be done. Where its own entry has none, that of the
        findings among its arguments: of "cannot be saved: {why}" that of why. Of a list of findings
        it is the first one which there is."""
        entry = _entry(self.code)
        if entry is None:
            return "" if self.stored_remedy is msgspec.UNSET else self.stored_remedy
        if entry.remedy:
            return _LINK.sub(r"\1", entry.remedy_of(self.arguments))
        parts = map(_findings_in, self.arguments.values())
        first = (next((one.remedy for one in part if one.remedy), "") for part in parts)
        return " ".join(dict.fromkeys(one for one in first if one))

    @property
    def cause(self) -> str:
        """What it means; "" where its sentence says all. Where its own entry has none, that of the
        first finding among its arguments which has one, as with the remedy."""
        entry = _entry(self.code)
        if entry is None:
            return "" if self.stored_cause is msgspec.UNSET else self.stored_cause
        if entry.cause:
            return _LINK.sub(r"\1", entry.cause)
        parts = map(_findings_in, self.arguments.values())
        return next((one.cause for part in parts for one in part if one.cause), "")


class Entry:
    """One row of the catalogue; called with its arguments it makes the finding.

    Arguments are named in the sentence as str.format has it, `{bytes:,}`. An argument is what the
    sentence shows: what it rounds is rounded before, so that equal sentences are equal findings.
    In a command, `{file!q}` is quoted for a shell. Commands with options or arguments stand between
    backticks, in sentence and remedy, and run as they are printed; in capitals (FILE, JOB.toml)
    stands what only the reader knows (tests/unit/test_remedy_commands.py). A command about a run
    names it: `flowcheck down{run!o}` shows ` --run DIR` of the argument `run`, quoted, and nothing
    for the default run; `{this_run!o}`, which is no argument, that of the run that the process
    which shows the text works on (named_run.py).
    """

    def __init__(
        self,
        code: str,
        sentence: str,
        *,
        cause: str = "",
        remedy: str = "",
        until_audit: bool = False,
        section: str = "",
        also: tuple[str, ...] = (),
        between: str = "",
    ) -> None:
        """cause: what it means, remedy: what to do (Markdown; it may show arguments of the
        sentence). until_audit: its findings are assumed until an audit passes. section: of the
        page of failures, where it has a row there (failures_page.py). also: arguments that the
        sentence does not show. between: stands between what a list has; "": semicolons between
        findings, else commas. Raises ValueError where the code is another entry's already."""
        if code in _ENTRIES:
            raise ValueError(f"two entries of the catalogue have the code {code}")
        self.code, self.sentence = code, sentence
        self.cause, self.remedy, self.until_audit = cause, remedy, until_audit
        self.section, self.between = section, between
        fields = (name for _, name, _, _ in string.Formatter().parse(sentence) if name)
        shown = dict.fromkeys(name.split(".")[0].split("[")[0] for name in fields if name != FIELD)
        self.names = (*shown, *also)
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
        return Finding(self.code, arguments, self.until_audit).with_current_texts()

    def sentence_of(self, arguments: Mapping[str, Any]) -> str | None:
        """The sentence with these arguments in their places; None: they are not those it has, as
        another version of FlowCheck, or another program, wrote them."""
        if set(arguments) != set(self.names):
            return None
        try:
            shown = {name: _shown(one, self.between) for name, one in arguments.items()}
            shown[FIELD] = named_run()
            return _FORMATTER.vformat(self.sentence, (), shown)
        except (LookupError, AttributeError):
            return None

    def remedy_of(self, arguments: Mapping[str, Any]) -> str:
        """What to do, with these arguments in their places."""
        try:
            shown = {name: _shown(one, self.between) for name, one in arguments.items()}
            return _FORMATTER.vformat(self.remedy, (), {**shown, FIELD: named_run()})
        except (LookupError, AttributeError):
            return self.remedy


def _findings_in(value: Any) -> Iterator[Finding]:
    """Those that an argument is, or is a list of."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, Finding):
            yield one


class _Formatter(string.Formatter):
    """str.format, but for a value of another type than the sentence takes, which is shown as it
    is: "nan", or what another program wrote; `!q` quotes a word for a shell, and `!o` is the option
    that names a run."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "q":
            return shlex.quote(str(value))
        return run_option(value) if conversion == "o" else super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return str(super().format_field(value, format_spec))
        except (ValueError, TypeError):
            return str(value)


_FORMATTER = _Formatter()
_ENTRIES: dict[str, Entry] = {}


def entries() -> dict[str, Entry]:
    """{code: entry} of the whole catalogue."""
    _load_all()
    return dict(_ENTRIES)


def _entry(code: str) -> Entry | None:
    if code not in _ENTRIES:
        _load_all()
    return _ENTRIES.get(code)


@cache
def _load_all() -> None:
    """What a finding is does not depend on which modules a process has imported."""
    room = flowcheck.findings.catalog
    for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        importlib.import_module(module.name)


def plain_error_text(error: BaseException) -> str:
    """What another's error says, without its number: `FILE: No space left on device`."""
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error) or type(error).__name__


def _plain(value: Any, *, inside: bool = False) -> Any:
    """As JSON has it: numbers of numpy's, paths and enums as what they hold."""
    if value is None or isinstance(value, Finding) or type(value) is bool:
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, BaseException):
        return getattr(value, "finding", None) or _text(plain_error_text(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, os.PathLike):
        return _text(os.fspath(value))
    if hasattr(value, "item") and not getattr(value, "ndim", 0):
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        whole = int(value)
        return whole if INTEGER_MIN <= whole <= INTEGER_MAX else hex(whole)[:HEX_SHOWN]
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple | range) and not inside:
        return tuple(_plain(one, inside=True) for one in value)
    raise TypeError(f"{value!r:.200} cannot be the argument of a finding")


def _text(value: object) -> str:
    """Names of files may hold bytes that are no UTF-8."""
    return str(value).encode(errors="surrogateescape").decode(errors="replace")


def _shown(value: Any, between: str) -> Any:
    """As it stands in a sentence; between "": lists of findings by semicolons, others by commas."""
    if isinstance(value, Finding):
        return str(value)
    if isinstance(value, tuple | list):
        findings = any(isinstance(one, Finding) for one in value)
        return (between or ("; " if findings else ", ")).join(map(str, value))
    return "" if value is None else value


def code_in_words(code: Code, odd: Mapping[Code, str]) -> str:
    """The words of a code that is printed for people without an entry: its own, with spaces. odd:
    those of codes that are said otherwise."""
    return odd.get(code, code.replace("_", " "))
