"""Recorded jobs of the lab whose all-reduces went by NVLS trees, and the trainers' account."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import preloaded
from support.recorded import assert_trainers_bits

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.learn import read_stream

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data" / "nvls"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


def truth_of(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return told


def test_they_are_there() -> None:
    assert len(NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_each_sum_is_told(name: str) -> None:
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    found = read_stream(tape.flows, tape.messages)
    wanted = [
        each["sha256"]
        for each in truth_of(name)["collectives"]
        if each["algorithm"] == "NVLS_TREE" and each["bytes"] > 4
    ]
    told = [one.sha256 for one in found.collectives if one.algorithm is Algorithm.NVLS_TREE]
    assert wanted and told == wanted
    assert found.weights is not None and found.weights.complete


@pytest.mark.parametrize("name", NAMES)
def test_while_it_goes_on_the_job_is_told_and_is_the_one_of_the_end(name: str) -> None:
    """In `two-hosts` queue pair numbers of the hosts' two GPUs are not in the order of channels."""
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    job = read_stream(tape.flows, tape.messages).job
    assert job is not None
    for percent in range(50, 100, 10):
        begun = tape.messages[: len(tape.messages) * percent // 100]
        found = read_stream(tape.flows, begun, ended=False, hasty=True, results=False)
        assert found.job is not None, percent
        assert found.job.buckets == job.buckets
        assert found.job.edges == job.edges


@pytest.mark.parametrize("name", NAMES)
def test_every_step_has_the_trainers_bits(name: str) -> None:
    words = ["replay", str(DATA / f"{name}.pcapng"), "--job", str(DATA / f"{name}.toml")]
    done = preloaded.run(
        [*words, "--digests", "--json", "--source", "file"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert assert_trainers_bits(told, truth_of(name)) == {1, 2, 3, 4}
