"""Two jobs of the same shapes on one port, both killed and started again: each replica goes on with
its own, which the weights alone tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chain import Command, sha256, torch_steps
from support.incarnations import JOB, Life, floats

from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, write_pcap

KILLED_IN = 6
JOB_FILE = """
jobs = 2
digests = true
[optimizer]
name = "adamw"
learning_rate = 0.001
[replica]
keep_bytes = 4_194_304
"""


def two_lives(
    job: SyntheticJob, resumed_from: int | None
) -> tuple[list[WireFrame], list[np.ndarray]]:
    """The frames of both, and what torch makes of their gradients; None: it is not resumed."""
    first = Life(job)
    told = first.generate()
    stop = first.starts[KILLED_IN - 1] + 7
    gradients = [floats(g) for g in told.gradients]
    before = torch_steps(floats(told.weights), gradients[: KILLED_IN - 1], "adamw", lr=1e-3)
    frames = first.frames_of(stop=stop)
    if resumed_from is None:
        return frames, before
    second = Life(replace(job, seed=job.seed + 1), before[resumed_from - 1], number=1)
    later = [floats(g) for g in second.generate().gradients]
    wanted = torch_steps(floats(told.weights), gradients[:resumed_from] + later, "adamw", lr=1e-3)
    return frames + second.frames_of(), wanted


@pytest.mark.nightly
@pytest.mark.parametrize("resumed", [(5, 3), (3, 3), (None, 4), (4, None)])
def test_each_replica_goes_on_with_its_own_job(
    tmp_path: Path, resumed: tuple[int | None, int | None]
) -> None:
    jobs = (JOB, replace(JOB, seed=40, ip_version=4))
    made = [two_lives(job, step) for job, step in zip(jobs, resumed, strict=True)]
    frames = sorted((f for own, _ in made for f in own), key=lambda f: f.time_ns)
    write_pcap(tmp_path / "both.pcap", frames)
    (tmp_path / "job.toml").write_text(JOB_FILE)
    with Command(
        "replay", tmp_path / "both.pcap", "--job", tmp_path / "job.toml", "--json",
        "--source", "file", "--run", tmp_path / "run",
    ) as command:  # fmt: skip
        code, out, err = command.result()
    assert out, err
    told = json.loads(out)
    found = [
        [step["parameters_sha256"] for step in one["digests"]] for one in (told, *told["beside"])
    ]
    wanted = [[sha256(p) for p in after] for _, after in made]
    assert sorted(found) == sorted(wanted), (code, told["notes"], [len(f) for f in found])
