"""The lifecycle record of a run as it is now, and the incarnation of the job that is followed."""

from __future__ import annotations

from flowcheck.stages.job_state import earlier_run_directories
from flowcheck.stages.job_state.lifecycle_record_schema import (
    ExtractPart,
    Incarnation,
    LifecycleRecord,
    RestartVerdict,
    UpdatePart,
    read_part,
)
from flowcheck.stages.run_directory.run_dir import RunDir

__all__ = ["Incarnation", "incarnation_of", "read_record", "restart_verdict"]


def read_record(run: RunDir) -> LifecycleRecord:
    """The record of a run of this version or an earlier one. Reads the updater's part first: it
    names an incarnation only once the extractor's part has it."""
    update = update_part_of(run)
    return LifecycleRecord(extract_part_of(run), update)


def extract_part_of(run: RunDir) -> ExtractPart:
    return read_part(run.extract_record, ExtractPart) or earlier_run_directories.extract_part(run)


def update_part_of(run: RunDir) -> UpdatePart:
    return read_part(run.update_record, UpdatePart) or earlier_run_directories.update_part(run)


def incarnation_of(run: RunDir) -> Incarnation:
    """The incarnation that is followed; the first one before anything is known."""
    return read_record(run).incarnation


def restart_verdict(run: RunDir) -> RestartVerdict | None:
    """The updater's verdict on the incarnation that is offered; None: there is none yet."""
    return read_record(run).verdict
