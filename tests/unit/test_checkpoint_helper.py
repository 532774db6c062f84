"""Checkpoints written by the updater's process, over a real socket, and without it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from support.chain import wait_until

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.lost_steps import STEP_WAS_LOST
from flowcheck.ops.lifecycle import shutdown_checkpoint
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.checkpoint_helper import (
    CheckpointHelper,
    CheckpointRequest,
    HelperGone,
)
from flowcheck.stages.supervisor.stage_process import StageProcess

WRITER = """
import errno, os, sys, time
from pathlib import Path
from flowcheck.errors import StateError
from flowcheck.findings.catalog.lost_steps import STEP_WAS_LOST
from flowcheck.stages.supervisor.checkpoint_helper import serve_checkpoints
def save(wanted):
    folder = Path(wanted.directory)
    if folder.name == "other":
        raise StateError(STEP_WAS_LOST(7))
    if folder.name == "full":
        raise OSError(errno.ENOSPC, "no room", str(folder / "f"))
    if folder.name == "broken":
        raise KeyError("what nobody thought of")
    if folder.name == "dying":  # a kill closes the socket before it lets go of locked files
        os.closerange(3, 1 << 16)
        time.sleep(60)
    return folder / f"step-{wanted.step}" if wanted.step else None
serve_checkpoints(int(sys.argv[1]), save)
"""


@pytest.fixture
def helper() -> Iterator[CheckpointHelper]:
    own, other = socket.socketpair()
    with other:
        number = other.fileno()
        command = [sys.executable, "-c", WRITER, str(number)]
        process = subprocess.Popen(command, pass_fds=(number,), stderr=subprocess.DEVNULL)
    made = CheckpointHelper(process, own)
    wait_until(lambda: made.is_ready, 60.0, "the helper is ready")
    yield made
    made.close()
    assert process.poll() is not None


def test_what_the_helper_says_is_said_here(helper: CheckpointHelper, tmp_path: Path) -> None:
    assert helper.save(tmp_path, tmp_path, None) is None
    assert helper.save(tmp_path, tmp_path, 7) == tmp_path / "step-7"
    with pytest.raises(StateError) as refused:
        helper.save(tmp_path, tmp_path / "other", 7)
    assert refused.value.finding == STEP_WAS_LOST(7)
    with pytest.raises(OSError, match="no room") as raised:
        helper.save(tmp_path, tmp_path / "full", 7)
    assert raised.value.filename == str(tmp_path / "full" / "f")
    assert helper.save(tmp_path, tmp_path, 8) == tmp_path / "step-8", "a refusal is no end"


def test_signals_for_a_whole_group_of_processes_end_no_helper(
    helper: CheckpointHelper, tmp_path: Path
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        helper.process.send_signal(number)
        assert helper.save(tmp_path, tmp_path, number) == tmp_path / f"step-{int(number)}"


@pytest.mark.parametrize("how", ["killed", "broken"])
def test_where_the_helper_ends_this_one_writes(
    helper: CheckpointHelper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    asked = []
    monkeypatch.setattr(
        shutdown_checkpoint, "save_checkpoint", lambda *of: asked.append(of) or of[2]
    )
    config = cast(JobConfig, None)
    if how == "killed":
        helper.process.kill()
        helper.process.wait()
    with shutdown_checkpoint.checkpoint_writer(helper) as save:
        assert save(config, RunDir(tmp_path), tmp_path / how, 3) == tmp_path / how
    assert len(asked) == 1
    with pytest.raises(HelperGone):
        helper.save(tmp_path, tmp_path, 3)


def test_a_helper_is_gone_before_another_writes_in_its_place(
    helper: CheckpointHelper, tmp_path: Path
) -> None:
    """The replica is locked as long as it lives."""
    with pytest.raises(HelperGone):
        helper.save(tmp_path, tmp_path / "dying", 3)
    assert helper.process.returncode is not None


def test_a_helper_outlives_its_stage_and_is_none_of_the_run_any_more(
    helper: CheckpointHelper, tmp_path: Path
) -> None:
    run = cast(RunDir, SimpleNamespace(pids=tmp_path))
    (tmp_path / "update").write_text("1 1")
    child = StageProcess(
        "update", process=helper.process, serves_checkpoints=True, checkpoint_helper=helper
    )
    assert child.has_left(), "though its process lives"
    child.end(run)
    assert helper.process.poll() is None and not (tmp_path / "update").exists()
    helper.process.kill()
    helper.process.wait()
    child.end(run)
    assert child.checkpoint_helper is None


def test_a_process_that_says_nothing_is_not_ready() -> None:
    own, other = socket.socketpair()
    with other, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        silent = CheckpointHelper(made, own)
        assert not silent.is_ready
        os.kill(made.pid, 9)
        silent.close()


@pytest.mark.parametrize("asked", [False, True])
def test_one_whose_supervisor_was_killed_ends_without_a_word(asked: bool) -> None:
    own, other = socket.socketpair()
    with other:
        number = other.fileno()
        command = [sys.executable, "-c", WRITER, str(number)]
        helper = subprocess.Popen(command, pass_fds=(number,), stderr=subprocess.PIPE, text=True)
    with own:
        if asked:
            own.sendall(msgspec.json.encode(CheckpointRequest("run", "folder", 7)) + b"\n")
    with helper:
        _, said = helper.communicate(timeout=60)
    assert (helper.returncode, said) == (0, "")
