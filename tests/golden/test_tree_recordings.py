"""Recorded jobs of the lab whose all-reduces went by trees over two hosts of several GPUs, of one
NIC or two each, alone or in turns with NVLS trees, and the trainers' account."""

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
BESIDE = ("beside-buffers", "beside-metric")
"""Buffers are broadcast round the ring before each forward, and a script's own number goes by the
trees. Recordings of an own script, whose steps were not written down."""
NAMES = sorted({path.stem for path in DATA.glob("*.json")} - {*BESIDE})
LEAST_BYTES = 100
"""Of gradients: of the script's own number the wire shows no end."""


def truth_of(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return told


def test_they_are_there() -> None:
    """In `two-ports-turns` neither the numbers of both ports' queue pairs nor the first use of each
    are in the order of channels: ports by turns are."""
    assert {"two-ports", "two-ports-turns", "two-ports-turns-two-channels"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_each_sum_is_told(name: str) -> None:
    tape = read_capture_files([DATA / f"{name}.pcapng"])
    found = read_stream(tape.flows, tape.messages)
    wanted = [
        (one["algorithm"].lower().replace("_", ""), one["sha256"])
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


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("stated", [False, True])
def test_what_comes_beside_them_takes_no_place_of_theirs(name: str, stated: bool) -> None:
    """Also where the model is stated, and all is read once more."""
    words = ["analyze", str(DATA / f"{name}.pcapng"), "--json"]
    words += ["--job", str(DATA / f"{name}.toml")] * stated
    done = preloaded.run(
        words, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [job["learned"] for job in said["jobs"]] == [True]
    read = said["collectives"]
    wanted = [
        one["sha256"]
        for one in truth_of(name)["collectives"]
        if one["kind"] == "all_reduce" and one["bytes"] > LEAST_BYTES
    ]
    told = [one for one in read if one["meaning"] == "gradient bucket"]
    assert [one["sha256"] for one in told] == wanted
    assert sum(one["meaning"] == "buffers" for one in read) >= 2 * (len(wanted) - 1)


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
