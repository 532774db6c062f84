"""libFuzzer on what reads captured bytes: one target in the suite, all by night, FLOWCHECK_FUZZ_S
each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.real_captures import captures_folder

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SECONDS = int(os.environ.get("FLOWCHECK_FUZZ_S", "2"))
TARGETS = ("place", "transport", "plan", "pcap")
"""The first by day: it puts whole frames together, by all that the others read but files."""


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS + 240)
@pytest.mark.parametrize("targets", [TARGETS[:1], pytest.param(TARGETS, marks=pytest.mark.nightly)])
def test_no_fuzzer_finds_anything(tmp_path: Path, targets: Sequence[str]) -> None:
    if not shutil.which("clang"):
        pytest.skip("clang, which brings libFuzzer, is not installed")
    folder = captures_folder()
    seeds = sorted(folder.glob("captures/*.pcapng"))[:2] if folder else []
    seeds += sorted(folder.glob("captures/rxe/v4_*.pcap"))[:8] if folder else []
    done = subprocess.run(
        [
            str(REPOSITORY / "scripts/fuzz"),
            *("--target", " ".join(targets)),
            str(len(targets) * SECONDS),
            *map(str, seeds),
        ],
        env={**os.environ, "FLOWCHECK_FUZZ_DIR": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert done.stderr.count("stat::number_of_executed_units") == len(targets)
