"""Capture killed on a live interface: what passed meanwhile is named to the byte, and no more."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
from support.chain import wait_until
from support.live import events, greetings, send, start
from support.veth import veth

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
)
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace"),
]

LOST_STEP, STEPS = 4, 6
SHAPES = ((120, 100), (500,))


def ll_data(frame: bytes) -> bytes:
    """Data bytes of a Middle packet's LL lines: after Ethernet, IPv6, UDP, BTH; before ICRC."""
    lines = frame[14 + 40 + 8 + 12 : -4]
    return b"".join(lines[at : at + 4] + lines[at + 8 : at + 12] for at in range(0, len(lines), 16))


def lost_run(frames: list[WireFrame], truth: SyntheticTraffic) -> tuple[int, int, tuple[int, int]]:
    """(first, stop) of three Middle packets of one final chunk, and the gradient bytes in them.

    The place is found by content: these bytes occur once in that step's true gradient.
    """
    gradient = truth.gradients[LOST_STEP - 1]
    for first in range(len(frames)):
        three = frames[first : first + 3]
        if len({(w.channel, w.sender, w.message) for w in three}) != 1:
            continue
        if any(w.kind != "data" or w.frame[62] != 7 for w in three):
            continue
        data = b"".join(ll_data(w.frame) for w in three)
        if gradient.count(data) == 1:
            start = gradient.index(data)
            return first, first + 3, (start, start + len(data))
    raise AssertionError("the job has no final chunk of three Middle packets in that step")


def lines_of(run: RunDir) -> list[str]:
    return run.steps.read_text().splitlines() if run.steps.exists() else []


def short_steps(run: RunDir) -> list[dict[str, object]]:
    """Steps that were applied without some of their bytes."""
    return [event for event in events(run, "loss") if event["what"] == "bytes"]


@pytest.mark.slow
def test_a_capture_killed_on_a_live_interface_costs_what_passed_meanwhile_and_nothing_else(
    tmp_path: Path,
) -> None:
    truth = make_traffic(SyntheticJob(shapes=SHAPES, steps=STEPS, seed=3))
    frames = truth.frames_at_port(0)
    first, stop, missing = lost_run(frames, truth)
    run = RunDir(tmp_path / "run")
    with veth() as cable:
        process = start(cable, tmp_path)
        try:
            wait_until(lambda: greetings(run, "capture-0") == 1, 60, "capture on the interface")
            with FrameRing.open(run.ring(0)) as ring:
                send(cable, tmp_path, frames[:first])
                wait_until(lambda: ring.head == first, 60, "the frames before the kill")
                supervisor = run.stage_pids()["supervisor"]
                os.kill(supervisor, signal.SIGSTOP)  # so that nothing restarts it meanwhile
                os.kill(run.stage_pids()["capture-0"], signal.SIGKILL)
                send(cable, tmp_path, frames[first:stop])
                os.kill(supervisor, signal.SIGCONT)
                wait_until(lambda: greetings(run, "capture-0") == 2, 60, "capture to come back")
                send(cable, tmp_path, frames[stop:])
                rest = len(frames) - (stop - first)
                wait_until(lambda: ring.head == rest, 60, "the frames after the kill")
                wait_until(lambda: ring.tail == rest, 60, "their extraction")
                wait_until(lambda: short_steps(run) != [], 60, "word of what the step lacks")
                counters = ring.counters()
                wait_until(lambda: len(lines_of(run)) == STEPS, 60, "the steps behind it")
            [short] = short_steps(run)
            steps = [json.loads(line) for line in lines_of(run)]
        finally:
            process.terminate()
            out, err = process.communicate(timeout=60)
    assert short["step"] == LOST_STEP, (out, err)
    assert short["count"] == missing[1] - missing[0]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert [step.get("gradient_sha256") for step in steps] == [
        None if step == LOST_STEP else hashlib.sha256(gradient).hexdigest()
        for step, gradient in enumerate(truth.gradients, 1)
    ]
    elements = (missing[1] - missing[0]) // 4
    tainted = [sum(step.get("tainted", {}).values()) for step in steps]
    assert tainted == [0] * (LOST_STEP - 1) + [elements] * (STEPS - LOST_STEP + 1)
    assert counters["capture"]["rx_frames"] == rest
    assert (
        sum(v for k, v in counters["parse"].items() if k in ("write_frames", "ack_frames")) == rest
    )
    assert counters["extract"]["conflict_bytes"] == 0
