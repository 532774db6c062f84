"""When traffic last arrived (from the supervisor's heartbeat), and the health of a job whose
traffic fell silent."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from flowcheck.config import JobConfig
from flowcheck.findings.catalog.chain_health import (
    NOT_PLACED,
    PACKETS_MISSING,
    PACKETS_OF_STEPS_MISSING,
    QUIET,
    SILENT,
    STEPS_TOOK,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import (
    Health,
    HealthWord,
    JobState,
    RingState,
    TrafficArrival,
)
from flowcheck.stages.chain_events.heartbeat import Heartbeat
from flowcheck.step_numbers import Step

QUIET_S, QUIET_STEPS = 5.0, 4
"""A job is reported as quiet, before it is silent, after this many seconds and this many median
step times without traffic. A choice: longer reports later, shorter reports every evaluation."""
NEW_JOB_AFTER_S = 3.0
"""Seconds for which only packets without a plan arrive, before a new job is assumed. A choice:
longer than a pause of one job beside others; a longer time reports a new job later."""


def traffic_arrival(beat: Heartbeat | None) -> TrafficArrival | None:
    """When traffic of this supervisor's job last arrived; None: unknown."""
    age_s = None if beat is None or beat.came_ns is None else _age_s(beat.came_ns)
    if beat is None or age_s is None:
        return None
    return TrafficArrival(
        age_s=age_s,
        limit_s=round(beat.silence_limit_s, 3),
        newest_step=beat.newest_step,
        step_s=round(beat.step_s, 3) or None,
        unplaced_s=round(beat.unplaced_s, 3),
    )


def with_arrival(job: JobState, beat: Heartbeat | None) -> JobState:
    """`job` with the supervisor's counts: complete steps after one with missing packets count as
    waiting as well."""
    own = traffic_arrival(beat)
    lag = job.lag_steps
    if job.awaits_base and job.logged is None:  # counted from 1 since it began again
        lag = max(lag, job.arrived_step or 0)
    elif own is not None and own.newest_step is not None and not job.awaits_base:
        lag = max(lag, own.newest_step - 1 - (job.step or 0))  # that one is under way
    if beat is not None and beat.full and beat.applied > (job.step or 0):
        job = msgspec.structs.replace(job, step=beat.applied, digest=beat.digest)
    return msgspec.structs.replace(job, arrival=own, lag_steps=lag)


def with_frame_ages(
    rings: Sequence[RingState], config: JobConfig, beat: Heartbeat | None
) -> list[RingState]:
    """The rings with the age of their last frame and the time without link of their port. beat:
    heartbeat of the supervisor of the ports."""
    if beat is None:
        return list(rings)
    return [
        msgspec.structs.replace(
            ring,
            frame_age_s=_since(beat.frame_ns, ring.number),
            dark_s=_since(beat.link_down_ns, config.rings[ring.number][0]),
        )
        for ring in rings
    ]


def _since(each_ns: Sequence[int], number: int) -> float | None:
    then_ns = each_ns[number] if number < len(each_ns) else 0
    return _age_s(then_ns) if then_ns else None


def _age_s(then_ns: int) -> float | None:
    """Age in seconds; None where the machine was rebooted since."""
    age_ns = time.monotonic_ns() - then_ns
    return round(age_ns / 1e9, 3) if age_ns >= 0 else None


def health_with_silence(health: Health, job: JobState) -> Health:
    """The health with the arrival of traffic taken into account. health: without it; a stale job
    keeps its reason."""
    own = job.arrival
    if own is None or health.word is HealthWord.STALE:
        return health
    seconds = round(own.age_s)
    pace = STEPS_TOOK(float(f"{own.step_s:.3g}")) if own.step_s else None
    if own.silent:
        reason = SILENT(seconds=seconds, pace=pace, word=health.word, reason=health.reason)
        return Health(word=HealthWord.STALE, reason=reason)
    quiet_s = max(QUIET_S, QUIET_STEPS * (own.step_s or 0.0))
    if own.step_s and own.age_s > quiet_s and health.word is HealthWord.EXACT:
        reason = QUIET(seconds=seconds, pace=pace, reason=health.reason)
        return Health(word=HealthWord.BEHIND, reason=reason)
    missing = {
        one.step: one.missing - one.healed
        for one in job.timeline
        if one.step > (job.step or 0) and one.missing > one.healed
    }
    if missing and health.word in (HealthWord.EXACT, HealthWord.BEHIND):
        return Health(word=HealthWord.BEHIND, reason=_packets_missing(job, missing))
    if own.unplaced_s > NEW_JOB_AFTER_S and health.word is HealthWord.EXACT:
        return Health(word=HealthWord.BEHIND, reason=NOT_PLACED(job.step))
    return health


def _packets_missing(job: JobState, missing: Mapping[Step, int]) -> Finding:
    """The finding for missing packets. missing: {step: packets} of steps that the replica has not
    applied."""
    known = {"packets": sum(missing.values()), "replica_step": job.step or 0, "lag": job.lag_steps}
    if len(missing) == 1:
        return PACKETS_MISSING(**known, step=min(missing))
    return PACKETS_OF_STEPS_MISSING(**known, steps=len(missing))
