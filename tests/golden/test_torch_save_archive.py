"""Recorded runs of the lab that come with the project: analyze and replay against their truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import preloaded
from support.recorded import assert_trainers_bits

from flowcheck.findings.catalog.step_arithmetic import SQUARE_ROOTS
from flowcheck.ops.analysis.analyze_command import run

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "tests" / "data"
NAMES = sorted(path.stem for path in DATA.glob("*.pcapng"))
WHOLE = ["three-ranks-simple", "two-ranks-ll", "two-ranks-metric"]
LINE_BYTES = 8
"""Of a collective that fills no line the wire does not tell the size."""
BY_NIGHT = ("two-ranks-metric", "three-ranks-simple", "two-ranks-ll")
"""Their steps take a dozen seconds each, and are of the kinds that the others show."""


def truth_of(name: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return truth


def analyzed(name: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    run([DATA / f"{name}.pcapng"], as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["frames"]["total"] == truth_of(name)["frames"]
    found: list[dict[str, Any]] = told["collectives"]
    return found


def replayed(name: str) -> tuple[int, dict[str, Any]]:
    """Exit code and result of `flowcheck replay` with the job file beside the capture."""
    words = ["replay", str(DATA / f"{name}.pcapng"), "--job", str(DATA / f"{name}.toml")]
    words += ["--digests", "--json", "--source", "file"]
    done = preloaded.run(
        words,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_there_are_recordings() -> None:
    assert set(WHOLE) < set(NAMES)


@pytest.mark.parametrize("name", WHOLE)
def test_analyze_finds_every_collective_with_its_hash(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, truth = analyzed(name, capsys), truth_of(name)["collectives"]
    assert [one["kind"] for one in found] == [one["kind"] for one in truth]
    for one, true in zip(found, truth, strict=True):
        assert (one["protocol"].upper(), one["channels"]) == (true["protocol"], true["channels"])
        each = true["ranks"] if true["kind"] == "all_gather" else 1
        if true["bytes"] * each > LINE_BYTES:
            assert (one["bytes"], one["sha256"]) == (true["bytes"] * each, true["sha256"])
        else:
            assert one["bytes"] <= LINE_BYTES
            assert one["sha256"] in (None, true["sha256"])


@pytest.mark.parametrize("name", NAMES)
def test_no_sum_has_a_hash_that_no_rank_got(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    true = {one["sha256"] for one in truth_of(name)["collectives"]}
    found = analyzed(name, capsys)
    assert {one["sha256"] for one in found if one["kind"] == "all_reduce"} <= true | {None}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.nightly) if n in BY_NIGHT else n for n in NAMES],
)
def test_replay_takes_the_steps_the_script_took(name: str) -> None:
    code, told = replayed(name)
    truth = truth_of(name)
    taken, every = assert_trainers_bits(told, truth), {one["step"] for one in truth["steps"]}
    if name in WHOLE:
        assert code == 0 and taken == every
    else:
        assert (code == 0) == (taken == every)
        assert told["why"] or taken == every
    rooted = any(one["code"] == SQUARE_ROOTS.code for one in told["assumed"])
    assert rooted == ("exp_avg_sq" in truth["steps"][0]["sha256"])
