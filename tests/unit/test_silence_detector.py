"""A job of which nothing arrives, by counters of frames that were parsed and placed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from support.extraction import SIMPLE, Bench, bench, packets_of, plan_of
from test_step_loss_packets import FIRST, SIZES, sends
from test_watch_server import recorded

from flowcheck.findings.catalog.chain_health import (
    EXACT,
    PACKETS_MISSING,
    QUIET,
    SILENT,
    STEPS_TOOK,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.watch.state.chain_state import Health, HealthWord, StepState, TrafficArrival
from flowcheck.ops.watch.state.health_rules import job_health
from flowcheck.ops.watch.state.traffic_silence import with_arrival
from flowcheck.stages.chain_events.heartbeat import Heartbeat
from flowcheck.stages.chain_events.silence_detector import (
    SILENCE_LEAST_S,
    SILENCE_WITHOUT_STEP_TIME_S,
    SilenceChange,
    SilenceDetector,
)

S = 10**9
PACKETS = packets_of(sends(SIMPLE))
ASIDE = b"\xff" * 6 + bytes(6) + b"\x88\xcc" + bytes(50)
"""A frame that is none of the job's: LLDP."""


def planned(one: Bench) -> None:
    one.run(PACKETS[:8])
    own = sends(SIMPLE)
    assert one.extractor.install_plan(plan_of(own[:FIRST], each=own[FIRST : FIRST + len(SIZES)]))


def test_a_job_is_silent_after_ten_of_its_steps_and_speaks_with_its_next_packet(
    shm: Path,
) -> None:
    with bench(shm) as one:
        silence = SilenceDetector(0)
        one.feed(packet.frame for packet in PACKETS[:8])
        silence.learned()
        assert silence.check([one.ring], counts=True, now_ns=S // 2) is None
        for step in range(9):
            silence.step_completed(S // 2 + step)  # they came before the job was learned
        assert silence.limit_s == SILENCE_WITHOUT_STEP_TIME_S
        planned(one)
        assert silence.check([one.ring], counts=True, now_ns=1 * S) is None
        assert silence.limit_s == SILENCE_WITHOUT_STEP_TIME_S
        for step in range(5):
            silence.step_completed(step * 6 * S)
        silence.step_completed(1000 * S)  # a pause between two: the median stays
        assert (silence.step_s, silence.limit_s) == (6.0, 60.0)
        one.run(PACKETS[8:12])
        assert silence.check([one.ring], counts=True, now_ns=100 * S) is None
        assert silence.check([one.ring], counts=True, now_ns=159 * S) is None
        one.feed([ASIDE])
        one.run([])
        assert silence.check([one.ring], counts=True, now_ns=161 * S) is SilenceChange.BEGAN
        assert (silence.frame_ns, silence.last_packet_ns) == ([161 * S], 100 * S), (
            "a frame, not of it"
        )
        assert silence.check([one.ring], counts=True, now_ns=170 * S) is None
        assert silence.lasted_s == 70.0
        one.run(PACKETS[12:13])
        assert silence.check([one.ring], counts=True, now_ns=171 * S) is SilenceChange.ENDED


def test_quick_steps_are_given_half_a_minute_and_an_extractor_that_stands_is_no_silence(
    shm: Path,
) -> None:
    with bench(shm) as one:
        silence = SilenceDetector(0)
        planned(one)
        assert silence.check([one.ring], counts=True, now_ns=1 * S) is None
        for step in range(5):
            silence.step_completed(2 * S + step * S // 100)
        assert silence.limit_s == SILENCE_LEAST_S
        one.feed(packet.frame for packet in PACKETS[8:12])
        assert silence.check([one.ring], counts=True, now_ns=40 * S) is None, "they wait"
        assert silence.check([one.ring], counts=True, now_ns=80 * S) is None
        one.run([])
        assert silence.check([one.ring], counts=True, now_ns=81 * S) is None
        assert silence.check([one.ring], counts=False, now_ns=300 * S) is None, "the sources ended"
        assert silence.check([one.ring], counts=True, now_ns=301 * S) is SilenceChange.BEGAN


def test_frames_of_no_plan_are_a_later_life_and_no_silence(shm: Path) -> None:
    with bench(shm) as one:
        silence = SilenceDetector(0)
        silence.check([one.ring], counts=True, now_ns=1 * S)
        one.run(PACKETS[:8])  # before any plan: they are staged
        silence.check([one.ring], counts=True, now_ns=9 * S)
        assert (silence.last_packet_ns, silence.unplaced_s) == (9 * S, 9.0)


def health(**arrival: Any) -> Health:
    state = recorded()
    own = {
        "age_s": 0.5,
        "limit_s": 30.0,
        "step_s": 0.4,
        "newest_step": None,
        "unplaced_s": 0.0,
    } | arrival
    job = msgspec.structs.replace(state.jobs[0], arrival=TrafficArrival(**own))
    return job_health(job, state.stages, sources_ended=False)


def test_silence_is_stale_says_both_causes_and_what_held_before() -> None:
    assert health().word is health(age_s=29.0, step_s=None).word is HealthWord.EXACT
    assert health(age_s=29.0, step_s=10.0).word is HealthWord.EXACT, "a step of it takes so long"
    paused = health(age_s=9.0)
    assert paused.word is HealthWord.BEHIND and paused.reason.is_any_of(QUIET)
    assert paused.reason.arguments["seconds"] == 9
    silent = health(age_s=47.0)
    assert silent.word is HealthWord.STALE and silent.reason.is_any_of(SILENT)
    told = silent.reason.arguments
    before = told["reason"]
    assert (told["seconds"], told["pace"], told["word"]) == (47, STEPS_TOOK(0.4), "exact")
    assert isinstance(before, Finding) and before.is_any_of(EXACT)
    for said in (
        "nothing of the job arrived for 47 s",
        "ended",
        "mirror",
        "was exact: the replica",
    ):
        assert said in str(silent.reason)
    assert health(age_s=2.0, unplaced_s=7.0).word is HealthWord.BEHIND


def test_a_step_that_lacks_packets_is_behind_before_it_is_given_up() -> None:
    state = recorded()
    job = state.jobs[0]
    assert job.step is not None
    holed = StepState(step=job.step + 1, missing=10_250, healed=250)
    now = time.monotonic_ns()
    beat = Heartbeat(pid=1, started_ns=1, beat_ns=now, came_ns=now, newest_step=job.step + 6)
    beat = msgspec.structs.replace(beat, silence_limit_s=30.0)
    lacks = with_arrival(msgspec.structs.replace(job, timeline=(*job.timeline, holed)), beat)
    assert lacks.lag_steps == 5
    found = job_health(lacks, state.stages, sources_ended=False)
    assert found.word is HealthWord.BEHIND
    assert found.reason == PACKETS_MISSING(
        packets=10_000, step=job.step + 1, replica_step=job.step, lag=5
    )
    healed = msgspec.structs.replace(holed, healed=10_250)
    came = msgspec.structs.replace(lacks, timeline=(healed,))
    assert job_health(came, state.stages, sources_ended=False).word is HealthWord.EXACT
