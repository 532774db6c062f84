"""The lifecycle record of a run as it is now, and the incarnation of the job that it says is
followed."""

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
    """Of a run of this version, or of one before. The updater's part is read first: it tells of an
    incarnation only once the extractor's has it."""
    update = update_part_of(run)
    return LifecycleRecord(extract_part_of(run), update)


def extract_part_of(run: RunDir) -> ExtractPart:
    return read_part(run.extract_record, ExtractPart) or earlier_run_directories.extract_part(run)


def update_part_of(run: RunDir) -> UpdatePart:
    return read_part(run.update_record, UpdatePart) or earlier_run_directories.update_part(run)


def incarnation_of(run: RunDir) -> Incarnation:
    """The one that is followed; the first one before anything is known."""
    return read_record(run).incarnation


def restart_verdict(run: RunDir) -> RestartVerdict | None:
    """The updater's word on the incarnation that is offered; None while there is none."""
    return read_record(run).verdict
