"""Assumptions that the replica rests on without evidence, until an audit passes."""

from __future__ import annotations

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS
from flowcheck.findings.catalog.distributed_optimizers import MASTERS_BY_ROUNDED, MASTERS_COMPARED
from flowcheck.findings.catalog.earlier_files import finding_of
from flowcheck.findings.catalog.replica_update_notes import (
    ASSUMED_UNREADABLE,
    BASE_FITS,
    EMPTY_STATE,
    UNUSED_LEFT_OUT,
)
from flowcheck.findings.catalog.step_arithmetic import LOSS_SCALE, LOSS_SCALE_COUNTED
from flowcheck.findings.finding import Finding
from flowcheck.messages import parse_audit_record
from flowcheck.replica.optimizer_step.loss_scale_evidence import read_scale_evidence
from flowcheck.stages.job_state.gathered_parameters import read_tally
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.job_state.unused_parameters import first_unused_step
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import FollowedData
from flowcheck.wire.training_job.training_spec import TrainingSpec


def add_assumption(run: RunDir, found: Finding) -> bool:
    """Adds an assumption to what later steps rest on, once. Returns whether it is new."""
    known = _added(run)
    if found in known:
        return False
    write_atomically(run.assumed, msgspec.json.encode([*known, found]))
    return True


def assumptions_of(run: RunDir) -> tuple[Finding, ...]:
    """All assumptions that the replica rests on now; () before a job is learned."""
    job, followed = training_of(run), incarnation_of(run)
    if job is None:
        return ()
    if isinstance(job, TrainingSpec) and job.copied:
        return tuple(dict.fromkeys((*job.assumed, *_added(run))))
    another = (followed.base, followed.anchored) != (None, None)
    audited = _audited(run, followed.audits if another else 0)
    if followed.anchored is not None and audited <= followed.anchored:
        audited = 0  # a file is equal to what was made of it
    own = tuple(found for found in job.assumed if not (audited and found.until_audit))
    known = audited or followed.anchored is not None  # a file has shown all of the state
    first = () if known or job.kind is FollowedData.PARAMETERS else (EMPTY_STATE(),)
    if job.awaits_base:
        # A base is equal to itself: what was taken on it shows whether it belonged there.
        shown = followed.base is not None and audited > followed.base
        first = () if shown else (BASE_FITS(),)
        own = tuple(found for found in job.assumed if not (shown and found.until_audit))
    added = [
        _with_evidence(run, found) for found in _added(run) if not (audited and found.until_audit)
    ]
    left_out = first_unused_step(run.first_unused_step)
    keeps = () if left_out is None or audited >= left_out else (UNUSED_LEFT_OUT(left_out),)
    own = tuple(_with_evidence(run, found) for found in own)
    return tuple(dict.fromkeys((*own, *added, *first, *keeps)))


def _with_evidence(run: RunDir, found: Finding) -> Finding:
    """The assumption with the evidence that was counted for and against it since."""
    if found.is_any_of(MASTERS_BY_ROUNDED):
        told = read_tally(run)
        return MASTERS_COMPARED(steps=told.compared, step=told.last) if told.compared else found
    tally = (
        read_scale_evidence(run.scale) if found.is_any_of(LOSS_SCALE, LOSS_SCALE_COUNTED) else None
    )
    return found if tally is None else LOSS_SCALE_COUNTED(tally.summary)


def _added(run: RunDir) -> list[Finding]:
    """The assumptions on file; an earlier version wrote sentences. A damaged file gives one that
    says so: the state is kept, and not called proved."""
    if not run.assumed.exists():
        return []
    try:
        told = msgspec.json.decode(run.assumed.read_bytes(), type=list[Finding | str])
    except DECODE_ERRORS as error:
        return [ASSUMED_UNREADABLE(file=run.assumed.name, error=error)]
    return [finding_of(one) for one in told]


def _audited(run: RunDir, before: int) -> int:
    """The last step at which an audit passed; 0: none did. It proves the optimizer state as well,
    since another state would have made other parameters by then. before: how many lines belong to
    steps that the job gave up."""
    lines = run.audits.read_bytes().splitlines()[before:] if run.audits.exists() else []
    return max(
        (o.step for o in map(parse_audit_record, lines) if o and o.passed and o.tensors), default=0
    )
