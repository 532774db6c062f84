"""A few schedules of faults, each from a fixed seed; scripts/nightly runs a thousand others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
SEEDS = (110, 3, 130)
"""Updater and supervisor killed; two mirror points; a checkpoint torn between two."""
PLANE_SEEDS = (9, 0, 11)
LIMIT_S = 110


def verdicts(*words: str) -> list[dict[str, Any]]:
    """What `scripts/faults` says of each schedule, its exit code being right for it."""
    done = subprocess.run(
        [sys.executable, "-m", "support.faults", *words, "--json", "--jobs", "1"],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == any(one["verdict"] == "FAILED" for one in found), done.stderr
    return found


@pytest.mark.parametrize(
    ("inner", "seeds"),
    [
        pytest.param((), SEEDS[:1], id="chain"),
        pytest.param(("--plane",), PLANE_SEEDS[:1], id="plane"),
        pytest.param((), SEEDS[1:], id="more of the chain", marks=pytest.mark.nightly),
        pytest.param(("--plane",), PLANE_SEEDS[1:], id="more planes", marks=pytest.mark.nightly),
    ],
)
def test_each_schedule_ends_in_exact_named_loss_or_refused(
    inner: Sequence[str], seeds: Sequence[int]
) -> None:
    found = {one["seed"]: one for one in verdicts(*inner, "--only", *map(str, seeds))}
    assert set(found) == set(seeds)
    for one in found.values():
        assert one["verdict"] in ("exact", "named loss", "refused"), one
