"""Buffers that every forward broadcasts are given back with the step they are of, whatever stage of
the chain is killed on the way."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chain import Command, signal_stage, slowed, wait_until
from support.incarnations import JOB, Life

import flowcheck
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, write_pcap
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.stages.run_directory.run_dir import RunDir

FACTORY = """
import torch
from torch import nn

def make():
    net = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 10))
    net.register_buffer("mean", torch.zeros(6))
    net.register_buffer("count", torch.zeros((), dtype=torch.int64))
    return net
"""
JOB_FILE = """
[[source]]
file = "replaced"
[optimizer]
name = "adamw"
learning_rate = 0.001
[model]
factory = "{factory}:make"
"""
FRAME_EVERY_S = 0.004


class Norm(Life):
    """Rank 0's statistics are broadcast before each of its steps."""

    def __init__(self, job: SyntheticJob) -> None:
        super().__init__(job)
        self.after = [self._made(0)]
        """[step] (mean, count)"""

    def _made(self, step: int) -> tuple[np.ndarray, int]:
        return np.random.default_rng(step).standard_normal(6).astype(np.float32), step

    def _startup_broadcasts(self) -> None:
        super()._startup_broadcasts()
        super()._broadcast(struct.pack("<q", 0))

    def _broadcast(self, data: bytes) -> None:
        super()._broadcast(data + self.after[0][0].tobytes() * (data is self.truth.weights))

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        self.forward()
        super()._step(buckets)
        self.after.append(self._made(len(self.after)))

    def forward(self) -> None:
        mean, count = self.after[-1]
        super()._broadcast(mean.tobytes())
        super()._broadcast(struct.pack("<q", count))


@pytest.mark.nightly
@pytest.mark.parametrize("forwards", [0, 1])
def test_buffers_are_those_of_the_step_as_soon_as_the_next_forward_came(
    tmp_path: Path, forwards: int
) -> None:
    life = Norm(JOB)
    life.generate()
    for _ in range(forwards):
        life.forward()
    whole, capture = tmp_path / "whole.pcap", tmp_path / "slow.pcap"
    write_pcap(whole, life.frames_of())
    slowed(whole, capture, frame_every_s=FRAME_EVERY_S, behind=life.starts[2])
    job, factory = tmp_path / "job.toml", tmp_path / "net.py"
    factory.write_text(FACTORY)
    job.write_text(JOB_FILE.format(factory=factory))
    out, run = tmp_path / "out", RunDir(tmp_path / "run")
    words = ("replay", capture, "--job", job, "--json", "--source", "file", "--out", out)
    with Command(*words, "--speed", "1", "--run", run.root) as command:
        wait_until(run.steps.exists, 60, "a first step")
        for stage in ("update", "extract", "update", "extract"):
            signal_stage(run, stage)
            time.sleep(0.2)
        result = command.json()
    assert result["restarts"] >= 2 and result["steps"] == JOB.steps
    model, step = flowcheck.load(out)["model"], JOB.steps
    mean, count = life.after[step - 1 + forwards]
    assert torch.equal(model["mean"], torch.from_numpy(mean))
    assert model["count"].item() == count
    older = load_manifest(out / f"step-{step}").older
    assert older == ({} if forwards else {"mean": step - 1, "count": step - 1})
