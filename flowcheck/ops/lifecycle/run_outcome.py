"""The outcome of a chain that was stopped: its last step, and why it came no further."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import DECODE_ERRORS, LearnError
from flowcheck.findings.catalog.how_chains_end import (
    LOST_AND_STAYS,
    NO_BASE,
    NO_BASE_AFTER_JOIN,
    NO_CHECKPOINT,
    NO_COMPLETE_STEP,
    NO_FRAME,
    NO_JOB_LEARNED,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.lifecycle.progress_messages import lost_step_finding
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import lost_frames
from flowcheck.stages.chain_events.heartbeat import read_beat
from flowcheck.stages.job_state.lifecycle_record_reader import read_record
from flowcheck.stages.job_state.training_facts import is_training_known, training_of
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.bounded_log_files import last_complete_line
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.step_numbers import Step
from flowcheck.wire.training_job.learned_job import FollowedData


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a live chain that has ended."""

    step: Step
    """Last step that the replica applied; 0: none."""
    digest: str
    why: Finding | None
    """Why the replica stopped before the end; None: it followed to the end."""
    in_flight: int | None
    """A step whose data was still incomplete when the chain was stopped; None: no such step."""
    frames: int
    lost_frames: int
    """Frames that reached this machine but were not written to a ring."""


def run_outcome(config: JobConfig, run: RunDir, progress: ChainProgress) -> RunOutcome:
    """Reads the outcome from shared memory and records of a chain whose stages have ended. Raises
    RingError where a ring cannot be read."""
    frames = lost = 0
    for number in range(len(config.rings)):
        with FrameRing.open(run.ring(number)) as ring:
            capture = ring.counters()["capture"]
            frames, lost = frames + capture["rx_frames"], lost + lost_frames(capture)
    last = last_step(run) or {"step": 0, "digest": ""}
    step = Step(int(str(last["step"])))
    why = _stopped(run, progress)
    if why is None and not step:
        why = _nothing(run, progress, frames if config.source else None)
    return RunOutcome(
        step=step,
        digest=str(last["digest"]),
        why=why,
        in_flight=progress.in_flight.step if progress.in_flight is not None else None,
        frames=frames,
        lost_frames=lost,
    )


def _stopped(run: RunDir, progress: ChainProgress) -> Finding | None:
    """Why the replica applies no more steps; None if it would have.

    The files tell, not the first loss heard of: a job that came back may be followed since.
    """
    record = read_record(run)
    if record.verdict is not None and not record.verdict.followed:
        return record.verdict.why
    if record.incarnation.step is None and _joined(run):
        return NO_BASE_AFTER_JOIN()
    if record.incarnation.step is None:
        return NO_BASE()
    if record.incarnation.lacking is not None:
        return NO_CHECKPOINT(record.incarnation.lacking)
    step = _lost_step(run)
    if step is None or (progress.in_flight is not None and step == progress.in_flight.step):
        return None
    if progress.lost is not None and progress.lost.step == step:
        return lost_step_finding(progress.lost)
    return LOST_AND_STAYS(step=step, replica_step=step - 1)


def _goes_on(run: RunDir) -> bool:
    """A lost step keeps nothing that follows from being taken."""
    training = training_of(run)
    return training is not None and training.kind is FollowedData.PARAMETERS


def _joined(run: RunDir) -> bool:
    with suppress(OSError, LearnError):
        training = training_of(run)
        seen = training is not None and training.start_unknown  # from its first step on
        return training is not None and training.awaits_base and not seen
    return False


def _lost_step(run: RunDir) -> int | None:
    progress = source_progress(run)
    return None if progress is None or _goes_on(run) else progress.lost_iteration


def _nothing(run: RunDir, progress: ChainProgress, frames: int | None) -> Finding:
    """Why there is not one step. frames: that were captured; None: the chain captures none."""
    if frames == 0:
        return NO_FRAME()
    if frames is None or is_training_known(run):
        return NO_COMPLETE_STEP()
    return progress.why or NO_JOB_LEARNED(frames)


def last_step(run: RunDir) -> dict[str, object] | None:
    """The last complete line of steps.jsonl; if lines could not be written, step and digest from
    the last heartbeat. None: no step was applied, or the line is damaged."""
    beat = read_beat(run.heartbeat_file)
    if beat is not None and beat.unwritten_lines and beat.applied:
        return {"step": beat.applied, "digest": beat.digest}
    line = last_complete_line(run.steps)
    if line is None:
        return None
    try:
        told: dict[str, object] = msgspec.json.decode(line)
        msgspec.convert(told, _Line)
    except DECODE_ERRORS:
        return None  # damaged: nothing of it is believed
    return told


class _Line(msgspec.Struct):
    """What every line of steps.jsonl has."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    digest: str
    taint: Finding | None = None
