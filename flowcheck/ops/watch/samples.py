"""What of a chain's state is numbers: a sample for each, by the names of METRICS (metrics.py)."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.ops.watch.parts.health import Word
from flowcheck.ops.watch.parts.job import Job
from flowcheck.ops.watch.parts.ring import Ring
from flowcheck.ops.watch.parts.stage import Stage
from flowcheck.ops.watch.state import State

Sample = tuple[str, tuple[str, ...], float]
"""(metric, values of its labels, value)"""


def samples(state: State) -> Iterator[Sample]:
    """All of a state; what it does not know is left out."""
    for word in Word:
        yield "flowcheck_health", (word,), float(state.health.word is word)
    yield "flowcheck_over", (), float(state.in_order)
    yield "flowcheck_problems", (), len(state.problems)
    yield "flowcheck_unwritten_lines_total", (), state.unwritten_lines
    yield "flowcheck_packets_came_late_total", (), state.packets_came_late
    yield from _known("flowcheck_beat_age_seconds", (), state.beat_age_s)
    yield from _known("flowcheck_started_time_seconds", (), _seconds(state.started_ns))
    for kind, count in state.event_counts.items():
        yield "flowcheck_events_total", (kind,), count
    names = {job.number: job.name for job in state.jobs}
    for stage in state.stages:
        yield from _of_stage(stage, names.get(stage.job, str(stage.job)))
    for ring in state.rings if state.ended is None else ():
        yield from _of_ring(ring)
    for job in state.jobs:
        yield from _of_job(job)
        if state.ended is None:
            yield from _under_way(job)
        if job.step_ns is not None:
            yield "flowcheck_step_age_seconds", (job.name,), (state.time_ns - job.step_ns) / 1e9


def _of_stage(stage: Stage, job: str) -> Iterator[Sample]:
    labels = (job, stage.name)
    yield "flowcheck_stage_up", labels, float(stage.pid is not None)
    yield "flowcheck_stage_restarts_total", labels, stage.restarts


def _of_ring(ring: Ring) -> Iterator[Sample]:
    own = (str(ring.number),)
    yield "flowcheck_ring_slots", own, ring.slots
    yield "flowcheck_ring_filled_slots", own, ring.filled_slots
    yield "flowcheck_captured_frames_total", own, ring.head
    yield "flowcheck_captured_bytes_total", own, ring.captured_bytes
    yield from _known("flowcheck_frame_age_seconds", own, ring.frame_age_s)
    yield "flowcheck_link_up", (*own, ring.source), float(ring.dark_s is None)
    yield "flowcheck_parsed_frames_total", own, ring.parsed
    yield "flowcheck_extracted_frames_total", own, ring.tail
    yield "flowcheck_missing_packets", own, ring.missing_packets
    for metric, counters in (
        ("flowcheck_lost_frames_total", ring.lost),
        ("flowcheck_frames_total", ring.verdicts),
        ("flowcheck_parse_total", ring.parse),
        ("flowcheck_extract_total", ring.extract),
    ):
        for counter, value in counters.items():
            yield metric, (*own, counter), value


def _of_job(job: Job) -> Iterator[Sample]:
    own = (job.name,)
    for word in Word:
        yield "flowcheck_job_health", (*own, word), float(job.health.word is word)
    yield "flowcheck_learned", own, float(job.learned)
    yield "flowcheck_life", own, job.life
    yield "flowcheck_lost_steps_total", own, job.steps_lost
    yield "flowcheck_tainted_parameters", own, len(job.tainted)
    yield "flowcheck_assumptions", own, len(job.assumed)
    passed = None if job.audit_passed is None else float(job.audit_passed)
    for metric, value in (
        ("flowcheck_step", job.step),
        ("flowcheck_step_time_seconds", _seconds(job.step_ns)),
        ("flowcheck_arrived_step", job.arrived_step),
        ("flowcheck_update_seconds", job.update_seconds),
        ("flowcheck_under_way_ratio", job.under_way),
        ("flowcheck_audited_step", job.audited_step),
        ("flowcheck_audit_passed", passed),
    ):
        yield from _known(metric, own, value)
    if (durable := job.durable) is not None:
        yield from _known("flowcheck_durable_step", own, durable.step)
        yield from _known("flowcheck_durable_time_seconds", own, _seconds(durable.time_ns))
        yield "flowcheck_saves_total", own, durable.count


def _under_way(job: Job) -> Iterator[Sample]:
    """What a job that is followed no more has none of."""
    own = (job.name,)
    yield "flowcheck_lag_steps", own, job.lag_steps
    yield "flowcheck_lag_seconds", own, job.lag_ms / 1e3
    yield "flowcheck_waits_at_lost_step", own, float(job.lost_step is not None)
    yield "flowcheck_awaits_base", own, float(job.awaits_base)
    if job.arrival is not None:
        yield "flowcheck_silence_seconds", own, job.arrival.age_s
        yield "flowcheck_silence_limit_seconds", own, job.arrival.limit_s
    if (durable := job.durable) is not None:
        behind = max(0, (job.step or 0) - (durable.step or 0))
        yield "flowcheck_durable_lag_steps", own, behind
        yield "flowcheck_save_attempts_failed", own, durable.attempts


def _known(name: str, labels: tuple[str, ...], value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield name, labels, value


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9
