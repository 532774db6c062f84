"""A chain whose run directory lies on a file system that is full, a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chain import Command, flowcheck, slowed, wait_until

from flowcheck.findings.catalog.chain_processes import RECORDS_UNWRITTEN
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.replica.state_file.digest_log import digests_at
from flowcheck.stages.chain_events.event_log import LINES, Event, EventKind, read_event
from flowcheck.stages.chain_events.heartbeat import read_beat
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 60
PACE_S = 0.002
"""Between two frames."""
JOB = (
    'run = "{run}"\ncheckpoint = "{out}"\n[ring]\nslots = 1024\n'
    "[staging]\nsize_bytes = 4_194_304\n[replica]\nkeep_bytes = 60000\n"
    '[optimizer]\nname = "sgd"\nlearning_rate = 0.01\n'
)
LIMIT_S = 60.0
PAGE_BYTES = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount -t tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path, events: Path) -> None:
    """To the last byte, what is left of the last page of the events included."""
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="space"):
        while True:
            file.write(bytes(PAGE_BYTES))
    with events.open("ab") as file:
        file.write(b"\n" * (-events.stat().st_size % PAGE_BYTES))


def notes(run: RunDir) -> list[Event]:
    told = [read_event(line) for line in run.events.read_bytes().splitlines() if line]
    assert None not in told, "a torn line"
    return [one for one in told if one and one.kind is EventKind.NOTE and one.what == LINES]


@pytest.mark.nightly
def test_steps_are_taken_while_nothing_of_them_can_be_written_down(
    disk: Path, tmp_path: Path
) -> None:
    """They are those that a replay takes which has room; the events go on once there is some."""
    write_pcap(tmp_path / "job.pcap", make_traffic(SyntheticJob(steps=STEPS)).frames_at_port(0))
    job, run = tmp_path / "job.toml", RunDir(disk / "run")
    job.write_text(JOB.format(run=run.root, out=tmp_path / "out"))
    code, roomy, err = flowcheck("replay", tmp_path / "job.pcap", "--job", job, "--json")
    assert code == 0, err
    slowed(tmp_path / "job.pcap", tmp_path / "slow.pcap", frame_every_s=PACE_S, behind=100)
    job.write_text(job.read_text() + f'[[source]]\nfile = "{tmp_path}/slow.pcap"\nspeed = 1.0\n')
    with Command("up", job, "--json") as up:
        wait_until(run.steps.exists, LIMIT_S, "the first steps")
        update = run.stage_pids()["update"]
        os.kill(update, signal.SIGSTOP)
        fill(disk, run.events)
        os.kill(update, signal.SIGCONT)
        wait_until(
            lambda: StateReader(run.root).state().jobs[0].step == STEPS, LIMIT_S, "all steps"
        )
        wait_until(lambda: len(read_beat(run.heartbeat_file).full) == 2, LIMIT_S, "the beat")
        state = StateReader(run.root).state()
        written = len(run.steps.read_bytes().splitlines()) if run.steps.exists() else 0
        assert written < STEPS and digests_at(run.trace, STEPS) is None, "not known, and no error"
        assert state.unwritten_lines >= STEPS - written
        assert not sum(stage.restarts for stage in state.stages)
        assert sum(one.is_any_of(RECORDS_UNWRITTEN) for one in state.problems) == 2
        (disk / "filler").unlink()
        wait_until(lambda: bool(notes(run)), LIMIT_S, "events that go on")
        up.process.send_signal(signal.SIGTERM)
        code, out, err = up.result()
    assert code == 0, err
    for file in (run.events, run.steps):
        assert err.count(f"{file} cannot be written") == 1
    assert notes(run)[0].count > 0 and err.count(f"{run.events} is written again") == 1
    told = json.loads(out)
    assert (told["steps"], told["digest"]) == (STEPS, json.loads(roomy)["digest"])
    assert flowcheck("verify", Path(told["checkpoint"]))[0] == 0
