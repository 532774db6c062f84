"""`flowcheck base` while the replica is being updated: replaces a step of the replica by the
trainer's checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from flowcheck.errors import StateError
from flowcheck.findings.catalog.base_checkpoints import (
    FILE_REFUSED,
    NO_UPDATER,
    NOTHING_TAINTED,
    NOTHING_TO_REPLACE,
    RECORD_GONE,
    STEP_NOT_REACHED,
    STEP_REPLACED,
    TENSORS_DIFFERED,
    WAIT_ENDED,
)
from flowcheck.findings.catalog.file_audits import NOT_HEALED
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import heal_by_file
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.given_checkpoint_request import await_answer, submit_request
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import RequestKind
from flowcheck.stages.job_state.model_layout import optimizer_of_run
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.replica_update.model_buffers import store_checkpoint_buffers
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import Position, stage_at
from flowcheck.vault.audit.bitwise_audit import Audit
from flowcheck.vault.audit.param_group_check import check_settings
from flowcheck.vault.trainer_checkpoint.checkpoint_template import CheckpointTemplate
from flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint import flat_state

REACHED_LIMIT_S = 60.0
"""Seconds for the replica to reach the file's step. A choice: longer delays the error, shorter
fails for slow steps."""
TAKEN_LIMIT_S = 60.0
"""Seconds for the updater to take the file. A choice: longer delays the error of a chain that
hangs, shorter fails for a large model."""
LOOK_S = 0.05
"""Seconds between two looks at the replica's step. A choice: shorter costs processor time."""


def replace_with_checkpoint(where: RunDir, file: Path) -> tuple[int, Finding]:
    """Replaces the replica's state by a checkpoint of a step that the updater has applied. Returns
    (step, what the updater did).

    Raises StateError if the replica does not reach the step within REACHED_LIMIT_S, if the file
    does not hold the whole state or has other settings than the job file, if the updater refuses
    it, or if the updater does not answer within TAKEN_LIMIT_S.
    """
    template = proved_template(where, file)
    return template.step, replace_by(where, template, file)


def proved_template(where: RunDir, file: Path, tree: Any = None) -> CheckpointTemplate:
    """The file, once nothing that is known before the updater has it speaks against it. tree: what
    is in it, where it was read. Raises StateError as `replace_with_checkpoint`."""
    if stage_at(Position.STEP).name not in where.stage_pids():
        raise StateError(NO_UPDATER(where.root))
    template = audits.read_checkpoint_template(where, file, tree=tree)
    check_settings(template, optimizer_of_run(where), peek_versions(where.replica)[0], str(file))
    if incarnation_of(where).lacking is not None:
        return template
    if not _until(lambda: _at(where) >= template.step, REACHED_LIMIT_S):
        what = STEP_NOT_REACHED(
            file=file,
            step=template.step,
            run=where.root,
            at=_at(where),
            limit_s=round(REACHED_LIMIT_S),
        )
        raise StateError(what)
    return template


def replace_by(where: RunDir, template: CheckpointTemplate, file: Path) -> Finding:
    """Replaces the replica's state by a proved file. Returns what the updater did. Raises
    StateError if it refuses the file, or does not answer within TAKEN_LIMIT_S."""
    if incarnation_of(where).lacking is not None:
        return end_wait(where, template, file)
    told = RECORD_GONE()
    if (found := _held_against(where, template, file)) is not None:
        audits.append_audit_line(where, found, file, template, base=_ends_doubt(where, found))
        if found.equal and not found.tainted_elements:
            return NOTHING_TO_REPLACE(tensors=found.tensors, step=found.step)
        if found.equal:
            told = heal_by_file(where, template, found, file) or NOTHING_TAINTED(found.step)
            if not told.is_any_of(NOT_HEALED):
                return told
        else:
            told = TENSORS_DIFFERED(
                differing=len(found.differences),
                tensors=found.tensors,
                first=found.differences[0].name,
            )
    steps = _replace(where, template, file)
    return STEP_REPLACED(step=template.step, why=told, steps=steps)


def end_wait(where: RunDir, template: CheckpointTemplate, file: Path) -> Finding:
    """Gives a replica that stays before a step which lacks bytes the trainer's state of that step
    or a later one. Returns what the updater did. Raises StateError as `replace_with_checkpoint`."""
    return WAIT_ENDED(step=template.step, steps=_replace(where, template, file))


def _replace(where: RunDir, template: CheckpointTemplate, file: Path) -> int:
    """Has the updater take a file, and writes down what rests on it. Returns the steps since."""
    at = submit_and_wait(where, template, file)
    store_checkpoint_buffers(where, template.model, template.step)
    audits.append_base_line(where, template.step, file)
    return at - template.step


def _ends_doubt(where: RunDir, found: Audit) -> bool:
    """Whether a file that is equal to the replica is a new base: it shows the whole state, of which
    no element was left out as tainted, at the step of a difference that is on record or later."""
    failed = audit_history_of(where).failed
    whole = (found.optimizer or found.parameters_only) and not found.tainted_elements
    return found.equal and whole and (failed is None or found.step >= failed.step)


def submit_and_wait(where: RunDir, template: CheckpointTemplate, file: Path) -> int:
    """Gives it to the updater and waits for it; the step at which that was then. Raises StateError
    as `replace_with_checkpoint`."""
    request = submit_checkpoint(where, template, file)
    answer = await_answer(where, request, TAKEN_LIMIT_S, "the file")
    if answer.refused is not None:
        raise StateError(FILE_REFUSED(file=file, why=answer.refused))
    return answer.at


def submit_checkpoint(where: RunDir, template: CheckpointTemplate, file: Path) -> str:
    """Submits the state of a checkpoint to the updater. Returns the request's name. Raises
    StateError if the state is incomplete."""
    sections = state_sections(where, template)
    return submit_request(where, RequestKind.ANCHOR, template.step, sections, str(file))


def state_sections(where: RunDir, template: CheckpointTemplate) -> dict[str, np.ndarray]:
    """The state of a checkpoint as the replica keeps it. Raises StateError if it is incomplete."""
    layout, _ = peek_versions(where.replica)
    job = known_training(where)
    leaves_out = job.has_usage_map or bool(job.unused_parameters)
    return flat_state(template, layout, optimizer_of_run(where), leaves_out=leaves_out)


def _held_against(where: RunDir, template: CheckpointTemplate, file: Path) -> Audit | None:
    """None: the step is not known any more, or the file has not the replica's bits."""
    try:
        found = audits.compare_with_replica(where, template, file)
    except StateError:
        return None
    return found if found.rounded_to is None else None


def _at(where: RunDir) -> int:
    return max(peek_versions(where.replica)[1], default=0)


def _until(done: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline_s:
            return False
        Event().wait(LOOK_S)
    return True
