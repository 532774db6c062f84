"""What is forked from a process that has torch loaded is a stage as one that is executed: of the
kernel's word on both, and on what they share with the processes they came from."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chain import Command, ExecutedCommand, slowed, wait_until

from flowcheck.stages.run_directory.run_dir import RunDir

KCMP = {"x86_64": 312, "aarch64": 272}
"""Number of kcmp(2) by machine (asm/unistd.h)."""
KCMP_FILE = 0
CAPTURE = "iter_40000_p2p_iter10"
BEHIND = 400
"""Frames of the start-up and a few steps; a thousand follow."""
JOB = """
run = "{0}/run"
checkpoint = "{0}/out"
[[source]]
file = "{0}/slow.pcap"
speed = 1.0
[ring]
slots = 64
[staging]
size_bytes = 4_194_304
[optimizer]
name = "sgd"
learning_rate = 0.01
"""


@pytest.fixture
def job(captures: Path, tmp_path: Path) -> Path:
    slowed(
        captures / f"{CAPTURE}.pcapng", tmp_path / "slow.pcap", frame_every_s=0.01, behind=BEHIND
    )
    (tmp_path / "job.toml").write_text(JOB.format(tmp_path))
    return tmp_path / "job.toml"


@pytest.fixture
def chain(job: Path) -> Iterator[Command]:
    with ExecutedCommand("up", job, "--json") as command:
        yield command


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def words(pid: int) -> list[str]:
    """Of its command line, be they one string."""
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()


def open_files(pid: int) -> list[int]:
    return [int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()]


def shared_files(one: int, other: int) -> list[str]:
    """Of the first process that are the very same open file in the other: offset, locks and all."""
    compare, number = ctypes.CDLL(None).syscall, KCMP[platform.machine()]
    return [
        str(Path(f"/proc/{one}/fd/{mine}").readlink())
        for mine in open_files(one)
        if any(compare(number, one, other, KCMP_FILE, mine, its) == 0 for its in open_files(other))
    ]


def kernel_facts(pid: int) -> dict[str, str]:
    """What a program inherits, or sets for itself."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    names = ("Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs")
    facts = {name: told[name] for name in (*names, "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    facts["limits"] = Path(f"/proc/{pid}/limits").read_text()
    for name in ("cwd", "ns/mnt", "fd/0", "fd/1", "fd/2"):
        facts[name] = str(Path(f"/proc/{pid}/{name}").readlink()).partition("pipe:")[0]
    facts["nice"] = str(os.getpriority(os.PRIO_PROCESS, pid))
    return facts


def taken_over(run: RunDir, before: int, steps: int) -> int:
    """The updater's pid once another one has taken a step."""

    def done() -> bool:
        return run.stage_pids().get("update", before) != before and step_lines(run) > steps

    wait_until(done, 60, "another updater")
    return run.stage_pids()["update"]


def step_lines(run: RunDir) -> int:
    return len(run.steps.read_bytes().splitlines()) if run.steps.exists() else 0


@pytest.mark.skipif(platform.machine() not in KCMP, reason="kcmp(2) has another number here")
def test_a_forked_stage_is_as_an_executed_one_and_shares_nothing(
    chain: Command, tmp_path: Path
) -> None:
    run, supervisor = RunDir(tmp_path / "run"), chain.process.pid
    wait_until(lambda: step_lines(run) >= 1, 60, "a step")
    update = run.stage_pids()["update"]
    loaded = next(pid for pid in children(supervisor) if words(pid) == words(supervisor))
    assert len(list(Path(f"/proc/{loaded}/task").iterdir())) == 1
    assert open_files(loaded) != [] and not shared_files(loaded, supervisor)
    assert not shared_files(update, supervisor) and not shared_files(update, loaded)
    assert os.getsid(update) == os.getpgid(update) == update
    assert os.getsid(loaded) == os.getpgid(loaded) == loaded
    forked, said = kernel_facts(update), words(update)
    assert said[1:5] == ["-m", "flowcheck", "stage", "update"]

    os.kill(update, signal.SIGKILL)  # another one comes from the same process
    second = taken_over(run, update, step_lines(run))
    assert second in children(supervisor) and kernel_facts(second) == forked

    os.kill(loaded, signal.SIGKILL)  # and one without it
    os.kill(second, signal.SIGKILL)
    executed = taken_over(run, second, step_lines(run))
    assert kernel_facts(executed) == forked
    assert words(executed)[:-1] == said[:-1]  # the last is the number of a descriptor
    assert loaded not in children(supervisor)

    chain.process.send_signal(signal.SIGTERM)
    result = chain.json(60)
    assert result["restarts"] == 2 and result["steps"] >= 3
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"


@pytest.mark.nightly
def test_a_chain_of_the_tests_that_loads_nothing_has_the_processes_of_an_executed_one(
    job: Path, tmp_path: Path
) -> None:
    """Root's supervisor begins again as another user: that is forked too."""
    run = RunDir(tmp_path / "run")

    def facts(pid: int) -> dict[str, Any]:
        own: dict[str, Any] = {"owner": Path(f"/proc/{pid}").stat().st_uid}
        own |= {"words": len(words(pid))}
        # Each chain has one of its own, of another number.
        own["ns/mnt"] = (
            Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
        )
        session = os.getsid(pid) == pid, os.getpgid(pid) == pid
        return kernel_facts(pid) | own | {"session": session, "said": words(pid)[-1].isdigit()}

    found = []
    for way in (ExecutedCommand, Command):
        with way("up", job, "--json") as command:
            wait_until(lambda: step_lines(run) >= 1, 60, "a step")
            every = {"supervisor": command.process.pid} | run.stage_pids()
            found.append({stage: facts(pid) for stage, pid in every.items()})
            assert {pid for stage, pid in every.items() if stage != "supervisor"} <= set(
                children(command.process.pid)
            )
            command.process.send_signal(signal.SIGTERM)
            assert command.json(60)["restarts"] == 0
        shutil.rmtree(run.root)
    assert getattr(command.process, "is_forked", False)
    assert found[0] == found[1]


def test_what_kills_the_supervisor_ends_all_that_it_started(chain: Command, tmp_path: Path) -> None:
    run, supervisor = RunDir(tmp_path / "run"), chain.process.pid
    wait_until(lambda: "update" in run.stage_pids(), 60, "an updater")
    started = children(supervisor)
    assert set(run.stage_pids().values()) - {supervisor} < set(started)  # one is no stage
    chain.process.kill()
    wait_until(lambda: not any(lives(pid) for pid in started), 60, "nothing left")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
