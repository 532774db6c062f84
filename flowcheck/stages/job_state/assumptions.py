"""Assumptions that the replica rests on without evidence, until an audit passes."""

from __future__ import annotations

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.messages import parse_audit_record
from flowcheck.replica.optimizer_step.loss_scale_evidence import SCALE, read_scale_evidence
from flowcheck.stages.job_state.job_incarnation import incarnation_of
from flowcheck.stages.job_state.unused_parameters import GRADIENTS_KEPT_NONE, first_unused_step
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.training_job.learned_job import UNTIL_AUDITED, FollowedData, decode_job

EMPTY_STATE = (
    "the trainer's optimizer had no state when its start-up was seen (no audit has shown it yet)"
)

BASE_FITS = f"which of the logged gradients follows the base {UNTIL_AUDITED}"


def add_assumption(run: RunDir, sentence: str) -> bool:
    """Adds to what the steps taken since rest on, once; whether it is new."""
    known = _added(run)
    if sentence in known:
        return False
    write_atomically(run.assumed, msgspec.json.encode([*known, sentence]))
    return True


def assumptions_of(run: RunDir) -> tuple[str, ...]:
    """All of it, for the replica as it is now; () before a job is learned."""
    if not run.learned_job.exists():
        return ()
    job, followed = decode_job(run.learned_job.read_bytes()), incarnation_of(run)
    own = job.assumed
    another = (followed.base, followed.anchored) != (None, None)
    audited = _audited(run, followed.audits if another else 0)
    if followed.anchored is not None and audited <= followed.anchored:
        audited = 0  # a file is equal to what was made of it
    known = audited or followed.anchored is not None  # a file has shown all of the state
    first = () if known or job.kind is FollowedData.PARAMETERS else (EMPTY_STATE,)
    if job.joined:
        # A base is equal to itself: what was taken on it shows whether it belonged there.
        shown = followed.base is not None and audited > followed.base
        first = () if shown else (BASE_FITS,)
        own = tuple(s for s in own if not (shown and s.endswith(UNTIL_AUDITED)))
    added = [_told(run, s) for s in _added(run) if not (audited and s.endswith(UNTIL_AUDITED))]
    left_out = first_unused_step(run.left_out)
    keeps = (
        () if left_out is None or audited >= left_out else (GRADIENTS_KEPT_NONE.format(left_out),)
    )
    return tuple(dict.fromkeys((*own, *added, *first, *keeps)))


def _told(run: RunDir, sentence: str) -> str:
    """With what was counted for and against it since."""
    tally = read_scale_evidence(run.scale) if sentence.startswith(SCALE) else None
    return sentence if tally is None else f"{SCALE}({tally.told}) {UNTIL_AUDITED}"


def _added(run: RunDir) -> list[str]:
    if not run.assumed.exists():
        return []
    return msgspec.json.decode(run.assumed.read_bytes(), type=list[str])


def _audited(run: RunDir, before: int) -> int:
    """The last step that an audit passed at, 0: none: an optimizer that went on from another state
    would have made other parameters by then. before: lines that are of another past."""
    lines = run.audits.read_bytes().splitlines()[before:] if run.audits.exists() else []
    return max(
        (told.step for told in map(parse_audit_record, lines) if told and told.passed), default=0
    )
