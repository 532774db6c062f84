"""What the audits of a run say about its replica: which step was found equal last, and since which
step the replica is in doubt.

audits.jsonl is the only home of these facts. A difference stays until a line that records a new
base: an equal audit of a later step shows nothing about the steps between.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.checkpoint_downloads import DOUBTED_BY_SERVER, NOTES_UNREADABLE
from flowcheck.findings.catalog.file_audits import DOUBTED, FILE_DAMAGED, NO_STEP
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_GIVEN_UP,
    JOURNAL_TAINTED_BEHIND_GAP,
    JOURNAL_TAINTED_LATE,
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import AuditRecord, parse_audit_record
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.steps_of_this_past import is_of_this_past
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

FILES_HELD = 8
"""Files whose lines are held in memory. A choice: a process reads few runs."""


@dataclass(frozen=True, slots=True)
class AuditHistory:
    """The audits of a run since its last base."""

    last: AuditRecord | None = None
    """The newest audit; None: there was none."""
    failed: AuditRecord | None = None
    """The audit of the lowest step that differed and that no other file of that step answers; None:
    nothing says that the replica is wrong."""
    equal_step: Step | None = None
    """The last step that was found equal, before `failed` if there is one; None: there is none."""
    whole_steps: tuple[Step, ...] = ()
    """Those found equal before `failed` in every element: none was left out as tainted."""
    damaged: tuple[Finding, ...] = ()
    """Files that differ from the replica, where another file of the same step is equal to it, with
    its optimizer's state if the first one has one: these files are wrong, not the replica."""

    def doubt_of(self, step: Step | None = None) -> Finding | None:
        """Why a step of the replica is not proved exact; None: nothing says so. A step that was
        found equal, and those before it, are as the trainer had them. None: the newest step."""
        failed = self.failed
        if failed is None:
            return None
        if step is not None and self.equal_step is not None and step <= self.equal_step:
            return None
        equal = NO_STEP() if self.equal_step is None else self.equal_step
        return DOUBTED(
            file=failed.file, step=failed.step, tensor=str(failed.first_difference), equal=equal
        )


def audit_history_of(run: RunDir) -> AuditHistory:
    """The audits of a run. Lines from before a base that replaced the replica's state count no
    more; where the record of it is damaged, all count. A line that a full disk or a kill tore is
    left out."""
    first = 0
    with suppress(*DECODE_ERRORS):
        life = incarnation_of(run)
        first = life.audits if (life.base, life.anchored) != (None, None) else 0
    lines = _lines_of(run.audits)[first:]
    return history_of([record for record in lines if record is not None])


def history_of(records: Sequence[AuditRecord]) -> AuditHistory:
    """The same of audits in the order in which they were made."""
    bases = [number for number, record in enumerate(records) if record.base]
    counted = list(records[bases[-1] :]) if bases else list(records)
    if counted and counted[0].base and not counted[0].tensors:
        counted = counted[1:]  # a base that replaced the state is equal to itself: no audit
    best: dict[Step, AuditRecord] = {}
    for record in counted:
        known = best.get(record.step)
        if record.passed and (known is None or record.optimizer > known.optimizer):
            best[record.step] = record
    failed: AuditRecord | None = None
    damaged: dict[Finding, None] = {}
    for record in counted:
        if record.passed:
            continue
        equal = best.get(record.step)
        if equal is not None and equal.optimizer >= record.optimizer:
            told = FILE_DAMAGED(
                file=record.file,
                step=record.step,
                tensor=str(record.first_difference),
                equal=equal.file,
            )
            damaged[told] = None
        elif failed is None or record.step < failed.step:
            failed = record
    before = [step for step in best if failed is None or step < failed.step]
    whole = {one.step for one in counted if one.passed and not one.tainted_elements}
    return AuditHistory(
        last=counted[-1] if counted else None,
        failed=failed,
        equal_step=max(before, default=None),
        whole_steps=tuple(step for step in before if step in whole),
        damaged=tuple(damaged),
    )


def doubts_of(run: RunDir, step: Step | None = None) -> tuple[Finding, ...]:
    """What a checkpoint of this step says about the audits, beside what the step rests on."""
    doubt = audit_history_of(run).doubt_of(step)
    return () if doubt is None else (doubt,)


def saved_doubts_of(run: RunDir, step: Step, digest: str) -> tuple[Finding, ...]:
    """What the audits say of a checkpoint of this step that the run saved, also before the audit
    that failed. A base ends the doubt from its own step on: steps before it rest on the state that
    it replaced, and so do those behind it that were saved before. digest: of the saved state."""
    lines = _lines_of(run.audits)
    bases = _bases_of(run, lines)
    doubt = _history_at(lines, bases, step).doubt_of(step)
    if doubt is None:
        for number, base in reversed(list(enumerate(bases))):
            doubt = _history_at(lines[: base.line], bases[:number], step).doubt_of(step)
            if doubt is not None:
                # Only where the replica is known to have had another state is it of the past.
                return (doubt,) if is_of_this_past(run, step, digest) is False else ()
    return () if doubt is None else (doubt,)


def failed_audits(run: RunDir) -> frozenset[tuple[str, Step]]:
    """(file, step) of each audit of the run that failed, whatever came of it since."""
    lines = _lines_of(run.audits)
    return frozenset((one.file, one.step) for one in lines if one is not None and not one.passed)


def is_found_equal(run: RunDir, step: Step, last: Step | None = None) -> bool:
    """Whether an audit found a step of the run, or a later one, equal in every element before one
    failed, and before a base of a later step replaced what it led to. last: the last step whose
    audit counts; None: all do."""
    lines = _lines_of(run.audits)
    whole = _history_at(lines, _bases_of(run, lines), step).whole_steps
    return any(step <= one and (last is None or one <= last) for one in whole)


class _Base(NamedTuple):
    """From which line on the audits are of a state that a trainer's file gave."""

    line: int
    step: Step


def _bases_of(run: RunDir, lines: Sequence[AuditRecord | None]) -> list[_Base]:
    """Those on record, ascending, with that of the present incarnation, which may be no line."""
    found = {n: one.step for n, one in enumerate(lines) if one is not None and one.base}
    with suppress(*DECODE_ERRORS):
        life = incarnation_of(run)
        begun = life.anchored if life.anchored is not None else life.base
        if begun is not None:
            found.setdefault(life.audits, begun)
    return [_Base(*one) for one in sorted(found.items())]


def _history_at(
    lines: Sequence[AuditRecord | None], bases: Sequence[_Base], step: Step
) -> AuditHistory:
    """The audits of the state that a step rests on: until a base of a later step replaced it."""
    first, later = 0, len(lines)
    for base in reversed(bases):
        if base.step <= step:
            first = base.line
            break
        later = base.line
    return history_of([one for one in lines[first:later] if one is not None])


def doubt_among(findings: Sequence[Finding]) -> Finding | None:
    """The doubt in what a checkpoint's manifest says that it rests on; None: there is none."""
    journals = JOURNAL_GIVEN_UP, JOURNAL_TAINTED_LATE, JOURNAL_TAINTED_BEHIND_GAP
    doubts = DOUBTED, *journals, CALLED_EXACT_BEFORE, DOUBTED_BY_SERVER, NOTES_UNREADABLE
    return next((one for one in findings if one.is_any_of(*doubts)), None)


def _lines_of(path: Path) -> tuple[AuditRecord | None, ...]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return _parsed(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=FILES_HELD)
def _parsed(path: Path, stamp: tuple[int, int, int]) -> tuple[AuditRecord | None, ...]:
    """stamp: what tells one content of the file from another."""
    return tuple(parse_audit_record(line) for line in path.read_bytes().splitlines())
