"""Compares one file of a watched folder with the replica, and says what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.base_checkpoints import (
    NO_REPLICA_YET,
    OF_JOB,
    STEP_NOT_RECORDED,
)
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
)
from flowcheck.findings.finding import Finding
from flowcheck.messages import AuditRecord
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import (
    Candidate,
    file_error_of,
    stamp_of,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import (
    FileHeal,
    with_heal,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.job_of_file import (
    STEP_IN_NAME,
    FileOfJob,
    read_for_job,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.waiting_replica import given_to_waiting
from flowcheck.ops.trainer_checkpoint.audit_watch.whole_folders import INCOMPLETE
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate


@dataclass(frozen=True, slots=True)
class NotYet:
    """The file cannot be compared yet. Without a step, something that is missing and a job that is
    not learned it changed while it was read."""

    step: Step | None = None
    """The replica has not reached this step."""
    at: int = 0
    """The replica's step."""
    run: RunDir | None = None
    """Of the job whose replica that is."""
    lacks: Finding | None = None
    """What is missing in a folder that may become whole."""
    unlearned: Finding | None = None
    """Says that the file's job may be one that is not learned yet."""


@dataclass(frozen=True, slots=True)
class MayBeBase:
    """A file of a job that was joined midstream, and has no base to compare it with."""

    one: Candidate
    step: Step
    runs: tuple[RunDir, ...]
    """Of the jobs without a base that it may be of."""
    job: int | None
    """Number of the job, from 1; None: of several, or the chain follows one."""


def named_step(path: Path, folder: Path) -> Step | None:
    """The step that a path's name below the watched folder states, the innermost one; None:
    none."""
    for part in reversed(path.relative_to(folder).parts):
        if told := STEP_IN_NAME.findall(part):
            return Step(int(told[-1]))
    return None


def audit_file(
    where: RunDir, folder: Path, one: Candidate, earlier: Sequence[AuditedFile]
) -> AuditedFile | NotYet | FileHeal | MayBeBase:
    """Compares a file, and writes the audit down for the replica. Where it is equal and elements of
    its step are tainted, its values heal them; a replica that waits for such a file is given it.
    Where a job has no base, nothing is compared: the file may be its base, or show its place.
    earlier: files of the same folder that were compared before. Runs no code from the file. Raises
    OSError if the audit cannot be written down."""
    named = named_step(one.path, folder)
    try:
        of_job = read_for_job(where, folder, one.path, named, earlier)
    except (FlowCheckError, OSError) as error:
        reason = file_error_of(error, one.path)
        lacks = NotYet(lacks=reason) if reason.is_any_of(*INCOMPLETE) else None
        unlearned = NotYet(unlearned=reason) if _is_unlearned(reason) else None
        return _changed(folder, one) or lacks or unlearned or file_line(folder, one, reason)
    if (changed := _changed(folder, one)) is not None:
        return changed
    told = _held_against(folder, one, of_job, [f for f in earlier if f.job == of_job.number])
    if isinstance(told, AuditedFile):
        return msgspec.structs.replace(told, job=of_job.number)
    if isinstance(told, FileHeal):
        return replace(told, line=msgspec.structs.replace(told.line, job=of_job.number))
    return told


def _held_against(
    folder: Path, one: Candidate, of_job: FileOfJob, earlier: Sequence[AuditedFile]
) -> AuditedFile | NotYet | FileHeal | MayBeBase:
    """What comes of a file that was read. earlier: files of its job."""
    own, template = of_job.run, of_job.template
    if _states_are_unnamed(template):
        return file_line(folder, one, STATES_UNNAMED(), step=template.step)
    if of_job.without_base:
        return MayBeBase(one, template.step, of_job.without_base, of_job.number)
    at, life = of_job.at, incarnation_of(own)
    if at is not None and life.lacking is not None and template.step >= life.lacking:
        told = given_to_waiting(own, template, one.path)
        if told is None:
            return NotYet(template.step, at, run=own)
        line = file_line(
            folder,
            one,
            NOTHING_TO_COMPARE(template.step),
            step=template.step,
            optimizer=_has_state(template),
        )
        return msgspec.structs.replace(line, heal=told)
    if at is not None and template.step > at:
        return NotYet(template.step, at, run=own)
    try:
        found = audits.compare_with_replica(own, template, one.path)
    except (FlowCheckError, OSError) as error:
        return _not_comparable(own, folder, one, template, file_error_of(error, one.path))
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
    line = msgspec.structs.replace(line, not_compared_elements=found.tainted_elements)
    if not found.passed:
        return msgspec.structs.replace(line, outcome=FileOutcome.DIFFERS, why=why)
    if (wrong := _wrong_file(folder, one, template, earlier)) is not None:
        return msgspec.structs.replace(line, outcome=FileOutcome.STALE, why=(wrong,))
    if found.rounded_to is not None:
        line = msgspec.structs.replace(line, why=(COMPARED_ROUNDED(found.rounded_to),))
    return with_heal(own, template, found, line, incarnation=life.number)


def _states_are_unnamed(template: CheckpointTemplate) -> bool:
    """Whether the file's optimizer states are under other names than its groups state: which
    parameter each belongs to is unknown, so that they would all count as missing."""
    state = {} if template.optimizer is None else template.optimizer["state"]
    return bool(state) and not any(number in state for number in template.order)


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


def _is_unlearned(reason: Finding) -> bool:
    """Whether a file has no job, and a job of the chain is not learned yet."""
    of_jobs = reason.arguments.get("reasons")
    reasons = of_jobs if isinstance(of_jobs, tuple) else (reason,)
    told = [one for one in reasons if isinstance(one, Finding)]
    inner = (one.arguments["why"] if one.is_any_of(OF_JOB) else one for one in told)
    return any(isinstance(one, Finding) and one.is_any_of(NO_REPLICA_YET) for one in inner)


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
