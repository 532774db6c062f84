"""`flowcheck up` and what a killed chain left, with stages that are only said to have run."""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.cli import main as cli_main
from flowcheck.config import JobConfig, LogConfig, encode_config, load_job
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.earlier_files import earlier_finding
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.how_chains_end import (
    KEPT_NOWHERE,
    LOST_AND_STAYS,
    NO_FRAME,
    NO_MEMORY_TO_KEEP,
    NO_REPLICA_TO_KEEP,
    NO_STEP_TO_KEEP,
    RESCUED,
    UNEXPLAINED,
)
from flowcheck.findings.catalog.nccl_transport import NO_WRITES
from flowcheck.findings.catalog.run_directories import NOT_ACCESSIBLE
from flowcheck.findings.catalog.starting_a_chain import STARTING
from flowcheck.findings.finding import Finding
from flowcheck.ops.lifecycle import shutdown_cleanup, status_command, up_command
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.progress_messages import ERROR, print_message, set_message_format
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_learning.learning_status import LearningStatus
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.chain_progress import ChainProgress
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter, encode_job

Life = Callable[[JobConfig, RunDir], ChainProgress]
SMALL = LearnedJob(
    era=NcclEra.V2_20, communicators=(), edges=(),
    parameters=(Parameter(sizes=(3,), strides=(1,)),),
    first_buckets=((0,),), buckets=((0,),), first=(), each=(),
)  # fmt: skip
KEPT = Path("/checkpoints/step-9")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(
        f'run = "{tmp_path}/run"\n[[source]]\ninterface = "mirror0"\n[ring]\nslots = 64\n'
        '[staging]\nsize_bytes = 1_048_576\n[optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
    )
    return path


def run_up(monkeypatch: pytest.MonkeyPatch, job: Path, life: Life, *, as_json: bool = True) -> int:
    """`up` with this in place of the stages' life."""

    def supervise(config: JobConfig, run: RunDir, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(progress=life(config, run), other_jobs=[], checkpoint_helper=None)

    monkeypatch.setattr(up_command, "supervise", supervise)
    monkeypatch.setattr(up_command, "check_capture_ports", lambda sources, job: None)
    monkeypatch.setattr(
        up_command,
        "save_replicas",
        lambda config, run, save: ([shutdown_cleanup.SavedReplica(KEPT, None)], None),
    )
    return up_command.up(job, None, as_json=as_json)


def nothing(config: JobConfig, run: RunDir) -> ChainProgress:
    return ChainProgress()


def nine(config: JobConfig, run: RunDir) -> ChainProgress:
    run.steps.write_text('{"step":9,"digest":"d9","seconds":0.1}\n')
    return ChainProgress(steps=9)


def lost(config: JobConfig, run: RunDir) -> ChainProgress:
    with GradientShard.create(run.shard, gradient_bytes=64) as shard:
        shard.begin(0, 10)
        shard.mark_lost(0)
    return nine(config, run)


@pytest.mark.parametrize(
    ("life", "code", "steps", "why"),
    [
        (nothing, 1, 0, NO_FRAME()),
        (nine, 0, 9, None),
        (lost, 1, 9, LOST_AND_STAYS(step=10, replica_step=9)),
    ],
)
def test_the_exit_code_says_whether_the_replica_followed_to_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path,
    life: Life, code: int, steps: int, why: Finding | None,
) -> None:  # fmt: skip
    assert run_up(monkeypatch, job, life) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["steps"] == steps
    assert msgspec.convert(told["why"], Finding | None) == why
    assert why is None or f"flowcheck: {told['why']['sentence']}\n" in err
    assert not (job.parent / "run" / "memory").is_symlink()


def test_what_up_says_is_objects_where_the_job_file_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    job.write_text(job.read_text() + '[log]\nformat = "json"\n')
    assert run_up(monkeypatch, job, lost) == 1
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all({"time_ns", "level", "message"} <= set(one) for one in said)
    codes = [one["finding"]["code"] for one in said if "finding" in one]
    assert STARTING.code in codes and codes[-1] == LOST_AND_STAYS.code
    assert all(one["message"] == one["finding"]["sentence"] for one in said if "finding" in one)
    assert [one["level"] for one in said][-1] == "error"
    monkeypatch.setattr("sys.argv", ["flowcheck", "up", str(job.with_name("none"))])
    with pytest.raises(SystemExit):
        cli_main()
    assert "does not exist" in json.loads(capsys.readouterr().err)["message"]
    set_message_format(LogConfig())


def test_what_up_says_is_objects_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    """The job file asks for text, the command line for --json."""
    monkeypatch.setattr("sys.argv", ["flowcheck", "up", str(job), "--json"])
    assert run_up(monkeypatch, job, lost) == 1
    out, err = capsys.readouterr()
    said = [json.loads(line) for line in err.splitlines()]
    findings = [one["finding"] for one in said]
    assert all({"code", "arguments", "sentence"} <= set(one) for one in findings)
    assert {STARTING.code, LOST_AND_STAYS.code} <= {one["code"] for one in findings}
    assert json.loads(out)["why"]["code"] == LOST_AND_STAYS.code
    monkeypatch.setattr("sys.argv", ["flowcheck", "up", str(job)])
    run_up(monkeypatch, job, lost, as_json=False)
    assert not capsys.readouterr().err.startswith("{")


def test_no_terminal_obeys_a_name_in_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("\x1b]0;mine\x07 of\ntwo lines", ERROR)
    assert capsys.readouterr().err == "flowcheck: \\x1b]0;mine\\x07 of\ntwo lines\n"


def test_what_to_do_stands_below_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a finding within another as well; of a fact there is nothing to do."""
    refused = ConfigError("run", "there", NOT_ACCESSIBLE("flowcheck\x1b"))
    print_message(refused.finding, ERROR)
    print_message(STARTING("there"))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("flowcheck: run = 'there': user flowcheck\\x1b may not look")
    assert second.startswith("  Give that user `x` on each folder above")
    assert third.startswith("flowcheck: starting in there")
    set_message_format(LogConfig(format="json"))
    print_message(refused.finding, ERROR)
    told = json.loads(capsys.readouterr().err)["finding"]
    assert told["remedy"] == second.strip() == told["arguments"]["right"]["remedy"]
    set_message_format(LogConfig())


def test_the_last_line_says_that_no_checkpoint_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    run_up(monkeypatch, job, nine, as_json=False)
    assert "stopped at step 9; no checkpoint, for the job file names" in capsys.readouterr().out


def test_a_chain_that_fails_keeps_its_replica_first_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    def failing(config: JobConfig, run: RunDir) -> ChainProgress:
        raise StateError("capture-0: no such port")

    with refused_as(ERROR_TEXT, text=re.compile("no such port")):
        run_up(monkeypatch, job, failing)
    assert f"the chain failed; its replica is kept in {KEPT}" in capsys.readouterr().err
    assert not (job.parent / "run" / "memory").is_symlink()


def killed(run: RunDir) -> RunDir:
    """As a kill leaves it: the process of its number is another one."""
    (run.pids / "supervisor").write_text("1 1")
    return run


def test_a_chain_killed_before_it_had_a_replica_is_told_too(tmp_path: Path, shm: Path) -> None:
    run = RunDir.create(tmp_path / "run", shm)
    assert shutdown_cleanup.rescue_killed_chain(run, "flowcheck down") is None, "it lives"
    told = shutdown_cleanup.rescue_killed_chain(killed(run), "flowcheck down")
    assert told == RESCUED(run=run.root, done=NO_REPLICA_TO_KEEP())
    run.remove(keep_records=True)
    assert shutdown_cleanup.rescue_killed_chain(run, "flowcheck down") is None, "it ended"


def test_a_chain_whose_memory_a_restart_took_is_told(tmp_path: Path, shm: Path) -> None:
    run = killed(RunDir.create(tmp_path / "run", shm))
    for path in run.memory.iterdir():
        path.unlink()
    run.memory.rmdir()
    told = shutdown_cleanup.rescue_killed_chain(run, "flowcheck down")
    assert told == RESCUED(run=run.root, done=NO_MEMORY_TO_KEEP())
    run.remove()


def test_a_replica_that_can_be_kept_nowhere_is_not_removed_unless_it_is_given_up(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch, job: Path
) -> None:
    run = killed(RunDir.create(tmp_path / "run", shm))
    (run.memory / "replica").write_bytes(b"weights")
    run.config.write_bytes(b"{}")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    one = SimpleNamespace(jobs=1, job=(), several=False, checkpoint=None, rings=(), source=())
    monkeypatch.setattr(RunDir, "settings", lambda self: one)
    monkeypatch.setattr(shutdown_cleanup, "save_replica", full)
    with refused_as(KEPT_NOWHERE, error=re.compile("No space left ")):
        shutdown_cleanup.down(run.root, discard=False, as_json=True)
    assert run.replica.exists()
    assert shutdown_cleanup.down(run.root, discard=True, as_json=True) == 0
    assert not run.has_shared_memory


@pytest.mark.parametrize("steps", [0, 1])
def test_a_chain_whose_schedule_is_gone_is_taken_down_and_its_steps_are_kept(
    tmp_path: Path, shm: Path, job: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    schedule = tmp_path / "rates.py"
    schedule.write_text("def half():\n    return lambda step: 0.5\n")
    job.write_text(job.read_text() + f'schedule = "{schedule}:half"\n')
    config = load_job(job)
    run = RunDir.create(tmp_path / "run", shm)
    run.config.write_bytes(encode_config(config))
    run.learned_job.write_bytes(encode_job(SMALL))
    assert config.optimizer is not None
    ones = np.ones(3, np.float32)
    replica = Replica.create(run.replica, Layout.of_shapes([(3,)]), config.optimizer, ones)
    for step in range(1, steps + 1):
        replica.apply(step, ones)
    replica.close()
    schedule.unlink()
    killed(run)
    assert shutdown_cleanup.down(run.root, discard=False, as_json=False) == 0
    told = capsys.readouterr().out
    assert not run.has_shared_memory and not list(shm.iterdir())
    if not steps:
        assert str(NO_STEP_TO_KEEP()) in told
        return
    assert f"its replica is kept in {run.root}/rescued/step-1" in told
    kept = checkpoint_save.load(run.root / "rescued" / "step-1").parameters["param.0"]
    assert kept.tolist() == pytest.approx([1 - 0.1 * 0.5] * 3)


class Gone(io.StringIO):
    """A terminal whose other end is closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_went_away_does_not_end_what_speaks_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: Path
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    assert run_up(monkeypatch, job, nothing) == 1
    assert json.loads(capsys.readouterr().out)["why"]["code"] == NO_FRAME.code


def test_status_tells_a_chain_that_ended_from_one_a_restart_of_the_machine_took(
    tmp_path: Path, shm: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = killed(RunDir.create(tmp_path / "run", shm))
    run.config.write_bytes(encode_config(load_job(job)))
    shutil.rmtree(run.memory)
    assert status_command.run(run.root, as_json=False) == 1
    assert "was killed, and its memory is gone" in capsys.readouterr().out
    run.remove(keep_records=True)
    run.steps.write_text('{"step":5,"digest":"d","seconds":0.1}\n')
    assert status_command.run(run.root, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["health"]["reason"]["code"] == UNEXPLAINED.code and told["jobs"][0]["step"] == 5


def test_status_tells_where_a_trainers_file_took_a_steps_place(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = create_run(load_job(job), tmp_path / "run")
    try:
        taken = {"step": 3, "file": "[/b].pt", "request": "", "at": 5}
        refused = {**taken, "step": 9, "refused": "step 9 was not applied yet"}
        run.anchors.write_text(f'{json.dumps(taken)}\n{json.dumps(refused)}\n{{"step":')
        assert [one.step for one in status_command.read_chain(run).jobs[0].anchors] == [3]
        status_command.run(run.root, as_json=False)
        assert capsys.readouterr().out.count("is the trainer's [/b].pt") == 1
    finally:
        run.remove()


def test_status_tells_why_no_job_is_learned_until_one_is(
    tmp_path: Path, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = create_run(load_job(job), tmp_path / "run")
    try:
        assert status_command.read_chain(run).jobs[0].why_not == ()
        reasons = (earlier_finding("the weights [0, 9) were not seen"), NO_WRITES())
        LearningStatus(run, print).store(reasons)
        assert status_command.read_chain(run).jobs[0].why_not == reasons
        status_command.run(run.root, as_json=False)
        shown = capsys.readouterr().out
        assert f"not learned yet\n  the weights [0, 9) were not seen\n  {NO_WRITES()}\n" in shown
        run.learned_job.write_bytes(encode_job(SMALL))
        assert status_command.read_chain(run).jobs[0].why_not == ()
    finally:
        run.remove()
