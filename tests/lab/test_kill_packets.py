"""Kill -9 of capture, parser and extractor at random instants: the same bytes in the end."""

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.chain import (
    Command,
    sha256,
    signal_stage,
    slowed,
    torch_steps,
    truth_steps,
    wait_until,
)

from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir

CAPTURE = "iter_40000_p2p_iter10"
LONGEST_S = 0.15
"""A stage is killed so long, at most, after it got on; some while they still start."""


@dataclass
class Victim:
    """A stage, when it is killed next, and what the kills hit."""

    stage: str
    position: str
    """The ring's word for how far it is."""
    due_s: float = 0.0
    killed: int | None = None
    """The process killed last."""
    reached: int = 0
    """Its position then."""
    kills: int = 0
    inside_message: int = 0
    """A message had begun and not ended in the frames the stage had finished."""


def message_is_open(flows: FlowTable) -> bool:
    """Whether the newest message misses packets that are still to come."""
    newest = flows.message(flows.newest_message)
    return newest is not None and newest.packets_seen < newest.packets


@pytest.mark.parametrize(
    ("kills", "frame_every_s"),
    [(4, 0.002), pytest.param(50, 0.016, marks=pytest.mark.nightly)],
)
def test_kills_of_capture_parser_and_extractor_cost_no_byte(
    captures: Path, truth: Path, tmp_path: Path, kills: int, frame_every_s: float
) -> None:
    slow = tmp_path / "slow.pcap"
    frames = slowed(captures / f"{CAPTURE}.pcapng", slow, frame_every_s=frame_every_s)
    job = tmp_path / "job.toml"
    job.write_text(
        '[[source]]\nfile = "replaced"\n[ring]\nslots = 64\n[staging]\nsize_bytes = 8_388_608\n'
        '[optimizer]\nname = "adamw"\nlearning_rate = 0.001\n'
    )
    run = RunDir(tmp_path / "run")
    dice = random.Random(20)
    victims = [
        Victim("capture-0", "head"), Victim("parse-0", "parsed"), Victim("extract", "tail")
    ]  # fmt: skip
    with ExitStack() as stack:
        command = stack.enter_context(
            Command(
                "replay", slow, "--source", "file", "--speed", "1", "--job", job,
                "--run", run.root, "--digests", "--json",
            )
        )  # fmt: skip
        wait_until(lambda: "capture-0" in run.stage_pids(), 60, "the chain is up")
        ring = stack.enter_context(FrameRing.open(run.ring(0)))
        flows = stack.enter_context(FlowTable.open(run.flows(0)))
        wait_until(lambda: ring.tail > 0, 60, "frames go through")
        while ring.source_end is None and command.process.poll() is None:
            for victim in victims:
                if victim.kills < kills and is_due(victim, run, ring, dice):
                    kill(victim, run, ring, flows)
            time.sleep(0.003)
        result = command.json()
    print([(v.stage, v.kills, v.inside_message) for v in victims])
    for victim in victims:
        assert victim.kills == kills, victim
    assert sum(victim.inside_message for victim in victims) >= max(1, 3 * kills // 10)
    assert result["restarts"] == 3 * kills
    assert result["captured_frames"] == result["frames"] == frames
    assert result["steps"] == result["complete_steps"] == 20
    weights, gradients = truth_steps(truth, CAPTURE)
    wanted = torch_steps(weights, gradients, "adamw", lr=0.001)
    assert [s["gradient_sha256"] for s in result["digests"]] == [sha256(g) for g in gradients]
    assert [s["parameters_sha256"] for s in result["digests"]] == [sha256(p) for p in wanted]


def is_due(victim: Victim, run: RunDir, ring: FrameRing, dice: random.Random) -> bool:
    """Whether to kill now. The instant is drawn as soon as the new process got on, or, now and
    then, while it still starts."""
    if not victim.due_s:
        pid = run.stage_pids().get(victim.stage)
        if pid is None or pid == victim.killed:
            return False
        starting = dice.random() < 0.002  # asked some hundred times meanwhile
        if starting or getattr(ring, victim.position) > victim.reached:
            victim.due_s = time.monotonic() + dice.uniform(0.0, LONGEST_S)
    return bool(victim.due_s) and time.monotonic() >= victim.due_s


def kill(victim: Victim, run: RunDir, ring: FrameRing, flows: FlowTable) -> None:
    """One kill, and at once what it interrupted."""
    victim.killed = signal_stage(run, victim.stage)
    victim.reached = getattr(ring, victim.position)
    victim.inside_message += message_is_open(flows)
    victim.due_s = 0.0
    victim.kills += 1
