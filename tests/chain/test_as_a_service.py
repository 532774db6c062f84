"""A chain under a service manager: when it is ready, that it lives, and how it is ended."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chain import ExecutedCommand as Command
from support.chain import slowed, wait_until

from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 12
LINES = 'run = "{0}/run"\ncheckpoint = "{0}/out"\n[[source]]\nfile = "{0}/slow.pcap"\nspeed = 1.0\n'
SMALL = "[ring]\nslots = 64\n[staging]\nsize_bytes = 4_194_304\n"
RULE = '[optimizer]\nname = "sgd"\nlearning_rate = 0.01\n'


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user may look into, as /run/systemd is: a chain that root starts runs as
    a user of its own, who has no way into pytest's folders."""
    folder = Path(tempfile.mkdtemp(prefix="flowcheck-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def manager(open_to_all: Path) -> Iterator[socket.socket]:
    """Who hears what a service says, at a socket as systemd's: every user may write to it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(open_to_all / "notify"))
        (open_to_all / "notify").chmod(0o777)
        listening.settimeout(60)
        yield listening


@pytest.mark.nightly
def test_a_manager_hears_ready_alive_and_the_end_and_its_sigterm_to_one_process_drains_all(
    tmp_path: Path, open_to_all: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As KillMode=mixed does it: SIGTERM to the main process alone."""
    made, slow = tmp_path / "job.pcap", tmp_path / "slow.pcap"
    words = [sys.executable, "-m", "flowcheck.lab", made, "--steps", STEPS, "--shapes", "4x3,3"]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    slowed(made, slow, frame_every_s=0.02, behind=400)
    (tmp_path / "job.toml").write_text(LINES.format(tmp_path) + SMALL + RULE)
    monkeypatch.setenv("NOTIFY_SOCKET", str(open_to_all / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    def wait_for(word: str) -> list[str]:
        heard: list[str] = []
        while word not in heard:
            heard += manager.recv(4096).decode().splitlines()
        return heard

    run = RunDir(tmp_path / "run")
    with Command("up", tmp_path / "job.toml", "--json") as command:
        before = wait_for("READY=1")
        pids = run.stage_pids()
        assert {"capture-0", "parse-0", "extract", "update"} <= set(pids)
        assert not any(word.startswith("STOPPING") for word in before)
        wait_for("WATCHDOG=1")
        wait_until(lambda: run.steps.exists() and run.steps.stat().st_size > 0, 60, "a step")
        maps = {stage: Path(f"/proc/{pid}/maps").read_text() for stage, pid in pids.items()}
        assert [stage for stage, held in maps.items() if "libtorch" in held] == ["update"]
        os.kill(command.process.pid, signal.SIGTERM)
        wait_for("STOPPING=1")
        assert wait_for("STATUS=writing the replica as a checkpoint")
        result = command.json(60)
    assert Path(result["checkpoint"]).name == f"step-{result['steps']}"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
