"""Who gets on and who stands still, told of real processes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.refused_as import refused_as
from support.supervised import Clock

from flowcheck.findings.catalog.chain_processes import LOG_EMPTY, STAGE_NOT_UP
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor import process_progress, stage_process


def cpu_s(pid: int) -> float:
    """By the clock of its processor time, whose number is of its pid (CPUCLOCK_SCHED of Linux's
    include/linux/posix-timers_types.h)."""
    return time.clock_gettime(~pid << 3 | 2)


@pytest.fixture
def busy() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process.pid
        process.kill()


def computes(pid: int, seconds: float) -> None:
    until_s = cpu_s(pid) + seconds
    while cpu_s(pid) < until_s:
        time.sleep(0.005)


def test_what_a_process_has_done_is_what_it_computed_and_read(busy: int, tmp_path: Path) -> None:
    computes(busy, 0.1)
    least_s = cpu_s(busy)
    told_s = process_progress.process_work(busy)[1]
    # It goes on between the looks, however long this process waits for its turn.
    assert least_s - 0.05 < told_s < cpu_s(busy) + 0.05
    (tmp_path / "read").write_bytes(bytes(1 << 20))
    script = (
        f"open({str(tmp_path / 'read')!r}, 'rb', 0).read(); print(end='x', flush=True); input()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.read(1) == b"x"
        assert 1 << 20 <= process_progress.process_work(reader.pid)[0] < 8 << 20
        reader.communicate(b"\n")
    assert process_progress.process_work(reader.pid) == (0, 0.0), "gone"


def test_a_start_that_a_busy_machine_makes_slow_is_waited_for_but_not_for_ever(
    busy: int, tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, run = Clock(), RunDir.create(tmp_path / "run", shm)
    for module in (process_progress, stage_process):
        monkeypatch.setattr(module, "time", clock)
    stage = stage_process.StageProcess("update")
    stage.started_s = clock.now_s
    limits = {"still_s": stage_process.STILL_LIMIT_S, "limit_s": stage_process.HELLO_LIMIT_S}
    stage.patience = process_progress.ProgressTimeout(busy, **limits)
    for _ in range(3):  # a hundredth of a processor
        computes(busy, 2 * process_progress.LEAST_CPU_S)
        clock.now_s += stage_process.STILL_LIMIT_S - 10
        stage.check_start(run)
    clock.now_s += stage_process.HELLO_LIMIT_S
    with refused_as(STAGE_NOT_UP, stage="update", seconds=re.compile(r"^\d{4}$")) as found:
        stage.check_start(run)
    assert found.value.finding.is_any_of(STAGE_NOT_UP)
    assert found.value.finding.arguments["log"] == LOG_EMPTY(run.log("update"))
    run.remove()
