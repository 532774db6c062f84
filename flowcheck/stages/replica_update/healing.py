"""The updater's part of healing: the trainer's values of tainted elements are taken and recorded.

A kill before the answer makes it run again: the same values heal the same elements, or nothing is
left that they heal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.job_restarts import (
    STATE_NOT_KNOWN,
    VALUES_OF_EARLIER_INCARNATION,
)
from flowcheck.findings.catalog.replica_state_errors import PATCH_REFUTED
from flowcheck.findings.catalog.replica_update_notes import ELEMENTS_HEALED, HEALING_REFUSED
from flowcheck.findings.finding import Finding
from flowcheck.replica.element_ranges import count_elements
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.taint import tainted_elements
from flowcheck.stages.job_state.given_checkpoint_request import (
    clear_request,
    read_patch,
    refuse_request,
)
from flowcheck.stages.job_state.heal_log import HealRecord, read_heal_records
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.lifecycle_record_schema import CheckpointRequest
from flowcheck.stages.job_state.lifecycle_writers import UpdateLifecycle
from flowcheck.stages.replica_update.step_log import StepLog
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.run_dir import RunDir

LINES_BYTES = 1 << 20
"""Bytes of heals.jsonl; beyond them the newer half is kept. A choice: some thousand lines."""

LINES_BEFORE = "steps-before-healing.jsonl"
"""File beside steps.jsonl with the lines that healed steps had before."""


def take_patch(
    run: RunDir,
    replica: Replica,
    records: StepLog,
    lifecycle: UpdateLifecycle,
    request: CheckpointRequest,
    say: Callable[[Finding], None],
    *,
    waits: bool,
) -> bool:
    """Takes the values that were given, or answers why not. Returns whether elements were healed.

    say: tells the operator, again if a kill makes it run again; waits: the replica's state is not
    known yet.
    """
    done = next((one for one in read_heal_records(run) if one.request == request.id), None)
    if done is None:
        why, healed = _why_not(run, request, waits=waits), 0
        if why is None:
            why, healed = _heal(run, replica, records, request)
        if request.asked_bytes and why is not None and why.is_any_of(PATCH_REFUTED):
            # Of which step, and of whose, a hook's values are its stage finds out by asking here.
            refuse_request(lifecycle, request, replica.step, why)
            return False
        done = HealRecord(
            time_ns=time.time_ns(),
            step=request.step,
            source=request.source,
            request=request.id,
            at=replica.step,
            elements=healed,
            left=tainted_elements(replica.tainted),
            asked_bytes=request.asked_bytes,
            refused=why,
        )
        record_heal(run, records, done)
    if done.refused is not None:
        say(HEALING_REFUSED(source=done.source, reason=done.refused))
        refuse_request(lifecycle, request, done.at, done.refused)
        return False
    counts = {"elements": done.elements, "step": done.step, "at": done.at, "left": done.left}
    say(ELEMENTS_HEALED(source=done.source, **counts))
    lifecycle.answer(request, done.at)
    clear_request(run, request)
    return True


def _why_not(run: RunDir, request: CheckpointRequest, *, waits: bool) -> Finding | None:
    """Why the values may not be taken, whatever they are."""
    if waits:
        return STATE_NOT_KNOWN()
    if request.incarnation not in (0, incarnation_of(run).number):
        return VALUES_OF_EARLIER_INCARNATION(step=request.step, number=request.incarnation)
    return None


def record_heal(run: RunDir, records: StepLog, heal: HealRecord) -> None:
    """Adds a line to heals.jsonl, as far as the disk has room."""
    told = partial(append_line, run.heals, msgspec.json.encode(heal), LINES_BYTES)
    records.unwritten.attempt(told, lines=0)


def _heal(
    run: RunDir, replica: Replica, records: StepLog, request: CheckpointRequest
) -> tuple[Finding | None, int]:
    """(why not, elements healed)"""
    try:
        healed = replica.heal(request.step, read_patch(run, request))
    except StateError as error:
        return error.finding, 0
    records.write_newest_again(replica, keeps=LINES_BEFORE)
    return None, count_elements(healed)
