"""Stages killed on a live interface before the job is learned cost nothing: no frame was lost."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
from support.chain import wait_until
from support.live import events, greetings, send, start
from support.veth import veth

from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace"),
]


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["parse-0", "extract"])
@pytest.mark.parametrize("before", [40, 253])
def test_a_stage_killed_before_anything_is_learned_costs_nothing(
    tmp_path: Path, stage: str, before: int
) -> None:
    truth = make_traffic(SyntheticJob(steps=5, shapes=((64, 32), (64,), (64, 128), (10,)), seed=4))
    frames = truth.frames_at_port(0)
    run = RunDir(tmp_path / "run")
    with veth() as cable:
        process = start(cable, tmp_path)
        try:
            wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
            with FrameRing.open(run.ring(0)) as ring:
                send(cable, tmp_path, frames[:before])
                wait_until(lambda: ring.tail == before, 60, "the frames before the kill")
                os.kill(run.stage_pids()[stage], signal.SIGKILL)
                send(cable, tmp_path, frames[before:])
                wait_until(lambda: greetings(run, stage) == 2, 60, "the stage to come back")
                wait_until(lambda: ring.tail == len(frames), 60, "the extraction of all frames")
                wait_until(lambda: len(events(run, "applied")) == 5, 60, "all steps")
            steps = [json.loads(line) for line in run.steps.read_text().splitlines()]
        finally:
            process.terminate()
            out, err = process.communicate(timeout=60)
    assert [step["gradient_sha256"] for step in steps] == [
        hashlib.sha256(gradient).hexdigest() for gradient in truth.gradients
    ], (out, err)
