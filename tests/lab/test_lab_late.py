"""`flowcheck lab train` where FlowCheck is not there all the time: it joins, or joins again.

The judge is the trainer, by its own digests after every step; its own checkpoints are the bases.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from test_lab_train import train

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(300),
]
SLOW = ("--accumulate", "24")
"""Steps take long enough for services to start meanwhile."""


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--join-at", "6", "--steps", "140"], ["--clip", "1"]),
        (["--join-at", "6", "--steps", "140", "--protocol", "Simple"], ["--bucket-mb", "0.05"]),
        (["--leave-at", "6", "--join-at", "9", "--steps", "160", "--protocol", "LL128"], []),
        (["--join-at", "6", "--steps", "140", "--save-every", "10"], ["--clip", "1"]),
        (["--gap-at", "15", "--steps", "120", "--protocol", "Simple"], ["--clip", "1"]),
        (["--gap-at", "10", "--steps", "60", "--hosts", "3"], ["--metric-every", "4"]),
    ],
    ids=["new", "new-buckets", "back", "watched", "gap", "gap-three"],
)
def test_followed_on_a_checkpoint_of_the_trainers(
    tmp_path: Path, options: list[str], script: list[str]
) -> None:
    found = train(tmp_path / "out", f"t{os.getpid()}", options, [*SLOW, *script])
    [base] = found["bases"]
    comparison = found["comparison"]
    assert (comparison["different"], comparison["missing"]) == ([], [])
    assert comparison["equal"] == found["steps"] - base + 1
    assert comparison["states"] == 4
    assert all(one["holds"] for one in found["statements"])
