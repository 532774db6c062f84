"""A chain ends cleanly, on a signal, on a kill, and by `flowcheck down`."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chain import ExecutedCommand, flowcheck, slowed, wait_until

from flowcheck.stages.run_directory.run_dir import RunDir

CAPTURE = "iter_40000_p2p_iter10"
BEHIND = 400
"""Frames of the start-up and a few steps; a thousand follow."""


def shared_memory() -> set[str]:
    return {str(p) for p in Path("/dev/shm").glob("flowcheck-*-*-*")}


@pytest.fixture
def clean_memory() -> Iterator[None]:
    """Nothing may be left in shared memory that was not there before."""
    before = shared_memory()
    yield
    mine = [p for p in shared_memory() - before if not Path(f"/proc/{p.split('-')[1]}").exists()]
    assert mine == []


def up(folder: Path, capture: Path) -> tuple[ExecutedCommand, RunDir]:
    job = folder / "job.toml"
    job.write_text(
        f'run = "{folder}/run"\ncheckpoint = "{folder}/out"\n'
        f'[[source]]\nfile = "{capture}"\nspeed = 1.0\n[ring]\nslots = 64\n'
        "[staging]\nsize_bytes = 4_194_304\n"
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.01\n'
    )
    return ExecutedCommand("up", job, "--json"), RunDir(folder / "run")


def status(run: RunDir) -> Any:
    code, out, err = flowcheck("status", "--run", run.root, "--json")
    assert out, err
    return json.loads(out) | {"exit_code": code}


def steps_taken(run: RunDir) -> int:
    return len(run.steps.read_bytes().splitlines()) if run.steps.exists() else 0


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_chain_with_a_checkpoint(
    captures: Path, tmp_path: Path, number: signal.Signals, clean_memory: None
) -> None:
    capture = tmp_path / "slow.pcap"
    slowed(captures / f"{CAPTURE}.pcapng", capture, frame_every_s=0.02, behind=BEHIND)
    command, run = up(tmp_path, capture)
    with command:
        wait_until(lambda: steps_taken(run) >= 2, 60, "two steps")
        seen = status(run)
        assert seen["exit_code"] == 0
        assert all(stage["pid"] for stage in seen["stages"])
        assert seen["jobs"][0]["learned"] and seen["jobs"][0]["step"] >= 2
        pids = run.stage_pids()
        command.process.send_signal(number)
        result = command.json(60)
    assert 2 <= result["steps"] < 20
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"
    assert not [stage for stage, pid in pids.items() if Path(f"/proc/{pid}").exists()]
    assert not run.sockets.exists()


def test_a_killed_supervisor_takes_its_stages_with_it_and_down_takes_the_rest(
    captures: Path, tmp_path: Path
) -> None:
    capture = tmp_path / "slow.pcap"
    slowed(captures / f"{CAPTURE}.pcapng", capture, frame_every_s=0.02, behind=BEHIND)
    command, run = up(tmp_path, capture)
    with command:
        wait_until(lambda: steps_taken(run) >= 1, 60, "a step")
        memory, pids = run.memory, run.stage_pids()
        assert len(pids) == 5
        nice = {stage: os.getpriority(os.PRIO_PROCESS, pid) for stage, pid in pids.items()}
        assert max(nice[stage] for stage in ("capture-0", "parse-0", "extract")) < nice["update"]
        command.process.kill()
        command.process.wait()
        wait_until(lambda: set(run.stage_pids()) == set(), 60, "no stage left")
    assert memory.is_dir(), "what a killed supervisor leaves"
    assert status(run)["exit_code"] == 1
    code, out, _ = flowcheck("down", "--run", run.root, "--json")
    assert code == 0
    assert json.loads(out)["removed"] is True
    assert f"its replica is kept in {tmp_path}/out/step-" in json.loads(out)["rescued"]["sentence"]
    assert not memory.exists()
    assert not run.sockets.exists()


@pytest.mark.nightly
def test_down_finds_memory_whose_run_directory_is_gone(captures: Path, tmp_path: Path) -> None:
    capture = tmp_path / "slow.pcap"
    slowed(captures / f"{CAPTURE}.pcapng", capture, frame_every_s=0.02, behind=BEHIND)
    command, run = up(tmp_path, capture)
    with command:
        wait_until(lambda: len(run.stage_pids()) == 5, 60, "all stages")
        memory = run.memory
        command.process.kill()
        command.process.wait()
        wait_until(lambda: set(run.stage_pids()) == set(), 60, "no stage left")
    (run.root / "memory").unlink()
    elsewhere = tmp_path / "elsewhere"  # another run, which is down
    elsewhere.mkdir(mode=0o700)
    shutil.copy(run.config, elsewhere)
    code, out, _ = flowcheck("down", "--run", elsewhere, "--json")
    assert code == 0
    assert str(memory) in json.loads(out)["stale"]
    assert not memory.exists()


def test_down_ends_a_running_chain_and_frees_its_memory(captures: Path, tmp_path: Path) -> None:
    capture = tmp_path / "slow.pcap"
    slowed(captures / f"{CAPTURE}.pcapng", capture, frame_every_s=0.02, behind=BEHIND)
    command, run = up(tmp_path, capture)
    with command:
        wait_until(lambda: len(run.stage_pids()) == 5, 60, "all stages")
        memory = run.memory
        second = flowcheck("up", tmp_path / "job.toml")
        assert second[0] == 2
        assert f"in use by process {command.process.pid}" in second[2]
        code, out, _ = flowcheck("down", "--run", run.root)
        assert code == 0
        assert "supervisor" in out
        code, out, err = command.result(10)
    told = json.loads(out)
    assert (code == 0) == (told["steps"] > 0), "no step was taken: that is said by the code"
    assert told["steps"] or told["why"]["sentence"] in err
    assert not memory.exists()
    left = {path.name for path in run.root.iterdir()}
    assert {"supervisor.log", "events.jsonl"} & left, "what tells how it went"
    assert not left & {"memory", "sockets", "pids"}
