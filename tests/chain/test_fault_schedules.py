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
SEEDS = (3, 110, 130)
"""Two mirror points; updater and supervisor killed; a checkpoint torn between two."""
PLANE_SEEDS = (0, 9, 11)
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
    ("inner", "seeds"), [((), SEEDS), (("--plane",), PLANE_SEEDS)], ids=["chain", "plane"]
)
def test_each_schedule_ends_in_exact_named_loss_or_refused(
    inner: Sequence[str], seeds: Sequence[int]
) -> None:
    found = {one["seed"]: one for one in verdicts(*inner, "--only", *map(str, seeds))}
    assert set(found) == set(seeds)
    for one in found.values():
        assert one["verdict"] in ("exact", "named loss", "refused"), one
