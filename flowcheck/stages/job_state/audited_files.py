"""audit-files.jsonl: what a watched folder's files came to, one line for each file.

A watch that is started again reads it and takes no file twice. audits.jsonl holds what a comparison
says about the replica; here is also why a file was not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.finding import Finding
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step


class FileOutcome(StrEnum):
    EQUAL = "equal"
    """All that was compared is equal, bit for bit; where `why` has COMPARED_ROUNDED
    (findings/catalog/file_audits.py), after rounding."""
    DIFFERS = "differs"
    """A tensor, or a setting of the optimizer, differs from the replica."""
    STALE = "stale"
    """The file is wrong whatever the replica holds: its state is of another step than its name
    says, or its optimizer state is missing."""
    NOT_COMPARED = "not_compared"
    """`why` says why. This is no pass."""
    BASE = "base"
    """The replica of a job that was joined midstream starts from it; `why` has the evidence."""
    WAITING = "waiting"
    """It cannot be taken yet; `why` says what it waits for. A later line of it may say more."""
    READING = "reading"
    """It is about to be read: a line of another outcome follows, unless the watch is killed."""


UNDER_WAY = (FileOutcome.WAITING, FileOutcome.READING)
"""Outcomes of files that are still to be looked at."""


class AuditedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One line of audit-files.jsonl."""

    time_ns: int
    """Since 1970."""
    folder: str
    """The folder that is watched."""
    file: str
    """Path of the checkpoint, a file or a folder."""
    stamp: str
    """What tells this content of the path from another: size, time of change, inode."""
    outcome: FileOutcome
    step: Step | None = None
    """As the file states it; None: it was not read so far."""
    job: int | None = None
    """Number of the job that it was held against, from 1; None: of none, or the chain follows
    one."""
    tensors: int = 0
    """Number of tensors that were compared."""
    not_compared_elements: int = 0
    """Elements of these tensors that were tainted at the step: not compared. Where only digests of
    the step are kept, all elements of the tensors that have one."""
    optimizer: bool = False
    """Whether the file holds an optimizer's state."""
    tensor: str | None = None
    """Name of the first tensor, or setting, that differs."""
    why: tuple[Finding, ...] = ()
    """What differs, that the file was compared rounded, or why it was not compared."""
    heal: Finding | None = None
    """What came of healing the replica's tainted elements by its values; None: it was not tried, as
    there was nothing to heal."""
    healed_elements: int = 0
    """Elements of the parameters that are exact by its values."""


def parse_audited_file(line: bytes) -> AuditedFile | None:
    """None of a line that a full disk or a kill tore."""
    try:
        return msgspec.json.decode(line, type=AuditedFile)
    except DECODE_ERRORS:
        return None


def read_audited_files(run: RunDir) -> list[AuditedFile]:
    """All lines of a run, oldest first; [] if no folder was watched."""
    content = _content_of(run)
    return [] if content is None else list(_parsed(*content))


def outcome_counts(run: RunDir) -> dict[str, int] | None:
    """`count_outcomes` of all files that the watches of a run took; None: no folder was watched."""
    content = _content_of(run)
    return None if content is None else dict(_counts(*content))


def last_lines(run: RunDir) -> list[AuditedFile]:
    """The last line of each file that was looked at, oldest first; [] if no folder was watched."""
    told = [one for one in read_audited_files(run) if one.outcome is not FileOutcome.READING]
    last = {(one.file, one.stamp): number for number, one in enumerate(told)}
    return [told[number] for number in sorted(last.values())]


_Content = tuple[Path, tuple[int, int, int]]
"""The file, and what tells one content of it from another."""


def _content_of(run: RunDir) -> _Content | None:
    """None: no folder was watched."""
    try:
        found = run.audit_files.stat()
    except FileNotFoundError:
        return None
    return run.audit_files, (found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _counts(path: Path, stamp: tuple[int, int, int]) -> tuple[tuple[str, int], ...]:
    return tuple(count_outcomes(_parsed(path, stamp)).items())


@lru_cache(maxsize=8)
def _parsed(path: Path, stamp: tuple[int, int, int]) -> tuple[AuditedFile, ...]:
    lines = path.read_bytes().splitlines()
    return tuple(told for told in map(parse_audited_file, lines) if told is not None)


def count_outcomes(files: Sequence[AuditedFile]) -> dict[str, int]:
    """{outcome: number of files}, each outcome of a file that was looked at; 0 among them."""
    shown = [one for one in FileOutcome if one not in UNDER_WAY]
    return {one.value: sum(file.outcome is one for file in files) for one in shown}
