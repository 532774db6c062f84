"""Heals tainted elements of the replica by the values of a file that is equal in all else."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.base_checkpoints import NO_UPDATER
from flowcheck.findings.catalog.file_audits import (
    ELEMENTS_HEALED,
    HEAL_ROUNDED,
    HEAL_UNPROVED,
    HEAL_WITHOUT_STATE,
    HEALED_BY_DIGESTS,
    HEALED_UNCOUNTED,
    NOT_HEALED,
)
from flowcheck.findings.catalog.replica_state_errors import PATCH_HEALS_NOTHING
from flowcheck.findings.catalog.run_directories import ANOTHER_REQUEST
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import file_error_of
from flowcheck.replica.element_patch import ElementPatch, patch_of_sections, sections_of_elements
from flowcheck.replica.optimizer import state_section_names
from flowcheck.replica.optimizer.state_sections import describe_sections
from flowcheck.replica.state_file.file_header import Description, peek_versions
from flowcheck.replica.taint import elements_of_losses, healable_elements, read_losses
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.given_checkpoint_request import await_answer, submit_patch
from flowcheck.stages.job_state.heal_log import read_heal_records
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at
from flowcheck.vault.audit.bitwise_audit import Audit
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

ANSWER_LIMIT_S = 20.0
"""Seconds for the updater to take a file's values. A choice: longer keeps the watch from other
files, shorter gives up while the updater makes a step of a large model."""


@dataclass(frozen=True, slots=True)
class FileHeal:
    """A file's values of the elements that are tainted at its step, to be given to the updater."""

    run: RunDir
    """The job's run directory."""
    line: AuditedFile
    """What the comparison of the file came to."""
    found: Audit
    patch: ElementPatch
    incarnation: int
    """Of the job, whose step the file was compared with."""

    def attempt(self) -> AuditedFile | None:
        """Gives the values to the updater and waits for it. Returns the file's line; None: another
        request is under way, so that it is to be tried again."""
        what = str(Path(self.line.file).name)
        try:
            if stage_at(Position.STEP).name not in self.run.stage_pids():
                return self.failed(NO_UPDATER(self.run.root))
            own = self.run, self.found.step, self.patch, self.line.file
            request = submit_patch(*own, incarnation=self.incarnation)
            answer = await_answer(self.run, request, ANSWER_LIMIT_S, what)
        except (FlowCheckError, OSError) as error:
            if isinstance(error, StateError) and error.finding.is_any_of(ANOTHER_REQUEST):
                return None
            return self.failed(file_error_of(error, Path(self.line.file)))
        if answer.refused is not None:
            return self.failed(answer.refused)
        records = read_heal_records(self.run)
        done = next((one for one in reversed(records) if one.request == request), None)
        if done is None:
            return msgspec.structs.replace(self.line, heal=HEALED_UNCOUNTED(self.found.step))
        counts = {"elements": done.elements, "step": done.step, "at": done.at, "left": done.left}
        told = ELEMENTS_HEALED(**counts)
        if self.found.by_digests:
            parameters = len(peek_versions(self.run.replica)[0].parameters)
            compared = self.found.compared_parameters
            told = HEALED_BY_DIGESTS(**counts, compared=compared, parameters=parameters)
        return msgspec.structs.replace(self.line, heal=told, healed_elements=done.elements)

    def failed(self, reason: Finding) -> AuditedFile:
        """The file's line, where it heals nothing."""
        return msgspec.structs.replace(self.line, heal=NOT_HEALED(reason))


def with_heal(
    run: RunDir,
    template: CheckpointTemplate,
    found: Audit,
    line: AuditedFile,
    *,
    incarnation: int,
) -> AuditedFile | FileHeal:
    """What is to be done with a file that was found equal: it heals elements, or its line says why
    not. found: the comparison, of which nothing differs; incarnation: of the job before the file
    was compared."""
    if not found.tainted_elements:
        return line
    try:
        patch = _patch(run, template, found)
    except (FlowCheckError, OSError) as error:
        patch = file_error_of(error, Path(line.file))
    if isinstance(patch, Finding):
        return msgspec.structs.replace(line, heal=NOT_HEALED(patch))
    return line if patch is None else FileHeal(run, line, found, patch, incarnation)


def heal_by_file(
    run: RunDir, template: CheckpointTemplate, found: Audit, file: Path
) -> Finding | None:
    """Heals the elements that are tainted at the step of a file that is equal in all else. Returns
    what came of it, NOT_HEALED where it healed nothing; None: nothing is tainted any more."""
    line = AuditedFile(
        time_ns=time.time_ns(),
        folder=str(file.parent),
        file=str(file),
        stamp="",
        outcome=FileOutcome.EQUAL,
        step=found.step,
    )
    ready = with_heal(run, template, found, line, incarnation=incarnation_of(run).number)
    done = ready.attempt() if isinstance(ready, FileHeal) else ready
    if done is None:
        return NOT_HEALED(ANOTHER_REQUEST(run.root))
    return done.heal


def _patch(
    run: RunDir, template: CheckpointTemplate, found: Audit
) -> ElementPatch | Finding | None:
    """The file's values of the elements that are tainted at its step; or why it heals nothing;
    None: nothing is tainted any more. Raises StateError if the file lacks a part of the state."""
    if not run.replica.exists():
        return NO_UPDATER(run.root)
    layout, versions = peek_versions(run.replica)
    losses, at = read_losses(run.replica), max(versions, default=0)
    if not len(elements_of_losses(losses, at)):
        return None
    if not len(healable_elements(losses, found.step, at)):
        return PATCH_HEALS_NOTHING(step=found.step, at=at)
    if found.rounded_to is not None:
        return HEAL_ROUNDED(found.rounded_to)
    if not found.compared_parameters:
        return HEAL_UNPROVED(found.step)
    job, optimizer = known_training(run), optimizer_of_run(run)
    leaves_out = job.has_usage_map or bool(job.unused_parameters)
    described = Description(layout, tuple(describe_sections(layout, optimizer, leaves_out)))
    if not found.optimizer and _keeps_state(described):
        return HEAL_WITHOUT_STATE()
    sections = flat_state(template, layout, optimizer, leaves_out=leaves_out)
    return patch_of_sections(described, sections, elements_of_losses(losses, found.step))


def _keeps_state(description: Description) -> bool:
    """Whether the replica keeps more of an element than its parameter."""
    return any(
        section.name != state_section_names.PARAMETERS
        for section in sections_of_elements(description)
    )
