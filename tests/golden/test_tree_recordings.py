"""Recorded jobs of the lab whose all-reduces went by trees over two hosts of several GPUs, and the
trainers' account."""

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
DATA = REPOSITORY / "tests" / "data" / "trees"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))
LEAST_BYTES = 100
"""Of gradients: of the script's own number the wire shows no end."""


def truth_of(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return told


def test_they_are_there() -> None:
    assert len(NAMES) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_each_sum_is_told(name: str) -> None:
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    found = read_stream(tape.flows, tape.messages)
    wanted = [
        (one["algorithm"].lower(), one["sha256"])
        for one in truth_of(name)["collectives"]
        if one["kind"] == "all_reduce" and one["bytes"] > LEAST_BYTES
    ]
    told = [
        (str(one.algorithm), one.sha256)
        for one in found.collectives
        if one.kind == "all_reduce" and one.meaning
    ]
    assert told == wanted and str(Algorithm.TREE) in dict(wanted)
    assert found.weights is not None and found.weights.complete


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
