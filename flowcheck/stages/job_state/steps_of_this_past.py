"""Whether a state is one of the past that a run's replica rests on now: by steps.jsonl, whose lines
of a past that was replaced lie in other files."""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class _Line(msgspec.Struct, frozen=True):
    step: Step
    digest: str


class _Found(NamedTuple):
    line: _Line
    end: int
    """Where the next line begins."""


def is_of_this_past(run: RunDir, step: Step, digest: str) -> bool | None:
    """Whether the replica's present past had this state at this step. None: that is not known, as
    the file is gone, or its lines of that time. The cost does not grow with the file: its lines
    are in the order of their steps."""
    try:
        with run.steps.open("rb") as file:
            return _is_among(file, os.fstat(file.fileno()).st_size, step, digest)
    except OSError:
        return None


def _is_among(file: BinaryIO, size: int, step: Step, digest: str) -> bool | None:
    first = _line_from(file, 0)
    if first is None or step < first.line.step:
        return None
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        found = _line_from(file, middle)
        if found is None or found.line.step >= step:
            high = middle
        else:
            low = found.end
    found = _line_from(file, low)
    while found is not None and found.line.step == step:
        if found.line.digest == digest:
            return True
        found = _line_from(file, found.end)
    return False


def _line_from(file: BinaryIO, at: int) -> _Found | None:
    """The first line that begins at this byte or behind it and is whole; None: there is none."""
    if at:
        file.seek(at - 1)
        at += len(file.readline()) - 1
    else:
        file.seek(0)
    while line := file.readline():
        at += len(line)
        try:
            return _Found(msgspec.json.decode(line, type=_Line), at)
        except DECODE_ERRORS:
            continue  # torn by a kill, or by a full disk
    return None
