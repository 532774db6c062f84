"""The table of stages: its rows, the names they stand for, and that nothing else knows one."""

from __future__ import annotations

import ast
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refused_as import refused_as
from support.supervised import CONFIG, STAGES, Bench, Clock, FakeProcess
from support.tally_stage import ROW, with_row

from flowcheck.config import (
    GradientsConfig,
    JobConfig,
    OptimizerConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
    job_from,
)
from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.chain_health import NO_FRAME_YET, STAGES_RESTART, STAGES_TO_START
from flowcheck.findings.catalog.chain_processes import (
    KILLED,
    NUMBER_UNKNOWN,
    STAGE_KEEPS_DYING,
    STAGE_RESTARTED,
    STAGE_UNKNOWN,
    STARTED_BY,
)
from flowcheck.findings.catalog.starting_a_chain import CAPTURES
from flowcheck.findings.finding import Finding
from flowcheck.messages import Drained
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.progress_messages import LiveMessages
from flowcheck.ops.lifecycle.status_command import print_state
from flowcheck.ops.watch.prometheus_metrics import metrics_text
from flowcheck.ops.watch.state.chain_state import ChainState, HealthWord
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages import stage_table
from flowcheck.stages.chain_events.heartbeat import Heartbeat, write_beat
from flowcheck.stages.privilege import capture_starter_client
from flowcheck.stages.privilege.capture_starter import SOURCES_VARIABLE, stated_sources
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import (
    SUPERVISOR,
    InstancePer,
    Position,
    StageSpec,
    WaitsFor,
    stage_at,
    stage_named,
    stage_names,
)
from flowcheck.stages.supervisor import process_progress, stage_main, stage_process, supervisor
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.stages.supervisor.stage_process import StageProcess

PACKAGE = Path(stage_table.__file__).resolve().parents[1]
KNOWS_NO_STAGE = (
    "stages/supervisor",
    "stages/run_directory",
    "stages/chain_events",
    "stages/privilege",
    "ops/job_setup",
    "ops/watch",
    "ops/lifecycle",
    "ops/trainer_checkpoint",
)
OTHER_MEANINGS = {
    # Tables of the job file, for a sentence of what is wrong with one:
    "ops/job_setup/checked_job_file.py": {"watch": 1, "serve": 1},
    "ops/watch/monitoring_server.py": {"watch": 1},
    # Counters that lie in a ring's header, by who writes them:
    "ops/lifecycle/run_outcome.py": {"capture": 1},
    "ops/lifecycle/replay_result.py": {"capture": 1},
    "ops/watch/state/ring_reader.py": {"capture": 1, "parse": 1, "extract": 1},
    "stages/chain_events/event_recorder.py": {"capture": 1, "parse": 1},
    # A heading:
    "ops/watch/terminal_tables.py": {"update": 1},
    # A kind of event:
    "stages/chain_events/event_log.py": {"audit": 1},
    # A folder below the run directory:
    "stages/run_directory/run_dir.py": {"persist": 1},
}
"""{file: {what stands there: how often}}"""


def names_in(source: str) -> Counter[str]:
    """Strings in a program that are names of stages or begin one, docstrings left out."""
    tree = ast.parse(source)
    sentences = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    kinds = "|".join(spec.name for spec in (*stage_table.STAGES, SUPERVISOR))
    name = re.compile(rf"({kinds})(-\d*)?")
    return Counter(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in sentences and name.fullmatch(node.value)
    )


def test_no_stage_is_known_by_name_but_in_the_table() -> None:
    found = {
        str(path.relative_to(PACKAGE)): names
        for room in KNOWS_NO_STAGE
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (names := names_in(path.read_text()))
    }
    assert found == OTHER_MEANINGS


@pytest.mark.parametrize(
    "line",
    [
        'if child.stage == "update": pass',
        'ended = stage.startswith("capture")',
        'name = f"parse-{ring}"',
        'OPTIONAL = ("persist",)',
        'first = "capture-0"',
        'match message:\n    case Drained(stage="extract"): pass',
        '{"supervisor": 1}',
    ],
)
def test_a_name_that_is_written_out_is_found(line: str) -> None:
    assert names_in(f'"""update"""\n{line}\n').total() == 1


def test_rows_are_whole() -> None:
    rows = stage_table.STAGES
    assert len({spec.name for spec in rows} | {SUPERVISOR.name}) == len(rows) + 1
    for spec in rows:
        assert re.fullmatch("[a-z]+", spec.name), "a number is told from it by a dash"
        assert bool(spec.factory) != bool(spec.verb), spec.name
        assert not (spec.brings_frames and spec.takes_frames)
        assert not (spec.takes_frames and spec.waits_for is WaitsFor.FRAME_TAKERS), "of itself"
        assert spec.says_hello or not spec.takes_frames, "it is waited for"
        if spec.factory:
            module, _, factory = spec.factory.partition(":")
            assert callable(getattr(import_module(module), factory))
    for position in set(Position) - {Position.NONE}:
        assert [spec for spec in rows if spec.position is position] == [stage_at(position)]


def test_the_page_of_stages_has_each_of_them_in_the_order_of_their_start() -> None:
    page = (PACKAGE / "stages/README.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (\w+)", page, re.MULTILINE)[: len(stage_table.STAGES)]
    assert told == [(spec.name, spec.per) for spec in stage_table.STAGES]
    explained = page[page.index("What the row says") : page.index("Rights are no")]
    described = {*re.findall(r"`(\w+)`", explained)} & {*StageSpec.__dataclass_fields__}
    assert described == {*StageSpec.__dataclass_fields__} - {"name", "factory", "verb"}


def test_names_are_those_that_files_of_every_run_have() -> None:
    assert stage_names(CONFIG) == STAGES
    stated = {
        "source": [{"file": "a"}],
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "persist": {"target": "/x", "every_steps": 1},
        "serve": {"port": 0},
        "watch": {"listen": "127.0.0.1:0"},
        "audit": {"folder": "/x"},
        "hook": {"address": "127.0.0.1:9470", "token_file": "/x"},
    }
    full = job_from(stated)
    first = ["update", "extract", "persist", "serve", "watch", "audit", "hook"]
    first += ["parse-0", "capture-0"]
    assert stage_names(full) == first
    assert stage_names(full, 1) == ["update", "extract", "persist", "serve", "hook"]
    assert [stage_named(name).spec.instance(stage_named(name).number) for name in first] == first


def test_a_name_says_its_row_and_its_number() -> None:
    assert stage_named("parse-12")[1] == 12
    assert [stage_named(name).spec.name for name in ("parse-12", "parse", "update")] == [
        "parse", "parse", "update",
    ]  # fmt: skip
    assert stage_named("supervisor").spec is SUPERVISOR


@given(st.text() | st.sampled_from(["update-1", "parse-", "parse--1", "parse-x", "-", "parse-²"]))
def test_of_a_name_that_no_row_has_nothing_is_taken_for_granted(name: str) -> None:
    spec, number = stage_named(name)
    if spec not in (*stage_table.STAGES, SUPERVISOR):
        assert (spec.name, number) == (name, 0)
        assert not (spec.optional or spec.shared or spec.brings_frames or spec.factory)


def test_only_what_has_a_service_is_run_as_a_stage(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name in ("moon", "watch", "supervisor", "persist", "parse-0"):
        with refused_as(
            STAGE_UNKNOWN,
            kind=ConfigError,
            stages=("update", "extract", "persist", "serve", "copies", "hook", "parse", "capture"),
        ):
            stage_main._service(name, run, CONFIG, 0)
    for name, count, per in (("capture", 2, "source"), ("parse", 3, "ring")):
        for number in (-1, 3):
            with refused_as(NUMBER_UNKNOWN, kind=ConfigError, count=count, per=per):
                stage_main._service(name, run, CONFIG, number)
    assert stage_main._service("parse", run, CONFIG, 2).name == "parse-2"
    assert stage_main._service("capture", run, CONFIG, 1).name == "capture-1"


def test_rights_are_given_to_captures_alone_whatever_the_table_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_table, "STAGES", with_row(replace(ROW, brings_frames=True)))
    monkeypatch.setattr(capture_starter_client, "_inherited", [object()])
    monkeypatch.setenv(SOURCES_VARIABLE, "[]")
    asked = {name: capture_starter_client.capture_starter(name) for name in ("tally", "capture")}
    assert asked["tally"] is None and asked["capture"] is not None
    assert (stated_sources("tally"), stated_sources("capture")) == (None, "[]")


@pytest.fixture
def bench(tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A supervisor of a chain with one more kind of stage."""
    FakeProcess.started, FakeProcess.said = [], []
    clock = Clock()
    monkeypatch.setattr(stage_table, "STAGES", with_row())
    monkeypatch.setattr(stage_process.subprocess, "Popen", FakeProcess)
    for module in (stage_process, supervisor, process_progress):
        monkeypatch.setattr(module, "time", clock)
    run = RunDir.create(tmp_path / "run", shm)
    yield Bench(run, clock)
    run.remove()


TALLIES = ["tally-0", "tally-1", "tally-2"]


def started() -> list[str]:
    return [process.stage for process in FakeProcess.started]


def test_a_further_stage_is_waited_for_restarted_and_stopped_like_any_other(bench: Bench) -> None:
    assert started() == [*STAGES[:5], *TALLIES]
    bench.hello(*STAGES[:5], *TALLIES[:2])
    bench.supervisor.work()
    assert started() == [*STAGES[:5], *TALLIES], "tally-2 takes frames and is not up"
    bench.hello("tally-2")
    bench.supervisor.work()
    assert started() == [*STAGES[:5], *TALLIES, *STAGES[5:]]
    bench.supervisor.on_message(Drained(stage="tally-0", steps=7, why=STARTED_BY(1)))
    assert bench.supervisor.progress.complete_steps is None
    bench.hello(*STAGES[5:])
    bench.die("tally-1", -9)
    assert STAGE_RESTARTED(stage="tally-1", ended=KILLED(9)) in bench.supervisor.progress.notes
    assert started()[-1] == "tally-1"
    bench.supervisor.stop()
    said = [stage for _, stage in FakeProcess.said]
    assert said == [*STAGES[5:], *TALLIES[::-1], *STAGES[4::-1]]


def test_a_further_stage_that_never_gets_on_ends_the_chain_and_one_that_does_never(
    bench: Bench,
) -> None:
    bench.hello(*STAGES[:5], *TALLIES)
    bench.supervisor.work()
    bench.hello(*STAGES[5:])
    for parsed in range(3 * stage_process.FRUITLESS_MAX):
        bench.frame(0)
        bench.rings[0].handle.header.parsed = parsed + 1
        bench.die("tally-0", -11)
    for _ in range(stage_process.FRUITLESS_MAX - 1):
        bench.die("tally-0", -11)
    with refused_as(STAGE_KEEPS_DYING, stage="tally-0", deaths=9):
        bench.die("tally-0", -11)


def test_a_stage_that_says_no_hello_is_up_from_its_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = replace(ROW, says_hello=False, takes_frames=False)
    monkeypatch.setattr(stage_table, "STAGES", (*stage_table.STAGES[:-2], silent))
    child = StageProcess("tally-0")
    assert not child.is_up
    child.spawn(bench.run)
    bench.clock.now_s += stage_process.HELLO_LIMIT_S
    child.check_start(bench.run)
    assert child.is_up and stage_process.all_up([child])


def test_what_waits_for_the_whole_chain_waits_for_nobody_who_waits_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = replace(ROW, takes_frames=False, waits_for=WaitsFor.WHOLE_CHAIN)
    monkeypatch.setattr(stage_table, "STAGES", with_row(last))
    everyone = [StageProcess(name) for name in stage_names(CONFIG)]
    tallies = [child for child in everyone if child.stage in TALLIES]
    assert len(tallies) == 3 and not any(child.may_start(everyone) for child in tallies)
    for child in everyone:
        child.greeted = child not in tallies
    assert all(child.may_start(everyone) for child in tallies)


def test_sources_are_captured_once_every_stage_that_brings_frames_is_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = replace(ROW, takes_frames=False, per=InstancePer.SOURCE, brings_frames=True)
    monkeypatch.setattr(stage_table, "STAGES", with_row(second))
    say, progress = LiveMessages(CONFIG), ChainProgress(up={"capture-0", "capture-1", "tally-0"})
    say(progress)
    assert capsys.readouterr().err == ""
    progress.up.add("tally-1")
    say(progress)
    assert str(CAPTURES()) in capsys.readouterr().err


def test_who_captures_nothing_waits_for_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    config = JobConfig(
        gradients=GradientsConfig(chains=("http://127.0.0.1:7378",)),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    )
    LiveMessages(config)(ChainProgress(up=set(stage_names(config))))
    assert capsys.readouterr().err == ""


SMALL = JobConfig(
    source=(SourceConfig(file="capture.pcap"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
    ring=RingConfig(slots=64, slot_bytes=256),
    staging=StagingConfig(size_bytes=1 << 20),
)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateReader]:
    """Of a chain with one more kind of stage, of which all that is needed lives."""
    monkeypatch.setattr(stage_table, "STAGES", with_row())
    run, _ = create_run(SMALL, tmp_path / "run")
    beat_ns = time.monotonic_ns()
    write_beat(
        run.heartbeat_file, Heartbeat(pid=os.getpid(), started_ns=time.time_ns(), beat_ns=beat_ns)
    )
    for name in stage_names(SMALL):
        run.note_pid(name, os.getpid())
    yield StateReader(run.root, cached_s=0.0)
    run.remove()


def killed(run: Path, stage: str) -> None:
    (run / "pids" / stage).write_text("999999 0")


def test_a_further_stage_is_in_the_state_in_status_and_in_metrics(
    read: StateReader, capsys: pytest.CaptureFixture[str]
) -> None:
    state = read.state()
    assert not state.problems
    assert [one.name for one in state.stages] == [
        "supervisor", "update", "extract", "parse-0", "tally-0", "capture-0",
    ]  # fmt: skip
    done = {one.name: (one.done, one.unit) for one in state.stages}
    assert done["tally-0"] == done["parse-0"] == (0, "frames")
    assert done["supervisor"] == (None, "")
    print_state(state, [])
    assert "tally-0" in capsys.readouterr().out
    text = metrics_text(state, "")[0].decode()
    assert 'flowcheck_stage_up{stage="tally-0",training_job="job-1"} 1.0' in text


def test_health_needs_a_further_stage_unless_its_row_says_that_nobody_does(
    read: StateReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Finding:
        state: ChainState = read.state()
        assert state.health.word is HealthWord.BEHIND
        return state.health.reason

    assert told() == NO_FRAME_YET()
    killed(tmp_path / "run", "tally-0")
    assert told() == STAGES_RESTART(["tally-0"])
    (tmp_path / "run/pids/tally-0").unlink()
    assert told() == STAGES_TO_START(["tally-0"])
    *others, row, capture = stage_table.STAGES
    monkeypatch.setattr(stage_table, "STAGES", (*others, replace(row, optional=True), capture))
    assert told() == NO_FRAME_YET()
