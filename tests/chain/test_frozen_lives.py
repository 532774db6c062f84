"""A killed and relaunched job with frozen parameters and a buffer: what its lives broadcast of them
stands in the checkpoint, with the step it is of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chain import Command, sha256, torch_steps
from support.incarnations import JOB, Life, floats

import flowcheck
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, write_pcap
from flowcheck.replica.checkpoint_files.manifest import load_manifest

KILLED_IN, RESUMED = 6, 5
FACTORY = """
import torch
from torch import nn

def make():
    net = nn.Sequential(nn.Linear(8, 3), nn.Linear(32, 64), nn.Linear(64, 10))
    net[0].requires_grad_(False)
    net.register_buffer("mean", torch.zeros(5))
    return net
"""
JOB_FILE = """
digests = true
[[source]]
file = "replaced"
[optimizer]
name = "adamw"
learning_rate = 0.001
[model]
factory = "{factory}:make"
"""


class Frozen(Life):
    """Its weights are broadcast behind those of a frozen layer, and before a buffer."""

    def __init__(self, job: SyntheticJob, mean: float, **more: object) -> None:
        super().__init__(job, **more)  # type: ignore[arg-type]
        first = torch.linspace(-1, 1, 27).numpy()
        self.first, self.mean = first, np.full(5, mean, np.float32)

    def _broadcast(self, data: bytes) -> None:
        if data is self.truth.weights:
            data = self.first.tobytes() + data + self.mean.tobytes()
        super()._broadcast(data)


@pytest.mark.nightly
def test_what_each_life_broadcast_stands_in_the_checkpoint(tmp_path: Path) -> None:
    first = Frozen(JOB, 0.5)
    told = first.generate()
    gradients = [floats(g) for g in told.gradients]
    at = torch_steps(floats(told.weights), gradients[: KILLED_IN - 1], "adamw", lr=1e-3)[-1]
    second = Frozen(replace(JOB, seed=1), 0.75, weights=at, number=1)
    later = [floats(g) for g in second.generate().gradients]
    wanted = torch_steps(floats(told.weights), gradients[:RESUMED] + later, "adamw", lr=1e-3)
    stop = first.starts[KILLED_IN - 1] + 7
    capture, job = tmp_path / "lives.pcap", tmp_path / "job.toml"
    write_pcap(capture, first.frames_of(stop=stop) + second.frames_of())
    (tmp_path / "net.py").write_text(FACTORY)
    job.write_text(JOB_FILE.format(factory=tmp_path / "net.py"))
    out = tmp_path / "out"
    words = ("replay", capture, "--job", job, "--json", "--source", "file", "--out", out)
    with Command(*words, "--run", tmp_path / "run") as command:
        result = command.json()
    assert [s["parameters_sha256"] for s in result["digests"]] == [sha256(p) for p in wanted]
    audit = json.loads((tmp_path / "run/audits.jsonl").read_text().splitlines()[0])
    assert (audit["step"], audit["passed"]) == (RESUMED, True)
    model = flowcheck.load(out)["model"]
    assert list(model)[:2] == ["mean", "0.weight"]
    frozen = torch.cat([model["0.weight"].flatten(), model["0.bias"]]).numpy()
    assert frozen.tobytes() == second.first.tobytes()
    assert model["mean"].numpy().tobytes() == second.mean.tobytes()
    assert load_manifest(out / f"step-{len(wanted)}").older == {"mean": RESUMED}
