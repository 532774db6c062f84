"""No end of `flowcheck up` costs the replica: not a signal too many, not a disk that is full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.chain import flowcheck, wait_until

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.replica.checkpoint import checkpoint_load
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 4
LIMIT_S = 60.0

UP = """
import os, signal, sys, threading
from pathlib import Path
from flowcheck import cli
from flowcheck.errors import StateError
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.stages.supervisor.checkpoint_helper import CheckpointHelper
from flowcheck.stages.supervisor.supervisor import Supervisor

marker, how = Path(sys.argv.pop(1)), sys.argv.pop(1)
save, work = CheckpointHelper.save, Supervisor.work

def slowly(self, *arguments):
    # Who writes is a process of its own, which is halted for a while.
    os.kill(self.process.pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (self.process.pid, signal.SIGCONT)).start()
    marker.touch()
    return save(self, *arguments)

def full(*arguments):
    raise OSError(28, "No space left on device", "here")

def failing(self):
    if marker.exists():
        self._healthy = False
        raise StateError("made to fail")
    return work(self)

if how == "slow":
    CheckpointHelper.save = slowly
if how == "full":
    checkpoint_save.write = full
    Supervisor.work = failing
cli.main()
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job file that reads a capture of STEPS steps."""
    write_pcap(tmp_path / "job.pcap", make_traffic(SyntheticJob(steps=STEPS)).frames_at_port(0))
    path = tmp_path / "job.toml"
    path.write_text(
        f'run = "{tmp_path}/run"\ncheckpoint = "{tmp_path}/out"\n'
        f'[[source]]\nfile = "{tmp_path}/job.pcap"\n[ring]\nslots = 1024\n'
        "[staging]\nsize_bytes = 4_194_304\n[replica]\nkeep_bytes = 60000\n"
        '[optimizer]\nname = "sgd"\nlearning_rate = 0.01\n'
    )
    return path


@contextmanager
def up(job: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """`flowcheck up` with something of it made slow or broken; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", UP, str(job.parent / "marker"), how, "up", str(job), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


def all_steps(run: RunDir) -> None:
    def there() -> bool:
        return run.steps.exists() and len(run.steps.read_bytes().splitlines()) == STEPS

    wait_until(there, LIMIT_S, "all steps")


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


@pytest.mark.slow
def test_signals_while_the_checkpoint_is_written_change_nothing(job: Path) -> None:
    run = RunDir(job.parent / "run")
    with up(job, "slow") as process:
        all_steps(run)
        memory, pids = run.memory, run.stage_pids()
        code, told, err = flowcheck("status", "--run", run.root, "--json")
        assert code == 0, err
        seen = json.loads(told)
        assert len(pids) == 5 and all(stage["pid"] for stage in seen["stages"])
        assert seen["jobs"][0]["learned"] and seen["jobs"][0]["step"] == STEPS
        process.send_signal(signal.SIGTERM)
        wait_until((job.parent / "marker").exists, LIMIT_S, "the writing of the checkpoint")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            os.kill(pids["update"], number)
            time.sleep(0.05)
        code, out, err = end(process)
    assert code == 0, err
    told = json.loads(out)
    saved = checkpoint_load.load(Path(told["checkpoint"]))
    assert (saved.manifest.step, told["steps"], told["why"]) == (STEPS, STEPS, None)
    assert not memory.exists() and not run.has_shared_memory and not run.sockets.exists()
    assert not [stage for stage, pid in pids.items() if Path(f"/proc/{pid}").exists()]
    kept = [name for name in os.listdir(job.parent / "out") if name.startswith("step-")]  # noqa: PTH208
    assert kept == [f"step-{STEPS}"]


@pytest.mark.slow
def test_a_replica_there_is_no_room_for_stays_in_memory_until_it_is_asked_for(job: Path) -> None:
    run = RunDir(job.parent / "run")
    with up(job, "full") as process:
        all_steps(run)
        (job.parent / "marker").touch()
        code, _, err = end(process)
    assert code == 2
    assert "made to fail; and no checkpoint can be written" in err and "No space left" in err
    memory = run.memory
    assert (memory / "replica").exists()
    code, out, _ = flowcheck("status", "--run", run.root)
    said = " ".join(out.split())
    assert code == 1 and "gave up at" in said and "Make room, then `flowcheck down" in said
    code, out, err = flowcheck("down", "--run", run.root, "--json")
    told = json.loads(out)
    assert (code, told["removed"]) == (0, True), err
    kept = job.parent / "out" / f"step-{STEPS}"
    assert str(kept) in told["rescued"]["sentence"]
    assert checkpoint_load.load(kept).manifest.step == STEPS
    assert not memory.exists()
    after = " ".join(flowcheck("status", "--run", run.root)[1].split())
    assert "gave up at" in after and f"restore --checkpoint {kept}" in after
