"""A chain's state as others read it: off real files and memory, and never a failure."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.transport import parsed, write
from support.writes import frames, payload

from flowcheck.config import (
    JobConfig,
    JobTableConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
)
from flowcheck.findings.catalog.chain_health import (
    NO_CHAIN,
    REPLAY_SUPERVISOR_GONE,
    REPLAY_SUPERVISOR_GONE_NO_REPLICA,
    REPLAY_SUPERVISOR_GONE_NO_STEP,
    SUPERVISOR_HANGS,
)
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.watch.prometheus_metrics import metric_families
from flowcheck.ops.watch.state.chain_state import (
    ChainState,
    Health,
    HealthWord,
    decode_state,
    encode_state,
)
from flowcheck.ops.watch.state.jsonl_tail import JsonLinesTail
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.state.step_history import StepHistory
from flowcheck.stages.chain_events import event_log
from flowcheck.stages.chain_events.event_log import Event, EventKind, line_of, read_event
from flowcheck.stages.chain_events.heartbeat import Heartbeat, read_beat, write_beat
from flowcheck.stages.chain_events.lost_packets import missing_packets
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir

NEVER = earlier_finding("it never came")
WHY = earlier_finding('"\x1b[31m\n')
DATA = Path(__file__).resolve().parents[1] / "data" / "watch"
CONFIG = JobConfig(
    source=(SourceConfig(file="capture.pcap"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    ring=RingConfig(slots=64, slot_bytes=256),
    staging=StagingConfig(size_bytes=1 << 20),
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "x"]), st.just([])
)
NAMES = [*msgspec.structs.asdict(Event()), "type", "event", "sentence", "time"]
WORDS = st.one_of(VALUES, st.sampled_from([*EventKind, "Note", "Hello", "StepLost", "restart"]))
LINES = st.dictionaries(st.sampled_from(NAMES), WORDS).map(lambda told: json.dumps(told).encode())


@pytest.mark.parametrize("name", ["state.json", "state-lost.json"])
def test_the_recorded_states_are_of_this_version_and_read_whole(name: str) -> None:
    text = (DATA / name).read_bytes()
    state = decode_state(text)
    assert json.loads(encode_state(state)) == json.loads(text), "no field was left out or added"
    job = state.jobs[0]
    taken = [one for one in job.timeline if one.arrived_ns and one.applied_ns]
    assert len(taken) > 20
    assert all(one.arrived_ns < one.applied_ns for one in taken if one.arrived_ns)  # type: ignore[operator]
    assert any(one.durable_ns for one in job.timeline) and job.diagram[0].links


def test_nothing_there_is_a_state_that_says_so(tmp_path: Path) -> None:
    state = StateReader(tmp_path / "none").state()
    assert state.health == Health(word=HealthWord.STALE, reason=NO_CHAIN())
    assert (state.jobs, state.rings) == ((), ())


def test_whatever_of_a_run_is_torn_or_gone_is_named_and_the_rest_is_told(tmp_path: Path) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    try:
        write_beat(run.heartbeat_file, beat())
        assert StateReader(run.root).state().health.word is HealthWord.BEHIND
        run.ring(0).write_bytes(b"not a ring")
        state = StateReader(run.root).state()
        assert state.health.word is HealthWord.STALE
        assert any(one.arguments["what"] == "ring 0" for one in state.problems) and state.jobs
        for torn in (
            run.persisted,
            run.steps,
            run.unlearned,
            run.heartbeat_file,
            run.extract_record,
        ):
            torn.write_bytes(b'{"torn}')
        assert StateReader(run.root).state().health.word is HealthWord.STALE
        run.config.write_bytes(b"{")
        assert StateReader(run.root).state().problems
    finally:
        run.remove()
    assert StateReader(run.root).state().health.word is HealthWord.STALE


def test_a_supervisor_whose_heart_stands_still_is_told_from_one_that_lives(tmp_path: Path) -> None:
    run, _ = create_run(CONFIG, tmp_path / "run")
    try:
        reader = StateReader(run.root, cached_s=0.0)
        write_beat(run.heartbeat_file, beat())
        assert reader.state().health.word is HealthWord.BEHIND
        write_beat(run.heartbeat_file, beat(age_s=60.0))
        old = reader.state()
        assert old.health == Health(word=HealthWord.STALE, reason=SUPERVISOR_HANGS(60))
        write_beat(run.heartbeat_file, beat(age_s=-60.0))  # of before this machine was started anew
        assert reader.state().health.word is HealthWord.STALE
        (run.pids / "supervisor").write_text("999999 0")
        again = f"flowcheck replay FILE... --run {run.root} --out FOLDER"
        assert reader.state().health.reason == REPLAY_SUPERVISOR_GONE_NO_STEP(again)
        run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
        assert reader.state().health.reason == REPLAY_SUPERVISOR_GONE_NO_REPLICA(again)
        run.replica.touch()
        assert reader.state().health.reason == REPLAY_SUPERVISOR_GONE(again)
    finally:
        run.remove()


def beat(age_s: float = 0.0) -> Heartbeat:
    beat_ns = time.monotonic_ns() - int(age_s * 1e9)
    return Heartbeat(pid=os.getpid(), started_ns=time.time_ns(), beat_ns=beat_ns)


def test_many_readers_share_one_reading(tmp_path: Path) -> None:
    reader = StateReader(tmp_path, cached_s=60.0)
    assert reader.state() is reader.state()
    told: ChainState = reader.state()
    assert msgspec.structs.replace(told) == told


def test_lines_of_a_file_that_is_halved_moved_or_torn_come_once_each(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail, seen, written = JsonLinesTail(path), [], []
    assert tail.read_new_lines() == []
    for number in range(3000):
        line = json.dumps({"n": number, "x": "y" * (number % 90)}).encode()
        append_line(path, line, 20_000)
        written.append(line)
        if number % 37 == 0:
            seen += tail.read_new_lines()
    with path.open("ab") as file:
        file.write(b'{"torn')
    assert [*seen, *tail.read_new_lines()] == written
    path.rename(tmp_path / "previous")
    path.write_bytes(b'{"n": "another run"}\n')
    assert tail.read_new_lines() == [b'{"n": "another run"}']
    path.unlink()
    assert tail.read_new_lines() == []


def test_a_line_of_before_is_read_and_one_of_a_later_version_is_passed_over() -> None:
    old = b'{"time":17.5,"type":"StepApplied","step":3,"seconds":0.25,"digest":"ab"}'
    event = read_event(old)
    assert event is not None and (event.kind, event.step) == (EventKind.APPLIED, 3)
    assert event.time_ns == 17_500_000_000
    restart = read_event(b'{"time":1,"event":"restart","stage":"parse-0","exit_code":-9}')
    assert restart is not None and (restart.kind, restart.stage) == (EventKind.RESTART, "parse-0")
    for line in (b'{"kind":"of tomorrow"}', b"{", b"[]", b'{"step":"x"}', b"\xff", b""):
        assert read_event(line) is None


def test_every_kind_of_event_comes_back_from_its_line() -> None:
    for number, kind in enumerate(set(EventKind) - {EventKind.OTHER}):
        event = Event(time_ns=10**18 + number, kind=kind, step=number, why=WHY, count=2)
        assert read_event(line_of(event, {"type": "Note"})) == event
        assert b"\n" not in line_of(event, {})


def test_the_past_of_a_job_is_its_last_lifes_and_a_loss_is_of_its_own_step(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    history = StepHistory(path)

    def tell(kind: EventKind, step: int | None = None, time_ns: int = 1, **more: object) -> None:
        event = Event(time_ns=time_ns, kind=kind, step=step, **more)  # type: ignore[arg-type]
        append_line(path, line_of(event, {}), 1 << 20)
        history.update()

    for step in (1, 2):
        tell(EventKind.ARRIVED, step, 10 * step)
        tell(EventKind.APPLIED, step, 10 * step + 1, seconds=0.5)
    tell(EventKind.LOSS, 2, what=event_log.PACKETS, count=5)  # found once that step was over
    tell(EventKind.LOSS, what=event_log.PACKETS, count=9)  # of no step that is known
    tell(EventKind.HEAL, 2, what=event_log.PACKETS, count=3)
    tell(EventKind.SAVE, 2, 30)
    marks = {one.step: one for one in history.timeline}
    assert (marks[2].missing, marks[2].healed, marks[2].durable_ns) == (5, 3, 30)
    assert not marks[1].missing and 3 not in marks
    assert history.waits_since_ns(2) is None
    tell(EventKind.ARRIVED, 3, 40)
    assert history.waits_since_ns(2) == 40
    tell(EventKind.LOSS, 4, 50, what=event_log.STEP, why=NEVER)
    assert history.lost is not None and history.timeline[-1].lost == NEVER
    tell(EventKind.LOSS, 3, 55, what=event_log.BYTES, count=72)
    assert {one.step: one.tainted for one in history.timeline}[3]
    tell(EventKind.HANDOVER, 1, 60)
    tell(EventKind.ARRIVED, 2, 70)  # the job came back from step 1: another step 2
    again = {one.step: one for one in history.timeline}[2]
    assert (again.arrived_ns, again.applied_ns, again.durable_ns) == (70, None, None)
    tell(EventKind.START, None, 80)
    assert history.timeline == ()


def test_holes_between_packets_are_missing_and_a_burst_under_way_is_not(shm: Path) -> None:
    def folder(name: str) -> Path:
        (shm / name).mkdir()
        return shm / name

    packets = write(payload(256 * 100), psn=0)
    with parsed(folder("first"), frames([packets[0], packets[1], packets[4]])) as run:
        assert missing_packets(run.table) == 2, "what lies behind the newest is on its way"
    with parsed(folder("again"), frames([packets[n] for n in (0, 1, 4, 3, 2)])) as run:
        assert missing_packets(run.table) == 0
    with parsed(folder("many"), frames(packets[::2])) as run:
        assert missing_packets(run.table) == 49, "also those that found no place in the list"


def test_a_heart_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    write_beat(tmp_path / "none" / "beat.json", beat())
    assert read_beat(tmp_path / "none" / "beat.json") is None
    assert RunDir(tmp_path).heartbeat_file.name == "beat.json"


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=200), LINES))
def test_no_line_whatever_it_holds_ends_the_reading(line: bytes) -> None:
    event = read_event(line)
    assert event is None or read_event(line_of(event, {})) == event


def test_several_jobs_are_told_by_their_names_each_with_its_own_past(tmp_path: Path) -> None:
    two = (
        JobTableConfig(name="dense", hosts=("10.0.0.1",)),
        JobTableConfig(name="moe", hosts=("10.0.0.2",)),
    )
    run, _ = create_run(msgspec.structs.replace(CONFIG, job=two), tmp_path / "run")
    try:
        reader = StateReader(run.root, cached_s=0.0)
        for number, own in enumerate(all_run_dirs(run), 1):
            write_beat(own.heartbeat_file, msgspec.structs.replace(beat(), events={"save": number}))
            for step in range(1, 2 + number):
                told = Event(time_ns=step, kind=EventKind.ARRIVED, step=step, job=number)
                append_line(own.events, line_of(told, {}), 1 << 20)
        (all_run_dirs(run)[1].root / "steps.jsonl").write_text(
            '{"step":2,"digest":"d","seconds":0.1}\n'
        )
        state = reader.state()
        assert [job.name for job in state.jobs] == ["dense", "moe"]
        assert [job.arrived_step for job in state.jobs] == [2, 3]
        assert [job.step for job in state.jobs] == [None, 2]
        assert state.event_counts == {"save": 3}
        alone = StateReader(all_run_dirs(run)[1].root, cached_s=0.0).state()
        assert [(job.name, job.number, job.step) for job in alone.jobs] == [("moe", 2, 2)]
        assert {(one.job, one.name) for one in alone.stages} == {
            *((1, name) for name in ("supervisor", "parse-0", "capture-0")),
            *((2, name) for name in ("update", "extract")),
        }
        assert alone.event_counts == {"save": 2} and not alone.problems
        assert {(one.job, one.name) for one in state.stages} == {
            *((1, name) for name in ("supervisor", "update", "extract", "parse-0", "capture-0")),
            *((2, name) for name in ("update", "extract")),
        }
        labels = {s.labels["training_job"] for f in metric_families(state) for s in f.samples
                  if "training_job" in s.labels}  # fmt: skip
        assert labels == {"dense", "moe"} and not state.problems
    finally:
        run.remove()
