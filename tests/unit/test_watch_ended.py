"""What is told of a chain that has ended, off the files it left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import pytest

from flowcheck._core import lib
from flowcheck.config import JobConfig, OptimizerConfig, RingConfig, SourceConfig, StagingConfig
from flowcheck.errors import LearnError
from flowcheck.findings.catalog.chain_health import NEVER_AUDITED, NO_CHAIN, READ_FAILED
from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE, earlier_finding
from flowcheck.findings.catalog.how_chains_end import (
    ASKED_BY,
    ENDED,
    FOUND_KILLED,
    KILLED,
    LOST_AND_STAYS,
    NO_FRAME,
    NO_JOB_LEARNED,
    SIGNAL_INT,
    SIGNAL_TERM,
)
from flowcheck.findings.catalog.refused_files import RECORD_REFUSED
from flowcheck.findings.finding import Finding
from flowcheck.ops.lifecycle import shutdown_cleanup, status_command
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.shutdown_record_writer import (
    record_end,
    record_stop_request,
    stopped_by,
)
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.ops.watch.prometheus_metrics import samples
from flowcheck.ops.watch.state.chain_state import ChainState, EndKind, HealthWord, JobEnd
from flowcheck.ops.watch.state.health_rules import HEALTHY
from flowcheck.ops.watch.state.shutdown_record import read_end
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.ops.watch.terminal_tables import last_frame
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.chain_events.event_log import FRAMES, Event, EventKind, line_of
from flowcheck.stages.chain_events.heartbeat import Heartbeat, write_beat
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.run_dir import RunDir

CONFIG = JobConfig(
    source=(SourceConfig(file="capture.pcap"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    ring=RingConfig(slots=64, slot_bytes=256),
    staging=StagingConfig(size_bytes=1 << 20),
)
DIED_S = 1_700_000_000


def made(folder: Path) -> RunDir:
    """A chain that took five steps of 41 frames, and dropped seven."""
    run, _ = create_run(CONFIG, folder)
    with FrameRing.open(run.ring(0)) as ring:
        commit = ring.capture_commit()
        commit.counters.rx_frames, commit.counters.ring_full_frames = 41, 7
        lib.fc_ring_publish(ring.handle, 0, commit)
    run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
    restarts = {"parse-0": 2, "extract": 0}
    beat = Heartbeat(
        pid=1, started_ns=1, beat_ns=time.monotonic_ns(), restarts=restarts, steps_lost=1
    )
    write_beat(run.heartbeat_file, beat)
    for number, kind in enumerate(
        (EventKind.ARRIVED, EventKind.APPLIED, EventKind.LOSS, EventKind.STOP)
    ):
        told = Event(time_ns=10**18 + number, kind=kind, step=5, count=12, what=FRAMES)
        append_line(run.events, line_of(told, {}), 1 << 20)
    return run


def over(state: ChainState) -> float:
    return {name: value for name, _, value in samples(state)}["flowcheck_over"]


def test_what_a_chain_was_is_told_after_its_end_also_to_who_comes_later(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    stayed = StateReader(run.root, cached_s=0.0)
    assert over(stayed.state()) == 0
    came_to = JobEnd(
        step=5,
        why=LOST_AND_STAYS(step=6, replica_step=5),
        in_flight=7,
        checkpoint="/kept/step-5",
    )
    record_end(run, EndKind.ASKED, SIGNAL_INT(), [came_to], 10**18)
    run.remove(keep_records=True)
    for reader in (stayed, StateReader(run.root, cached_s=0.0)):
        state = reader.state()
        assert state.health.word is HealthWord.ENDED and over(state) == 1
        assert state.health.reason == ENDED(
            run=run.root, time="2001-09-09 01:46:40 UTC", by=SIGNAL_INT()
        )
        assert [(job.step, job.digest) for job in state.jobs] == [(5, "d")]
        assert [(one.kind, one.count) for one in state.events] == [
            (EventKind.LOSS, 12),
            (EventKind.STOP, 12),
        ]
        assert not state.problems and state.jobs[0].timeline[-1].step == 5
        assert [ring.lost["ring_full_frames"] for ring in state.rings] == [7]
        assert state.ended is not None and state.ended.jobs == (came_to,)
        waits = {"flowcheck_lag_steps", "flowcheck_ring_slots", "flowcheck_waits_at_lost_step"}
        assert not waits & {name for name, _, _ in samples(state)}, "nothing waits any more"


def test_status_says_who_ended_it_what_it_came_to_and_what_is_next_and_of_the_run_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run")
    record_stop_request(run)
    asked = stopped_by(run, signal.SIGTERM)
    assert asked.is_any_of(ASKED_BY)
    assert (asked.arguments["command"], asked.arguments["pid"]) == ("flowcheck down", os.getpid())
    run.stop_request.write_text(
        "flowcheck down (process 7, user root)"
    )  # as FlowCheck 0.1 wrote it
    assert stopped_by(run, signal.SIGTERM) == EARLIER_SENTENCE(run.stop_request.read_text())
    why = earlier_finding("extract: no room")
    record_end(run, EndKind.FAILED, why, [JobEnd(step=5, checkpoint="/kept/step-5")], 10**18)
    run.remove(keep_records=True)
    assert stopped_by(run, signal.SIGTERM) == SIGNAL_TERM(), "the note goes with the chain"
    assert status_command.run(run.root, as_json=False) == 1
    said = " ".join(capsys.readouterr().out.split())
    for told in (
        "gave up at 2001-09-09 01:46:40 UTC: extract: no room",
        "replica at step 5, digest d",
        "1 step was lost",
        "parse-0 2 times",
        "flowcheck restore --checkpoint /kept/step-5",
        "--run " + str(run.root),
    ):
        assert told in said, told
    assert "previous" not in said
    create_run(CONFIG, run.root)[0].remove(keep_records=True)
    assert status_command.run(run.root, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["ended"] is None, "nobody told of this one"
    assert status_command.run(run.root, previous=True, as_json=True) == 1
    before = json.loads(capsys.readouterr().out)
    assert (before["ended"]["how"], before["jobs"][0]["step"]) == ("failed", 5)
    assert before["ended"]["restarts"] == {"parse-0": 2, "extract": 0}


def test_status_says_what_to_do_under_each_finding_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run")
    run.unlearned.write_bytes(msgspec.json.encode([NO_FRAME(), NO_JOB_LEARNED(7)]))
    record_end(run, EndKind.ASKED, SIGNAL_INT(), [JobEnd(step=5, why=NO_FRAME())], 10**18)
    run.remove(keep_records=True)
    assert status_command.run(run.root, as_json=False) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for finding in (NO_FRAME(), NEVER_AUDITED(run.root), NO_JOB_LEARNED(7)):
        assert lines.count(finding.remedy) == 1
        assert lines[lines.index(finding.remedy) - 1] == str(finding)
    assert not [line for line in lines if line in {"", "None"}]


def test_what_was_written_at_the_end_is_durable_and_the_last_frame_is_told_from_the_end(
    tmp_path: Path,
) -> None:
    run = made(tmp_path / "run")
    place = tmp_path / "kept" / "step-5"
    place.mkdir(parents=True)
    os.utime(place, ns=(10**18, 10**18))
    now_ns = time.monotonic_ns()
    beat = Heartbeat(pid=1, started_ns=1, beat_ns=now_ns, frame_ns=(now_ns - 7 * 10**9,))
    write_beat(run.heartbeat_file, beat)
    record_end(run, EndKind.ASKED, SIGNAL_INT(), [JobEnd(step=5, checkpoint=str(place))])
    run.remove(keep_records=True)
    state = StateReader(run.root, cached_s=0.0).state()
    kept = state.jobs[0].durable
    assert kept is not None
    assert (kept.step, kept.target, kept.name) == (5, str(place.parent), "step-5")
    assert state.jobs[0].timeline[-1].durable_ns == kept.time_ns == 10**18
    assert (state.rings[0].frame_age_s or 0.0) >= 7
    assert last_frame(state, state.rings[0]).endswith("s before the end")
    unknown = msgspec.structs.replace(state.rings[0], frame_age_s=None, head=1)
    assert last_frame(state, unknown) == "-"
    place.rmdir()
    assert StateReader(run.root, cached_s=0.0).state().jobs[0].durable is None, "it is gone"


def test_who_found_a_killed_chain_is_told_and_when_it_last_lived(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    (run.pids / "supervisor").write_text("999999 0")
    os.utime(run.heartbeat_file, (DIED_S, DIED_S))
    assert StateReader(run.root).state().ended is None, "nobody has found it yet"
    assert shutdown_cleanup.down(run.root, discard=False, as_json=True) == 0
    end = read_end(run)
    assert end is not None and (end.how, end.time_ns) == (EndKind.KILLED, DIED_S * 10**9)
    assert end.by.is_any_of(FOUND_KILLED) and end.jobs[0].step == 5
    assert "flowcheck down (process" in str(end.by)
    state = StateReader(run.root).state()
    assert state.health.reason == KILLED(run=run.root, time="2023-11-14 22:13:20 UTC", by=end.by)
    assert over(state) == 0 and state.health.word not in HEALTHY


def test_a_run_directory_that_goes_while_it_is_read_is_a_state_that_says_so(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    reader = StateReader(run.root, cached_s=0.0)
    memory = run.memory
    try:
        assert reader.state().jobs
        shutil.rmtree(run.root)
        assert reader.state().health.reason == NO_CHAIN()
        run.root.write_text("a file")
        assert reader.state().health.word is HealthWord.STALE
    finally:
        shutil.rmtree(memory)


def test_a_record_of_an_end_that_is_torn_is_told_as_that(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    run.remove(keep_records=True)
    run.ended.write_bytes(b'{"how":"tomorrow')
    state = StateReader(run.root).state()
    assert state.ended is None
    assert any(
        one.is_any_of(READ_FAILED)
        and one.arguments["what"] == "the record of its end"
        and one.arguments["part"] == "end_record"
        for one in state.problems
    )
    assert msgspec.json.decode(msgspec.json.encode(state), type=ChainState) == state


def test_a_learned_job_that_is_torn_is_told_with_what_helps(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    run.remove(keep_records=True)
    run.learned_job.write_bytes(b'{"format":3')
    (problem,) = StateReader(run.root).state().problems
    told = problem.arguments["error"]
    assert (
        problem.is_any_of(READ_FAILED)
        and isinstance(told, Finding)
        and told.is_any_of(RECORD_REFUSED)
    )
    assert told.arguments["path"] == str(run.learned_job)
    assert problem.remedy == told.remedy == RECORD_REFUSED(path="", why=NO_FRAME()).remedy
    run.trace.touch()
    for fails in (
        lambda: audit_command.run(run.root, tmp_path / "any.pt", as_json=True),
        lambda: status_command.run(run.root, svg=tmp_path / "x.svg", as_json=True),
    ):
        with pytest.raises(LearnError) as refused:
            fails()
        assert refused.value.finding == told


def test_a_record_that_an_earlier_version_wrote_is_read_with_its_sentences(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    run.remove(keep_records=True)
    jobs = [{"step": 5, "why": "step 6 was lost"}, {"step": 7, "why": ""}]
    record = {"how": "asked", "by": "Ctrl-C, or a SIGINT", "time_ns": 10**18, "jobs": jobs}
    run.ended.write_text(json.dumps(record))
    end = read_end(run)
    assert end is not None and end.by == EARLIER_SENTENCE("Ctrl-C, or a SIGINT")
    assert [one.why for one in end.jobs] == [EARLIER_SENTENCE("step 6 was lost"), None]
    assert "Ctrl-C, or a SIGINT" in str(StateReader(run.root).state().health.reason)
    for other in (b"[]", b'{"how": "asked", "jobs": [7]}', b'{"jobs": 5}'):
        run.ended.write_bytes(other)
        assert StateReader(run.root).state().problems, other
