"""Compares one file of a watched folder with the replica, and says what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.base_checkpoints import STEP_NOT_RECORDED, STEP_UNKNOWN
from flowcheck.findings.catalog.file_audits import (
    COMPARED_ROUNDED,
    NOTHING_TO_COMPARE,
    STALE_FILE,
    STATE_MISSING,
    STATES_UNNAMED,
    STEP_GONE,
    VANISHED,
)
from flowcheck.findings.catalog.trainer_checkpoints import (
    OTHER_STATES,
    OTHER_TYPE_OR_SHAPE,
    STEP_NOT_TOLD,
    STEPS_DIFFER,
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import AuditRecord
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import (
    Candidate,
    finding_of,
    stamp_of,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import (
    FileHeal,
    given_to_waiting,
    with_heal,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.whole_folders import INCOMPLETE
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

_NAMED_STEP = re.compile(
    r"(?:step|iter|iteration|checkpoint|ckpt)[-_=.]?0*(\d{1,18})(?!\d)", re.IGNORECASE
)
"""The step in a name: step-400, global_step400, iter_0000400, checkpoint-400."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The file cannot be compared yet. Without a step and something that is missing it changed
    while it was read."""

    step: Step | None = None
    """The replica has not reached this step."""
    at: int = 0
    """The replica's step."""
    lacks: Finding | None = None
    """What is missing in a folder that may become whole."""


def named_step(path: Path, folder: Path) -> Step | None:
    """The step that a path's name below the watched folder states, the innermost one; None:
    none."""
    for part in reversed(path.relative_to(folder).parts):
        if told := _NAMED_STEP.findall(part):
            return Step(int(told[-1]))
    return None


def audit_file(
    where: RunDir, folder: Path, one: Candidate, earlier: Sequence[AuditedFile]
) -> AuditedFile | NotYet | FileHeal:
    """Compares a file, and writes the audit down for the replica. Where it is equal and elements of
    its step are tainted, its values heal them; a replica that waits for such a file is given it.
    earlier: files of the same folder that were compared before. Runs no code from the file. Raises
    OSError if the audit cannot be written down."""
    named = named_step(one.path, folder)
    try:
        own, template = _read(where, one.path, named)
    except (FlowCheckError, OSError) as error:
        reason = finding_of(error, one.path)
        lacks = NotYet(lacks=reason) if reason.is_any_of(*INCOMPLETE) else None
        return _changed(folder, one) or lacks or file_line(folder, one, reason)
    if (changed := _changed(folder, one)) is not None:
        return changed
    if _states_are_unnamed(template):
        return file_line(folder, one, STATES_UNNAMED(), step=template.step)
    at, life = _newest(own), incarnation_of(own)
    if at is not None and life.lacking is not None and template.step >= life.lacking:
        told = given_to_waiting(own, template, one.path)
        if told is None:
            return NotYet(template.step, at)
        line = file_line(
            folder,
            one,
            NOTHING_TO_COMPARE(template.step),
            step=template.step,
            optimizer=_has_state(template),
        )
        return msgspec.structs.replace(line, heal=told)
    if at is not None and template.step > at:
        return NotYet(template.step, at)
    try:
        found = audits.compare_with_replica(own, template, one.path)
    except (FlowCheckError, OSError) as error:
        return _not_comparable(own, folder, one, template, finding_of(error, one.path))
    why = audits.evidence_in(own, template, found)
    audits.append_audit_line(own, found, one.path, template, why)
    line = file_line(
        folder,
        one,
        outcome=FileOutcome.EQUAL,
        step=template.step,
        tensors=found.tensors,
        optimizer=_has_state(template),
        tensor=found.first_difference,
    )
    if not found.passed:
        return msgspec.structs.replace(line, outcome=FileOutcome.DIFFERS, why=why)
    if (wrong := _wrong_file(folder, one, template, earlier)) is not None:
        return msgspec.structs.replace(line, outcome=FileOutcome.STALE, why=(wrong,))
    if found.rounded_to is not None:
        line = msgspec.structs.replace(line, why=(COMPARED_ROUNDED(found.rounded_to),))
    return with_heal(own, template, found, line, incarnation=life.number)


def _read(where: RunDir, file: Path, named: Step | None) -> tuple[RunDir, CheckpointTemplate]:
    """The job's run directory, and the file as a template of its replica. A file that does not
    tell its step is of the step that its name states."""
    try:
        own = audits.run_of_file(where, file)
        return own, audits.read_checkpoint_template(own, file, may_be_rounded=True)
    except StateError as error:
        untold = STEP_UNKNOWN, STEP_NOT_TOLD, STEPS_DIFFER
        if named is None or not error.finding.is_any_of(*untold):
            raise
    own = audits.run_of_file(where, file, named)
    return own, audits.read_checkpoint_template(own, file, named, may_be_rounded=True)


def _states_are_unnamed(template: CheckpointTemplate) -> bool:
    """Whether the file's optimizer states are under other names than its groups state: which
    parameter each belongs to is unknown, so that they would all count as missing."""
    state = {} if template.optimizer is None else template.optimizer["state"]
    return bool(state) and not any(number in state for number in template.order)


def _newest(where: RunDir) -> int | None:
    """The replica's newest step in memory; None: it is in memory no more."""
    try:
        return max(peek_versions(where.replica)[1], default=0)
    except (FlowCheckError, OSError):
        return None


def _not_comparable(
    where: RunDir, folder: Path, one: Candidate, template: CheckpointTemplate, why: Finding
) -> AuditedFile:
    """What follows where tensor and tensor could not be put side by side."""
    if why.is_any_of(OTHER_STATES, OTHER_TYPE_OR_SHAPE):  # e.g. the moments are missing
        told = why.arguments
        tensor = str(told["parameter" if why.is_any_of(OTHER_STATES) else "tensor"])
        record = AuditRecord(
            step=template.step,
            passed=False,
            file=str(one.path),
            tensors=1,
            optimizer=True,
            first_difference=tensor,
            evidence=(why,),
        )
        audits.append_record(where, where.audits, record)
        differs = FileOutcome.DIFFERS
        return file_line(folder, one, why, step=template.step, outcome=differs, tensor=tensor)
    if why.is_any_of(STEP_NOT_RECORDED):
        why = STEP_GONE(template.step)
    return file_line(folder, one, why, step=template.step)


def _wrong_file(
    folder: Path, one: Candidate, template: CheckpointTemplate, earlier: Sequence[AuditedFile]
) -> Finding | None:
    """Why a file that is equal to the replica's step is not the file that its writer meant; None:
    nothing says so."""
    named = named_step(one.path, folder)
    for before in reversed(earlier):
        other = named_step(Path(before.file), folder)
        two_names = named is not None and other is not None and named != other
        if two_names and before.step == template.step and template.tells_step:
            return STALE_FILE(
                named=named, step=template.step, earlier=before.file, earlier_named=other
            )
    if template.step > 0 and not _has_state(template):
        alike = _without_numbers(one.path, folder)
        for before in reversed(earlier):
            same = _without_numbers(Path(before.file), folder) == alike
            if same and before.optimizer:
                return STATE_MISSING(before.file)
    return None


def _without_numbers(path: Path, folder: Path) -> str:
    """What the names of one rank's files of all steps have in common."""
    return re.sub(r"\d+", "#", str(path.relative_to(folder)))


def _has_state(template: CheckpointTemplate) -> bool:
    return template.optimizer is not None and bool(template.optimizer["state"])


def _changed(folder: Path, one: Candidate) -> AuditedFile | NotYet | None:
    """What came of a file that was removed, or changed, since it was looked at; None: neither."""
    now = stamp_of(one)
    if now is None:
        return file_line(folder, one, VANISHED())
    return NotYet() if now != one.stamp else None


def file_line(
    folder: Path,
    one: Candidate,
    *why: Finding,
    outcome: FileOutcome = FileOutcome.NOT_COMPARED,
    step: Step | None = None,
    tensors: int = 0,
    optimizer: bool = False,
    tensor: str | None = None,
) -> AuditedFile:
    """The line of a file, with the time now. The arguments are as AuditedFile has them."""
    return AuditedFile(
        time_ns=time.time_ns(),
        folder=str(folder),
        file=str(one.path),
        stamp=one.stamp,
        outcome=outcome,
        step=step,
        tensors=tensors,
        optimizer=optimizer,
        tensor=tensor,
        why=why,
    )
