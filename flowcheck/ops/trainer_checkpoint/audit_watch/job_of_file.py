"""Tells which of the jobs that a chain follows a watched file belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.base_checkpoints import (
    AUDITED_JOB_OPEN,
    EQUAL_TO_SEVERAL,
    JOB_DIFFERS,
    NO_REPLICA_YET,
    OF_JOB,
    STEP_UNKNOWN,
)
from flowcheck.findings.catalog.trainer_checkpoints import STEP_NOT_TOLD, STEPS_DIFFER
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate

STEP_IN_NAME = re.compile(
    r"(?:step|iter|iteration|checkpoint|ckpt)[-_=.]?0*(\d{1,18})(?!\d)", re.IGNORECASE
)
"""The step in a name: step-400, global_step400, iter_0000400, checkpoint-400."""


@dataclass(frozen=True, slots=True)
class FileOfJob:
    """A file as a template of the replica of one job."""

    run: RunDir
    template: CheckpointTemplate
    number: int | None = None
    """Of the job, from 1; None: the chain follows one, or nothing tells which of `without_base`."""
    without_base: tuple[RunDir, ...] = ()
    """Of the jobs that it may be of and that have no base, so that it cannot be compared."""

    @property
    def at(self) -> int | None:
        """The replica's newest step in memory; None: it is in memory no more."""
        try:
            return max(peek_versions(self.run.replica)[1], default=0)
        except (FlowCheckError, OSError):
            return None


def read_for_job(
    where: RunDir, folder: Path, file: Path, named: Step | None, earlier: Sequence[AuditedFile]
) -> FileOfJob:
    """Reads a file for the job whose it is: of several the one with its model; else the one whose
    replica equals it; else the one to which the files of other steps beside it were equal; else one
    that has not reached its step. Where that leaves several, it may be of each that has no base.
    named: the step that its name states, for a file that tells none.
    Raises StateError if that leaves several, or none; FlowCheckError and OSError of the reader."""
    runs = all_run_dirs(where)
    if len(runs) == 1:
        return _of_one(FileOfJob(where, _template(where, file, named)))
    fitting: list[FileOfJob] = []
    why: list[Finding] = []
    learned = True
    for number, own in enumerate(runs, 1):
        try:
            fitting.append(FileOfJob(own, _template(own, file, named), number))
        except StateError as error:
            why.append(OF_JOB(number=number, why=error.finding))
            learned &= not error.finding.is_any_of(NO_REPLICA_YET)
    if len(fitting) == 1 and learned:
        return _of_one(fitting[0])
    equal = [one for one in fitting if _is_equal(one, file, why)]
    beside = _job_beside(folder, file, earlier)
    for chosen in (
        equal,
        [one for one in fitting if one.number == beside and not equal],
        [one for one in fitting if _is_ahead(one) and not equal],
    ):
        if len(chosen) == 1:
            return _of_one(chosen[0])
    waiting = [one for one in fitting if awaits_base(one.run)]
    if waiting and not equal:  # the gradients that each of them logged tell
        without_base = tuple(one.run for one in waiting)
        return replace(waiting[0], number=None, without_base=without_base)
    reasons = (EQUAL_TO_SEVERAL(),) if equal else tuple(why)
    raise StateError(AUDITED_JOB_OPEN(file=file, reasons=reasons, run=runs[0].root))


def awaits_base(run: RunDir) -> bool:
    """Whether the job was joined midstream and has no base yet. Raises LearnError where what was
    learned of it is damaged."""
    training = training_of(run)
    return training is not None and training.awaits_base and incarnation_of(run).step is None


def _of_one(one: FileOfJob) -> FileOfJob:
    return replace(one, without_base=(one.run,)) if awaits_base(one.run) else one


def _template(run: RunDir, file: Path, named: Step | None) -> CheckpointTemplate:
    try:
        return audits.read_checkpoint_template(run, file, may_be_rounded=True)
    except StateError as error:
        untold = STEP_UNKNOWN, STEP_NOT_TOLD, STEPS_DIFFER
        if named is None or not error.finding.is_any_of(*untold):
            raise
    return audits.read_checkpoint_template(run, file, named, may_be_rounded=True)


def _is_ahead(one: FileOfJob) -> bool:
    return one.at is not None and one.template.step > one.at


def _is_equal(one: FileOfJob, file: Path, why: list[Finding]) -> bool:
    """why: takes the reason if it is not."""
    assert one.number is not None
    try:
        found = audits.compare_with_replica(one.run, one.template, file)
    except StateError as error:
        why.append(OF_JOB(number=one.number, why=error.finding))
        return False
    if not found.equal:
        why.append(JOB_DIFFERS(number=one.number, tensor=found.differences[0].name))
    return found.equal


def _job_beside(folder: Path, file: Path, earlier: Sequence[AuditedFile]) -> int | None:
    """The job to which the files were equal whose names differ from this one's by the step alone;
    None: of none, or of several."""
    own = _without_step(file, folder)
    jobs = {
        before.job
        for before in earlier
        if before.outcome in (FileOutcome.EQUAL, FileOutcome.BASE)
        and _without_step(Path(before.file), folder) == own
    }
    return jobs.pop() if len(jobs) == 1 else None


def _without_step(file: Path, folder: Path) -> str:
    return STEP_IN_NAME.sub("#", str(file.relative_to(folder)))
