"""`flowcheck lab train --jobs`: jobs beside each other behind one chain, killed together, each
given back its own newest step. The judge is each trainer, by its own digests after every step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from lab.test_lab_train import train

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(500),
]


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--kill-at", "6"], ["--clip", "1"]),
        (["--no-kill", "--protocol", "Simple"], ["--metric-every", "3"]),
    ],
    ids=["killed", "simple"],
)
def test_two_jobs_are_followed(options: list[str], script: list[str], tmp_path: Path) -> None:
    found = train(
        tmp_path / "out", f"t{os.getpid()}", ["--jobs", "2", "--steps", "12", *options], script
    )
    comparison = found["comparison"]
    assert (comparison["different"], comparison["missing"]) == ([], [])
    assert comparison["equal"] + len(found["untold"]) == 24
    assert all(one["holds"] for one in found["statements"])
