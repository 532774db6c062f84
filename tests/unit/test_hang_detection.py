"""Trainers that hang, and trainers that a busy machine does not let run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from support.refused_as import refused_as

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import TRAINERS_HANG
from flowcheck.lab.job_run import hang_detection
from flowcheck.lab.job_run.hang_detection import STARVED_LIMIT_S, STEP_LIMIT_S, HangDetector, stacks
from flowcheck.lab.job_run.torchrun_trainers import TRAINER_ENVIRONMENT, Trainers

HANGS = """
import threading
def waits_for_a_peer_that_never_comes(came):
    print("up", flush=True)
    came.wait(60)
waits_for_a_peer_that_never_comes(threading.Event())
"""


class Stuck:
    """What Trainers are to those who watch them: processes, and their logs."""

    def __init__(self, folder: Path, count: int) -> None:
        self.logs = [folder / f"host-{number}.log" for number in range(count)]
        self.processes = []
        for log in self.logs:
            with log.open("wb") as out:
                command = [sys.executable, "-c", HANGS]
                environment = os.environ | TRAINER_ENVIRONMENT
                self.processes.append(
                    subprocess.Popen(command, stdout=out, stderr=out, env=environment)
                )

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]


class Clock:
    """Seconds that pass when told to."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_ranks_that_hang_are_ended_and_the_line_each_stood_at_is_said(tmp_path: Path) -> None:
    stuck = Stuck(tmp_path, 2)
    try:
        while not all("up" in log.read_text() for log in stuck.logs):
            assert all(process.poll() is None for process in stuck.processes)
        found = stacks(cast(Trainers, stuck))
        ended = [process.wait(60) for process in stuck.processes]
    finally:
        for process in stuck.processes:
            process.kill()
            process.wait()
    assert ended == [-signal.SIGABRT, -signal.SIGABRT]
    for line, log in zip(found, stuck.logs, strict=True):
        assert str(log) in line and "in wait" in line
        assert "in waits_for_a_peer_that_never_comes" in log.read_text()


@pytest.mark.parametrize(("let_run", "limit_s"), [(True, STEP_LIMIT_S), (False, STARVED_LIMIT_S)])
def test_time_in_which_no_processor_was_given_counts_for_the_longer_limit_alone(
    let_run: bool, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(hang_detection, "time", clock)
    monkeypatch.setattr(
        hang_detection, "_delays", lambda pids: {1: 0.0 if let_run else clock.now_s}
    )
    watched = HangDetector("training", cast(Trainers, Stuck(tmp_path, 0)))
    watched.check(3)
    began_s = clock.now_s
    with refused_as(TRAINERS_HANG, kind=FlowCheckError, what="training", step="3"):
        while clock.now_s < began_s + 2 * STARVED_LIMIT_S:
            clock.now_s += 5
            watched.check(3)
    assert limit_s < clock.now_s - began_s < limit_s + 15


def test_a_step_begins_the_wait_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(hang_detection, "time", clock)
    watched = HangDetector("training", cast(Trainers, Stuck(tmp_path, 0)))
    for step in range(10):
        clock.now_s += STEP_LIMIT_S - 1
        watched.check(step)
