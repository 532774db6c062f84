"""The supervisor's decisions, with processes that are only said to live and die."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refused_as import like, refused_as
from support.supervised import STAGES, Bench, Clock, FakeProcess

from flowcheck.findings.catalog.chain_processes import (
    EXITED,
    KILLED,
    LOG_EMPTY,
    LOG_ENDS,
    MIXED_VERSIONS,
    NO_LINK_YET,
    STAGE_GAVE_UP,
    STAGE_KEEPS_DYING,
    STAGE_RESTARTED,
    STAGE_SAYS,
    STAGE_STOOD_STILL,
)
from flowcheck.findings.catalog.job_selection_reasons import NO_READING_YET
from flowcheck.findings.catalog.lost_steps import CAPTURE_ENDED, PACKETS_MISSING
from flowcheck.findings.finding import Finding
from flowcheck.findings.named_run import set_named_run
from flowcheck.messages import Drained, Fault, SourceEnded, StepApplied, StepLost
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor import process_progress, stage_process, supervisor


@pytest.fixture
def bench(tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    FakeProcess.started, FakeProcess.said = [], []
    clock = Clock()
    monkeypatch.setattr(stage_process.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(stage_process, "time", clock)
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(process_progress, "time", clock)
    run = RunDir.create(tmp_path / "run", shm)
    yield Bench(run, clock)
    run.remove()


def started() -> list[str]:
    return [p.stage for p in FakeProcess.started]


def test_what_takes_frames_is_up_before_any_can_come_and_no_updater_is_waited_for(
    bench: Bench,
) -> None:
    bench.supervisor.work()
    assert started() == STAGES[:5]
    bench.hello("extract", "parse-0", "parse-2")
    bench.supervisor.work()
    assert started() == STAGES[:5], "parse-1 has not said hello"
    bench.hello("parse-1")
    bench.supervisor.work()
    assert started() == STAGES and not bench.supervisor.all_up()


def test_every_stage_is_told_its_run_and_whose_child_it_is(bench: Bench) -> None:
    for process in FakeProcess.started:
        assert process.command[1:4] == ["-m", "flowcheck", "stage"]
        assert process.command[-4:-1] == ["--run", str(bench.run.root), "--parent"]


def test_a_stage_shares_no_sum_with_a_thread_unless_the_operator_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    bench.up()
    told = bench.process("extract").environment
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    bench.die("extract", -9)
    assert bench.process("extract").environment["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.undo()  # Popen is a real one again
    script = "import os, numpy; numpy.ones(1 << 16) @ numpy.ones(1 << 16); "
    script += "print(len(os.listdir('/proc/self/task')))"
    assert subprocess.check_output([sys.executable, "-c", script], env=told).strip() == b"1"


def test_a_stage_that_stands_still_before_its_hello_ends_the_wait_with_its_name(
    bench: Bench,
) -> None:
    bench.hello("update")
    bench.run.log("extract").write_text("loading\ncannot find the moon\n")
    bench.clock.now_s += stage_process.STILL_LIMIT_S + 1
    with refused_as(
        STAGE_STOOD_STILL, stage="extract", log=like(LOG_ENDS, line="cannot find the moon")
    ):
        bench.supervisor.work()


def test_a_stage_of_another_layout_is_refused(bench: Bench) -> None:
    with refused_as(MIXED_VERSIONS, stage="extract", version=99):
        bench.hello("extract", version=99)


@pytest.mark.parametrize(("code", "how"), [(-9, KILLED(9)), (1, EXITED(1))])
def test_a_dead_stage_is_started_again_and_that_is_said(
    bench: Bench, code: int, how: Finding
) -> None:
    bench.up()
    bench.die("parse-1", code)
    assert started() == [*STAGES, "parse-1"]
    (note,) = bench.supervisor.progress.notes
    assert note == STAGE_RESTARTED(stage="parse-1", ended=how)
    events = [json.loads(line) for line in bench.run.events.read_text().splitlines()]
    assert [e["stage"] for e in events if e["kind"] == "restart"] == ["parse-1"]


def test_a_stage_that_dies_again_and_again_without_getting_on_stops_the_chain(
    bench: Bench,
) -> None:
    bench.up()
    for _ in range(stage_process.FRUITLESS_MAX):
        bench.die("extract", -11)
    bench.run.log("extract").write_text("Traceback\nAssertionError: tail ran ahead\n")
    with refused_as(
        STAGE_KEEPS_DYING,
        stage="extract",
        deaths=9,
        ended=KILLED(11),
        log=like(LOG_ENDS, line=re.compile("Asser.* tail ran")),
    ) as found:
        bench.die("extract", -11)
    assert found.value.finding.arguments["ended"] == KILLED(11)


def log_of(text: str, *, as_json: bool) -> str:
    """The stderr of a command that is refused, as it stands in the log of a stage."""
    script = f"""
import sys
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_settings import FOLDER_IS_FILE
from flowcheck.ops.command_errors import exit_on_error
def fails(): raise ConfigError("checkpoint", {text!r}, FOLDER_IS_FILE({text!r}))
sys.argv = ["flowcheck", "stage"] + ["--json"] * {as_json}
exit_on_error(fails)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    return done.stderr


@pytest.fixture(scope="module")
def logs() -> dict[bool, str]:
    """Made before `bench` replaces Popen."""
    return {as_json: log_of("/x/job.pcap", as_json=as_json) for as_json in (False, True)}


@pytest.mark.parametrize("as_json", [False, True])
def test_of_a_stage_that_gave_up_the_error_is_told_and_not_its_remedy(
    as_json: bool, logs: dict[bool, str], bench: Bench
) -> None:
    bench.up()
    said = bench.run.log("extract")
    said.write_text("flowcheck: before\n" + logs[as_json])
    with refused_as(
        STAGE_GAVE_UP,
        stage="extract",
        log=like(LOG_ENDS, line=re.compile("checkpoint = '/x/job.pcap': must be a folder")),
    ):
        bench.die("extract", 2)


def test_a_stage_that_dies_without_a_word_has_a_remedy_that_names_the_run(bench: Bench) -> None:
    bench.up()
    set_named_run(bench.run.root)
    try:
        with refused_as(STAGE_KEEPS_DYING, log=like(LOG_EMPTY)) as found:
            for _ in range(stage_process.FRUITLESS_MAX + 1):
                bench.die("extract", -9)
        assert f"--run {bench.run.root}" in found.value.finding.remedy
    finally:
        set_named_run(None)


def test_a_stage_that_gets_on_between_its_deaths_is_always_started_again(bench: Bench) -> None:
    bench.up()
    for _ in range(3 * stage_process.FRUITLESS_MAX):
        bench.frame(0)
        bench.die("capture-0", -9)
    assert bench.supervisor.progress.restarts == 3 * stage_process.FRUITLESS_MAX


def test_deaths_far_apart_are_always_mended(bench: Bench) -> None:
    bench.up()
    for _ in range(3 * stage_process.FRUITLESS_MAX):
        bench.clock.now_s += stage_process.FRUITLESS_WITHIN_S / (stage_process.FRUITLESS_MAX - 1)
        bench.die("extract", -11)
    assert bench.supervisor.progress.restarts == 3 * stage_process.FRUITLESS_MAX


def test_what_only_the_operator_can_mend_is_not_tried_again(bench: Bench) -> None:
    bench.up()
    bench.links.inbox.waiting = [Fault(stage="capture-1", finding=NO_LINK_YET("port 3"))]
    with refused_as(STAGE_SAYS, stage="capture-1", what=NO_LINK_YET("port 3")):
        bench.die("capture-1", 2)
    assert started() == STAGES


def test_a_capture_that_reached_its_end_may_leave(bench: Bench) -> None:
    bench.up()
    bench.supervisor.on_message(SourceEnded(ring=0, frames=5))
    bench.die("capture-0", 0)
    assert started() == STAGES
    bench.die("capture-1", 0)
    assert started() == [*STAGES, "capture-1"], "the other one has not"


def test_the_chain_has_ended_when_the_shard_says_that_every_whole_step_is_taken(
    bench: Bench,
) -> None:
    bench.up()
    assert not bench.supervisor.drained()
    bench.supervisor.on_message(Drained(stage="extract", steps=2))
    with GradientShard.create(bench.run.shard, gradient_bytes=64) as shard:
        shard.apply(1)
        assert not bench.supervisor.drained()
        shard.apply(2)
        assert bench.supervisor.drained()


def test_a_stream_without_a_step_ends_too_once_its_updater_had_its_say(bench: Bench) -> None:
    bench.hello(*(stage for stage in STAGES if stage != "update"))
    bench.supervisor.on_message(Drained(stage="extract", steps=0, why=NO_READING_YET()))
    assert not bench.supervisor.drained(), "it may refuse what the job file states"
    bench.hello("update")
    assert bench.supervisor.drained()
    assert bench.supervisor.progress.why == NO_READING_YET()


def test_progress_remembers_the_first_loss_and_the_furthest_step(bench: Bench) -> None:
    hear = bench.supervisor.on_message
    hear(StepApplied(step=2, seconds=0.1, digest="b"))
    hear(StepApplied(step=1, seconds=0.1, digest="a"))
    hear(StepLost(step=3, missing=((0, 4),)))
    hear(StepLost(step=4, missing=((8, 9),)))
    progress = bench.supervisor.progress
    assert progress.steps == 2
    assert progress.lost is not None and progress.lost.step == 3


def test_a_step_that_was_not_whole_when_the_chain_was_told_to_end_is_no_loss(
    bench: Bench,
) -> None:
    bench.up()
    lost = StepLost(step=7, missing=((0, 4),), why=CAPTURE_ENDED())
    bench.process("capture-0").terminate = lambda: bench.links.inbox.waiting.append(lost)  # type: ignore[method-assign]
    bench.supervisor.stop()
    assert bench.supervisor.progress.lost is None
    assert bench.supervisor.progress.in_flight == lost


def test_a_loss_that_was_told_before_the_chain_was_told_to_end_is_one(bench: Bench) -> None:
    bench.up()
    lost = StepLost(step=7, missing=((0, 4),), why=PACKETS_MISSING())
    bench.links.inbox.waiting = [lost]
    bench.supervisor.stop()
    assert bench.supervisor.progress.lost == lost
    assert bench.supervisor.progress.in_flight is None


def test_stopping_ends_capture_first_and_lets_the_rest_work_off_what_there_is(
    bench: Bench,
) -> None:
    bench.up()
    bench.links.inbox.waiting = [Drained(stage="extract", steps=0)]
    began_s = bench.clock.now_s
    bench.supervisor.stop()
    assert [stage for _, stage in FakeProcess.said] == ["capture-0", "capture-1", *STAGES[4::-1]]
    assert {said for said, _ in FakeProcess.said} == {"terminate"}
    assert bench.clock.now_s - began_s < 0.1, "it had nothing to wait for"


def test_stopping_tells_the_rings_that_nothing_more_comes(bench: Bench) -> None:
    bench.frame(1)
    bench.up()
    bench.supervisor.stop()
    assert [ring.source_end for ring in bench.rings] == [0, 1, 0]


def test_stopping_waits_for_what_is_in_hand_but_not_for_ever(bench: Bench) -> None:
    bench.up()
    began_s = bench.clock.now_s
    bench.supervisor.stop()
    assert supervisor.GRACE_S / 2 <= bench.clock.now_s - began_s < 5.0


def test_a_stage_that_does_not_leave_is_killed_within_five_seconds(bench: Bench) -> None:
    bench.up()
    bench.process("update").obeys = False
    began_s = bench.clock.now_s
    bench.supervisor.stop()
    assert FakeProcess.said[-1] == ("kill", "update")
    assert bench.clock.now_s - began_s < 5.0


def test_a_second_signal_does_not_wait(bench: Bench) -> None:
    bench.up()
    for process in FakeProcess.started:
        process.obeys = False
    bench.hurry = True
    began_s = bench.clock.now_s
    bench.supervisor.stop()
    assert bench.clock.now_s - began_s < 0.1
    assert {stage for said, stage in FakeProcess.said if said == "kill"} == set(STAGES)
