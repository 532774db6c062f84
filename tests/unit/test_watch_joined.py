"""What is said of a job that is joined again after a loss, and of one that takes no step more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.lifecycle import change, follow
from test_watch_reading import CONFIG
from test_watch_server import recorded
from test_watch_top import shown

from flowcheck.findings.catalog.chain_health import (
    STAGES_RESTART,
    STAYS_BEFORE_LOST,
    STAYS_FOR_BASE,
)
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.watch.prometheus_metrics import samples
from flowcheck.ops.watch.state import job_reader
from flowcheck.ops.watch.state.chain_state import Health, HealthWord
from flowcheck.ops.watch.state.health_rules import base_missing, job_health
from flowcheck.ops.watch.state.job_reader import JobReader
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.state.step_history import StepHistory
from flowcheck.stages.chain_events import event_log
from flowcheck.stages.chain_events.event_log import Event, EventKind, line_of
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.run_directory.bounded_log_files import append_line

HALF = earlier_finding("half of it never came")


def test_a_job_joined_again_after_a_loss_waits_for_a_base_and_says_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    try:
        path, now = run.events, time.time_ns()

        def tell(kind: EventKind, step: int | None, **more: Any) -> None:
            append_line(
                path, line_of(Event(time_ns=now, kind=kind, step=step, **more), {}), 1 << 20
            )

        for step in range(1, 32):
            tell(EventKind.ARRIVED, step)
            tell(EventKind.APPLIED, step, seconds=0.1)
        run.steps.write_text('{"step":31,"digest":"d","seconds":0.1}\n')
        tell(EventKind.LOSS, 32, what=event_log.STEP, count=1, why=HALF)
        tell(EventKind.HANDOVER, None)
        for step in range(1, 8):
            tell(EventKind.ARRIVED, step)
        tell(EventKind.LOSS, 8, what=event_log.STEP, count=1, why=earlier_finding("logged"))
        life = Incarnation(number=2, iterations=33, step=None)
        follow(run, life)
        monkeypatch.setattr(job_reader, "_logged", lambda *_: (1, 7))
        reader = JobReader(run, 1, "job-1")
        job = reader.read(CONFIG, 1, 1)
        assert (job.step, job.lost_step, job.lost_why) == (31, 32, HALF)
        assert job.lag_steps == 7 and job.lag_ms >= 0.0
        came = [one for one in job.timeline if one.arrived_ns]
        assert [one.step for one in came] == [*range(1, 8)]
        assert all(one.logged and one.applied_ns is None for one in came)
        health = job_health(job, (), sources_ended=False)
        assert health.word is HealthWord.STALE
        base = base_missing(job)
        assert health.reason == STAYS_BEFORE_LOST(step=31, lost_step=32, why=HALF, base=base)
        assert "--then LATER" in health.reason.remedy
        state = msgspec.structs.replace(StateReader(run.root).state(), jobs=(job,))
        told = {(name, value) for name, _, value in samples(state)}
        assert {("flowcheck_waits_at_lost_step", 1.0), ("flowcheck_lag_steps", 7)} <= told
        assert "logged, waits for a base" in shown(state)
        fresh = msgspec.structs.replace(job, step=None, lost_step=None)
        assert job_health(fresh, (), sources_ended=False).word is HealthWord.BEHIND, (
            "it has lost nothing"
        )
        again = msgspec.structs.replace(job, lost_step=None)
        assert job_health(again, (), sources_ended=False).reason.is_any_of(STAYS_FOR_BASE)
        monkeypatch.undo()
        change(run, msgspec.structs.replace(life, step=40))
        tell(EventKind.APPLIED, 41, seconds=0.1)
        on = reader.read(CONFIG, 1, 1)
        assert [one.step for one in on.timeline] == [41] and on.lost_step is None
    finally:
        run.remove()


def test_a_stage_that_is_being_started_again_is_behind_and_one_that_stays_away_is_stale() -> None:
    state = recorded()
    job = state.jobs[0]

    def without(name: str, gone_s: float, number: int = 1) -> Health:
        gone = [
            msgspec.structs.replace(one, pid=None, gone_s=gone_s) if one.name == name else one
            for one in state.stages
        ]
        return job_health(msgspec.structs.replace(job, number=number), gone, sources_ended=False)

    assert without("extract", 0.0).word is HealthWord.BEHIND
    assert without("extract", 0.0).reason == STAGES_RESTART(["extract"])
    assert without("extract", 60.0).word is HealthWord.STALE
    assert without("extract", 60.0, 2).word is HealthWord.EXACT, "of another job"
    assert without("parse-0", 60.0, 2).word is HealthWord.STALE, "its ports are shared"


def test_the_rate_of_steps_falls_to_none_once_none_is_taken(tmp_path: Path) -> None:
    for each_s, still_s, gone_s in ((0.01, 4.0, 6.0), (60.0, 170.0, 190.0)):
        path = tmp_path / f"{each_s}.jsonl"
        for step in range(1, 21):
            taken = Event(time_ns=int(step * each_s * 1e9), kind=EventKind.APPLIED, step=step)
            append_line(path, line_of(taken, {}), 1 << 20)
        history = StepHistory(path)
        history.update()
        last_s = 20 * each_s
        assert history.step_rate(int((last_s + still_s) * 1e9)) == pytest.approx(1 / each_s)
        assert history.step_rate(int((last_s + gone_s) * 1e9)) == 0.0


def test_a_step_that_is_told_as_taken_before_it_is_told_as_whole_keeps_both_times(
    tmp_path: Path,
) -> None:
    """The extractor and the updater write their lines each for itself."""
    path, begun = tmp_path / "events.jsonl", time.time_ns()
    told = [
        (EventKind.ARRIVED, 1, 0),
        (EventKind.APPLIED, 1, 5),
        (EventKind.APPLIED, 2, 9),
        (EventKind.ARRIVED, 2, 10),
    ]
    for kind, step, at_ms in told:
        event = Event(time_ns=begun + at_ms * 10**6, kind=kind, step=step)
        append_line(path, line_of(event, {}), 1 << 20)
    history = StepHistory(path)
    history.update()
    times = {
        one.step: [ns and (ns - begun) // 10**6 for ns in (one.arrived_ns, one.applied_ns)]
        for one in history.timeline
    }
    assert times == {1: [0, 5], 2: [10, 9]}
