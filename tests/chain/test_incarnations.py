"""A killed and relaunched job through the whole chain, every parameter against torch's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.chain import Command, sha256, torch_steps
from support.incarnations import JOB, Life, floats

from flowcheck.lab.synthetic_traffic.synthetic_job import write_pcap

KILLED_IN = 6
"""The first life ends in the middle of this step."""
JOB_FILE = """
digests = true
[[source]]
file = "replaced"
[optimizer]
name = "adamw"
learning_rate = 0.001
[replica]
keep_bytes = {keep_bytes}
"""


class Lives:
    """Two lives of a job as one capture, and what torch makes of their gradients."""

    def __init__(self, folder: Path, resumed_from: int, *, same_qps: bool = False) -> None:
        first = Life(JOB)
        told = first.generate()
        stop = first.starts[KILLED_IN - 1] + 7
        gradients = [floats(g) for g in told.gradients]
        self.first = torch_steps(floats(told.weights), gradients[: KILLED_IN - 1], "adamw", lr=1e-3)
        at = self.first[resumed_from - 1] if resumed_from else floats(told.weights)
        second = Life(replace(JOB, seed=1), at, number=1, same_qps=same_qps)
        later = [floats(g) for g in second.generate().gradients]
        self.wanted = torch_steps(
            floats(told.weights), gradients[:resumed_from] + later, "adamw", lr=1e-3
        )
        self.capture = folder / "lives.pcap"
        frames = first.frames_of(stop=stop) + second.frames_of()
        write_pcap(self.capture, frames)
        self.job = folder / "job.toml"
        self.job.write_text(JOB_FILE.format(keep_bytes=1 << 22))
        self.run = folder / "run"

    def command(self) -> Command:
        return Command(
            "replay", self.capture, "--job", self.job, "--json", "--source", "file",
            "--run", self.run, "--out", self.run.parent / "out",
        )  # fmt: skip


def judged(result: dict[str, Any], lives: Lives) -> None:
    assert result["steps"] == result["complete_steps"] == len(lives.wanted)
    assert [s["step"] for s in result["digests"]] == list(range(1, len(lives.wanted) + 1))
    told = [s["parameters_sha256"] for s in result["digests"]]
    assert told == [sha256(p) for p in lives.wanted]
    assert result["lost"] is None


@pytest.mark.parametrize(
    ("resumed_from", "same_qps"),
    [
        pytest.param(KILLED_IN - 1, True, marks=pytest.mark.nightly),
        pytest.param(3, False, marks=pytest.mark.nightly),
        pytest.param(KILLED_IN - 1, False, marks=pytest.mark.nightly),
        (3, True),
        pytest.param(0, False, marks=pytest.mark.nightly),
        pytest.param(0, True, marks=pytest.mark.nightly),
    ],
)
def test_relaunched_job_goes_on_from_the_step_its_weights_are_of(
    tmp_path: Path, resumed_from: int, same_qps: bool
) -> None:
    lives = Lives(tmp_path, resumed_from, same_qps=same_qps)
    with lives.command() as command:
        judged(command.json(), lives)
    [audit] = [json.loads(line) for line in (lives.run / "audits.jsonl").read_text().splitlines()]
    assert (audit["step"], audit["passed"]) == (resumed_from, True)
    learned = lives.run / "learned"
    keys = [
        {
            flow["dest_qp"]
            for edge in json.loads(path.read_text())["edges"]
            for flow in edge["flows"]
        }
        for path in (learned / "1" / "job.json", learned / "job.json")
    ]
    assert (keys[0] == keys[1]) is same_qps
    assert np.fromfile(learned / "1" / "weights.bin", "<f4").size == lives.wanted[0].size
