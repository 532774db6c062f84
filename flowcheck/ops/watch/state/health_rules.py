"""Decides the health of a chain and of each job: exact, behind, tainted or stale, with one
sentence of reason.

The worst that holds is said. Only what was read is judged: nothing is exact that could not be read.

The worst that holds is said. Only what is read is judged: nothing is exact that could not be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.ops.watch.state.chain_state import (
    Health,
    HealthWord,
    JobState,
    RingState,
    StageState,
)
from flowcheck.ops.watch.state.traffic_silence import health_with_silence
from flowcheck.stages.stage_table import SUPERVISOR, stage_named

BEAT_STALE_S = 5.0
"""The supervisor's heart beats every LOOK_S (stages/chain_events/event_recorder.py)."""
RESTART_S = 5.0
"""A stage that died is started again at once, and reads what it needs from shared memory."""
BEHIND_MS = 5000.0
"""A whole step has waited for so long."""
ORDER = (HealthWord.EXACT, HealthWord.BEHIND, HealthWord.TAINTED, HealthWord.STALE)
HOW_TO_GO_ON = (
    ", until the job begins again from one of its steps, or two checkpoints that the trainer "
    "writes from now on are given: flowcheck base FILE --then LATER"
)
"""What makes a replica go on behind a step that was lost."""
HEALTHY = (HealthWord.EXACT, HealthWord.BEHIND)
"""Answered with 200: the chain does what it can. The others: 503."""


def worst(jobs: Sequence[JobState]) -> Health:
    """Of a chain that runs: that of the job that is worst, the first of those."""
    found = max(jobs, key=lambda job: ORDER.index(job.health.word))
    many = len(jobs) > 1
    reason = f"{found.name}: {found.health.reason}" if many else found.health.reason
    return Health(word=found.health.word, reason=reason)


def chain_health(
    stages: Sequence[StageState], beat_age_s: float | None, *, ending: bool
) -> Health | None:
    """What is wrong with the processes; None where nothing is."""
    if not any(one.name == SUPERVISOR.name and one.pid is not None for one in stages):
        return _stale(
            "the supervisor is gone: nothing is captured, and the replica waits in memory"
        )
    if ending:
        return _stale("the chain is ending: no step more is taken")
    if beat_age_s is None:
        return _behind("the chain is being started")
    if beat_age_s > BEAT_STALE_S:
        return _stale(
            f"the supervisor stands still: its last sign of life is {beat_age_s:.0f} s old"
        )
    return None


def job_health(
    job: JobState,
    stages: Sequence[StageState],
    rings: Sequence[RingState] = (),
    *,
    sources_ended: bool,
) -> Health:
    """Of one job of a chain whose supervisor is well. rings: of all its ports."""
    health = _but_for_arrival(job, stages, sources_ended=sources_ended)
    dark = {ring.source: ring.dark_s for ring in rings if ring.dark_s is not None}
    if not dark or health.word is HealthWord.STALE:
        return health_with_silence(health, job)
    named = ", ".join(dark)
    why = (
        f"{named} has no link for {max(dark.values()):.0f} s: nothing arrives by it, and what "
        "passes meanwhile is lost; look at cable, transceiver and the switch's monitor port"
    )
    if all(ring.dark_s is not None for ring in rings):
        return _stale(f"{why}. Until then {health.word}: {health.reason}")
    rest = health_with_silence(health, job)
    return (
        rest
        if rest.word in (HealthWord.STALE, HealthWord.TAINTED)
        else _behind(f"{why}. {rest.reason}")
    )


def _but_for_arrival(job: JobState, stages: Sequence[StageState], *, sources_ended: bool) -> Health:
    known = [(one, stage_named(one.name).spec) for one in stages]
    needed = [(one, spec) for one, spec in known if not spec.optional]
    later = [one.name for one, _ in needed if not one.started]
    if later:
        return _behind(f"stage {', '.join(later)} is to be started once the others are up")
    gone = [
        one
        for one, spec in needed
        if one.pid is None
        and (one.job == job.number or spec.shared)
        and not (sources_ended and spec.brings_frames)
    ]
    if gone:
        named = f"stage {', '.join(one.name for one in gone)}"
        if max(one.gone_s or 0.0 for one in gone) < RESTART_S:
            return _behind(f"{named} died, and the supervisor starts it again")
        return _stale(f"{named} does not live, and was not started again within {RESTART_S:.0f} s")
    if job.awaits_base:
        return _awaits(job)
    if job.lost_step is not None:
        return _stale(_lost(job))
    if job.audit_passed is False:
        differs = f": {job.audit_differs} differs" if job.audit_differs else ""
        reason = f"the audit of step {job.audited_step} failed{differs}"
        return Health(word=HealthWord.TAINTED, reason=reason)
    if job.tainted:
        more = f" and {len(job.tainted) - 1} more" if job.tainted[1:] else ""
        return Health(word=HealthWord.TAINTED, reason=f"not of the step: {job.tainted[0]}{more}")
    if not job.learned:
        return _behind(f"no job is learned yet{_first(job.why_not)}")
    if job.step is None:
        return _behind("the job is learned, and no step of it is taken yet")
    if job.lag_steps and job.lag_ms > BEHIND_MS:
        waited = f"the first of them for {job.lag_ms / 1e3:.1f} s"
        return _behind(f"{job.lag_steps} whole steps wait for the replica, {waited}")
    return Health(word=HealthWord.EXACT, reason=_exact(job, ended=sources_ended))


def _awaits(job: JobState) -> Health:
    """A replica that has taken steps stays behind those of a job that was joined again."""
    told = base_missing(job.logged)
    if job.step is None:
        return _behind(told)
    why = f": {job.lost_why}" if job.lost_why else ""
    lost = f", before step {job.lost_step}, which was lost{why}" if job.lost_step else ""
    return _stale(f"the replica stays at step {job.step}{lost}; {told}")


def _lost(job: JobState) -> str:
    why = f": {job.lost_why}" if job.lost_why else ""
    return f"step {job.lost_step} was lost{why}; the replica stays before it{HOW_TO_GO_ON}"


def _exact(job: JobState, *, ended: bool) -> str:
    rests = f"rests on {len(job.assumed)} assumptions, " if job.assumed else ""
    audit = f"audited at step {job.audited_step}" if job.audit_passed else "never audited"
    over = "; the sources have ended" if ended else ""
    if job.last_step is not None and job.step is not None and job.step >= job.last_step:
        over = "; that is the job's last, as stated: it is over"
    return f"the replica is at step {job.step}, {rests}{audit}{over}"


def _first(reasons: Sequence[str]) -> str:
    return f": {reasons[0]}" if reasons else ""


def _behind(reason: str) -> Health:
    return Health(word=HealthWord.BEHIND, reason=reason)


def _stale(reason: str) -> Health:
    return Health(word=HealthWord.STALE, reason=reason)


def base_missing(steps: tuple[int, int] | None) -> str:
    """steps: the first and the last that is logged since the job was joined, (1, 0) where none is;
    None of a job whose start was seen."""
    if steps is None:
        return "the job began with a state that is not known: flowcheck base FILE gives it"
    held = f"its steps {steps[0]} to {steps[1]} since are logged"
    told = held if steps[1] else "nothing is logged yet"
    return (
        f"the job was joined amid its run; {told}: with two checkpoints of the trainer's, "
        "flowcheck base FILE --then LATER makes the replica go on"
    )
