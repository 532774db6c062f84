"""What an error says, judged by the codes and arguments of its findings and not by its words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.finding import Entry, Finding


@dataclass(frozen=True)
class Like:
    """What a finding is to be like; made by `like`."""

    entry: Entry
    arguments: dict[str, object]


def like(entry: Entry, /, **arguments: object) -> Like:
    """A finding of this entry which has these arguments, or stands in a finding that has them: so
    `key` and `value` are those of a refused setting. Each is the value, or a pattern (re.compile)
    of its text, or, for a finding or several, what it or one of them is like."""
    return Like(entry, arguments)


Wanted = Entry | Finding | Like


@contextmanager
def refused_as(
    *wanted: Wanted, kind: type[Exception] = StateError, **arguments: object
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """As `pytest.raises`: an error of this kind whose finding is, or has among its arguments, one
    of those wanted. arguments: of it, as `like` has them."""
    with pytest.raises(kind) as caught:
        yield caught
    assert isinstance(caught.value, FlowCheckError), repr(caught.value)
    finding = caught.value.finding
    del caught  # the error's traceback has this frame: nothing of the test's outlives it
    assert says(finding, *wanted, **arguments), f"{finding.code} {finding.arguments}"


def says(finding: Finding, *wanted: Wanted, **arguments: object) -> bool:
    """Whether a finding is one of those wanted, or one among its arguments is; `like` tells of
    arguments."""
    return any(
        _is_like(path, one) and _all_held(path, arguments)
        for path in _paths(finding)
        for one in wanted
    )


def _paths(finding: Finding, *above: Finding) -> Iterator[tuple[Finding, ...]]:
    """Each finding within, after those that it stands in."""
    path = (*above, finding)
    yield path
    for value in finding.arguments.values():
        for one in _findings(value):
            yield from _paths(one, *path)


def _findings(value: object) -> list[Finding]:
    values = value if isinstance(value, tuple) else (value,)
    return [one for one in values if isinstance(one, Finding)]


def _is_like(path: tuple[Finding, ...], wanted: Wanted) -> bool:
    if isinstance(wanted, Finding):
        return path[-1] == wanted
    if isinstance(wanted, Like):
        return path[-1].is_any_of(wanted.entry) and _all_held(path, wanted.arguments)
    return path[-1].is_any_of(wanted)


def _all_held(path: tuple[Finding, ...], arguments: dict[str, object]) -> bool:
    """Each by the last finding of a path, or by one that it stands in."""
    return all(
        any(name in one.arguments and _equal(one.arguments[name], right) for one in path)
        for name, right in arguments.items()
    )


def _equal(value: object, right: object) -> bool:
    if isinstance(right, re.Pattern):
        return right.search(str(value)) is not None
    if isinstance(right, Entry | Like):
        return any(says(one, right) for one in _findings(value))
    if isinstance(right, os.PathLike):
        right = os.fspath(right)
    return value == right
