"""Decides the health of a running chain and of each job: exact, behind, tainted or stale, with the
reason (of a chain that is over, state_reader.py does).

The worst that applies is reported. Only what could be read is judged: what could not be read is
never exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowcheck.findings.catalog.chain_health import (
    AUDIT_FAILED,
    AUDIT_FAILED_AT,
    AUDITED_AT,
    BASE_MISSING,
    BASE_MISSING_LOGGED,
    BASE_MISSING_NONE_LOGGED,
    CHAIN_ENDS,
    CHAIN_STARTS,
    CHECKPOINT_MISSING,
    EXACT,
    HEARTBEAT_BEFORE_BOOT,
    LOST_STEP,
    NO_FRAME_YET,
    NO_LINK,
    NO_LINK_AND,
    NO_LINK_LEFT,
    NO_STEP_YET,
    NOT_AUDITED,
    NOT_LEARNED,
    NOT_LEARNED_BECAUSE,
    OF_JOB,
    OLDER_PARAMETERS,
    REPLAY_SUPERVISOR_GONE,
    REPLAY_SUPERVISOR_GONE_NO_REPLICA,
    REPLAY_SUPERVISOR_GONE_NO_STEP,
    RESTS_ON,
    SOURCES_ENDED,
    STAGES_GONE,
    STAGES_RESTART,
    STAGES_TO_START,
    STATED_LAST_STEP,
    STAYS_BEFORE_LOST,
    STAYS_FOR_BASE,
    STEPS_WAIT,
    SUPERVISOR_GONE,
    SUPERVISOR_GONE_NO_REPLICA,
    SUPERVISOR_GONE_NO_STEP,
    SUPERVISOR_HANGS,
)
from flowcheck.findings.catalog.how_chains_end import CAUSE_UNKNOWN
from flowcheck.findings.catalog.restored_state import TAINTED_ELEMENTS
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import (
    Health,
    HealthWord,
    JobState,
    RingState,
    StageState,
)
from flowcheck.ops.watch.state.traffic_silence import health_with_silence
from flowcheck.replica.model_taint import ModelTaint
from flowcheck.stages.stage_table import SUPERVISOR, stage_named

BEAT_STALE_S = 5.0
"""Seconds without a heartbeat after which the supervisor counts as gone. It beats every 0.5 s
(stages/chain_events/event_recorder.py, LOOK_S), so ten are missing."""
RESTART_S = 5.0
"""Seconds for which a stage may be dead. The supervisor restarts it at once, and it reads its
position from shared memory. A choice: a longer limit reports a dead stage later, a shorter one
reports every restart."""
BEHIND_MS = 5000.0
"""Milliseconds for which a complete step may wait. A choice: a longer limit reports a slow updater
later, a shorter one reports every pause."""
HEALTH_BEST_FIRST = (HealthWord.EXACT, HealthWord.BEHIND, HealthWord.TAINTED, HealthWord.STALE)
HEALTHY = (HealthWord.EXACT, HealthWord.BEHIND)
"""Health words that HTTP answers with status 200; the others get 503."""


def worst_health(jobs: Sequence[JobState], models: Sequence[ModelTaint] = ()) -> Health:
    """The worst health among the jobs of a running chain; of equal ones the first. Where that is
    tainted elements of one ring of a training job, those of all its rings are told. models: of the
    chain."""
    found = max(jobs, key=lambda job: HEALTH_BEST_FIRST.index(job.health.word))
    own = next((one for one in models if found.name in one.jobs and len(one.jobs) > 1), None)
    if own is not None and own.told and found.health.reason.is_any_of(TAINTED_ELEMENTS):
        return Health(word=found.health.word, reason=own.told)
    many = len(jobs) > 1
    reason = OF_JOB(job=found.name, reason=found.health.reason) if many else found.health.reason
    return Health(word=found.health.word, reason=reason)


def chain_health(
    stages: Sequence[StageState],
    beat_age_s: float | None,
    *,
    ending: bool,
    stepped: bool,
    in_memory: bool,
    replay: str | None,
) -> Health | None:
    """Health of the chain's processes: stale with a reason if the supervisor or a stage is dead;
    None: they are fine.

    beat_age_s: seconds since the supervisor's last heartbeat; None: there was none.
    ending: the chain is about to end.
    stepped: a step was applied, so that a killed chain has a replica to keep.
    in_memory: the shared memory has a replica.
    replay: the command that repeats a replay; None: the chain follows a live job.
    """
    if not any(one.name == SUPERVISOR.name and one.pid is not None for one in stages):
        return _stale(_why_gone(stepped=stepped, in_memory=in_memory, replay=replay))
    if ending:
        return _stale(CHAIN_ENDS())
    if beat_age_s is None:
        return _behind(CHAIN_STARTS())
    if beat_age_s > BEAT_STALE_S:
        known = math.isfinite(beat_age_s)
        return _stale(SUPERVISOR_HANGS(round(beat_age_s)) if known else HEARTBEAT_BEFORE_BOOT())
    return None


def _why_gone(*, stepped: bool, in_memory: bool, replay: str | None) -> Finding:
    """Of a chain whose supervisor was killed: what is left of it."""
    if replay is not None:
        gone = REPLAY_SUPERVISOR_GONE if in_memory else REPLAY_SUPERVISOR_GONE_NO_REPLICA
        return (gone if stepped else REPLAY_SUPERVISOR_GONE_NO_STEP)(again=replay)
    if not stepped:
        return SUPERVISOR_GONE_NO_STEP()
    return SUPERVISOR_GONE() if in_memory else SUPERVISOR_GONE_NO_REPLICA()


def job_health(
    job: JobState,
    stages: Sequence[StageState],
    rings: Sequence[RingState] = (),
    *,
    sources_ended: bool,
) -> Health:
    """Health of one job, where the supervisor is fine.

    stages: its processes.
    rings: the rings of all its ports.
    sources_ended: all sources are read to their end.
    """
    health = _but_for_arrival(job, stages, sources_ended=sources_ended)
    dark = {ring.source: ring.dark_s for ring in rings if ring.dark_s is not None}
    silent = bool(rings) and all(ring.frame_age_s is None and not ring.head for ring in rings)
    if silent and not dark and health.reason.is_any_of(NOT_LEARNED, NOT_LEARNED_BECAUSE):
        return _behind(NO_FRAME_YET())
    if not dark or health.word is HealthWord.STALE:
        return health_with_silence(health, job)
    no_link = NO_LINK(ports=tuple(dark), seconds=round(max(dark.values())))
    if all(ring.dark_s is not None for ring in rings):
        return _stale(NO_LINK_LEFT(no_link=no_link, word=health.word, reason=health.reason))
    rest = health_with_silence(health, job)
    if rest.word in (HealthWord.STALE, HealthWord.TAINTED):
        return rest
    return _behind(NO_LINK_AND(no_link=no_link, reason=rest.reason))


def _but_for_arrival(job: JobState, stages: Sequence[StageState], *, sources_ended: bool) -> Health:
    known = [(one, stage_named(one.name).spec) for one in stages]
    needed = [(one, spec) for one, spec in known if not spec.optional]
    later = [one.name for one, _ in needed if not one.started]
    if later:
        return _behind(STAGES_TO_START(later))
    gone = [
        one
        for one, spec in needed
        if one.pid is None
        and (one.job == job.number or spec.shared)
        and not (sources_ended and spec.brings_frames)
    ]
    if gone:
        named = [one.name for one in gone]
        if max(one.gone_s or 0.0 for one in gone) < RESTART_S:
            return _behind(STAGES_RESTART(named))
        return _stale(STAGES_GONE(stages=named, limit_s=round(RESTART_S)))
    if job.awaits_base:
        return _awaits(job)
    if job.lost_step is not None:
        return _stale(_lost(job))
    if job.audit_passed is False:
        return Health(word=HealthWord.TAINTED, reason=failed_audit(job))
    if job.tainted:
        first = job.tainted[0]
        if not first.is_any_of(TAINTED_ELEMENTS):
            first = OLDER_PARAMETERS(count=len(job.tainted), first=first)
        return Health(word=HealthWord.TAINTED, reason=first)
    if job.copy_of is not None and job.copy_of.why_not is not None:
        return _stale(job.copy_of.why_not)
    if not job.learned:
        return _behind(NOT_LEARNED_BECAUSE(job.why_not[0]) if job.why_not else NOT_LEARNED())
    if job.step is None:
        return _behind(NO_STEP_YET())
    if job.lag_steps and job.lag_ms > BEHIND_MS:
        return _behind(STEPS_WAIT(steps=job.lag_steps, seconds=round(job.lag_ms / 1e3, 1)))
    return Health(word=HealthWord.EXACT, reason=_exact(job, ended=sources_ended))


def _awaits(job: JobState) -> Health:
    """The health of a job that waits for a base: behind, or stale where the replica has applied
    steps and the job was joined again after them."""
    base = base_missing(job)
    if job.step is None:
        return _behind(base)
    if not job.lost_step:
        return _stale(STAYS_FOR_BASE(step=job.step, base=base))
    why = job.lost_why or CAUSE_UNKNOWN()
    return _stale(
        STAYS_BEFORE_LOST(step=job.step, lost_step=job.lost_step, why=why, base=base),
    )


def failed_audit(job: JobState) -> Finding:
    """The finding for a job whose last audit failed."""
    if not job.audit_differs:
        return AUDIT_FAILED(job.audited_step)
    return AUDIT_FAILED_AT(step=job.audited_step, tensor=job.audit_differs)


def _lost(job: JobState) -> Finding:
    return LOST_STEP(step=job.lost_step, why=job.lost_why or CAUSE_UNKNOWN())


def _exact(job: JobState, *, ended: bool) -> Finding:
    notes = [RESTS_ON(len(job.assumed))] if job.assumed else []
    notes.append(AUDITED_AT(job.audited_step) if job.audit_passed else NOT_AUDITED())
    if job.last_step is not None and job.step is not None and job.step >= job.last_step:
        notes.append(STATED_LAST_STEP())
    elif ended:
        notes.append(SOURCES_ENDED())
    return EXACT(step=job.step, notes=notes)


def _behind(reason: Finding) -> Health:
    return Health(word=HealthWord.BEHIND, reason=reason)


def _stale(reason: Finding) -> Health:
    return Health(word=HealthWord.STALE, reason=reason)


def base_missing(job: JobState) -> Finding:
    """The finding for a job that waits for a base."""
    steps = job.logged
    if job.lacking_step is not None:
        return CHECKPOINT_MISSING(job.lacking_step)
    if steps is None:
        return BASE_MISSING()
    if not steps[1]:
        return BASE_MISSING_NONE_LOGGED()
    return BASE_MISSING_LOGGED(first=steps[0], last=steps[1])
