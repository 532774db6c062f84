"""NCCL's trees among real trainers: followed, killed, given back, resumed, as `flowcheck lab train`
does it; the judge is the trainers' own digests after every step."""

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
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"NCCL_ALGO": "Tree"}, ["--hosts", "4"]),
        (
            {"FLOWCHECK_LAB_TREE_BELOW": "100000"},
            ["--hosts", "4", "--mirror", "p1:both", "--protocol", "LL"],
        ),
        (
            {"NCCL_ALGO": "Tree"},
            ["--hosts", "5", "--mirror", "p2:both", "--protocol", "Simple", "--nccl", "2.21"],
        ),
        (
            {"FLOWCHECK_LAB_TREE_BELOW": "100000"},
            ["--hosts", "2", "--gpus-per-host", "2", "--channels", "2"],
        ),
    ],
    ids=["root", "mixed", "inner-simple", "two-hosts"],
)
def test_trees_are_followed(
    settings: dict[str, str], options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    found = train(
        tmp_path / "out",
        f"t{os.getpid()}",
        [*options, "--steps", "9", "--kill-at", "4", "--no-control"],
        ["--metric-every", "3"],
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])


ONE_LAYER = [
    "--layers",
    "1",
    "--width",
    "30",
    "--heads",
    "2",
    "--context",
    "16",
    "--bucket-mb",
    "0.035",
]
TURNS = ["--tree-below", "40000", "--nvls-from", "40000", "--nccl", "2.28"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["--algo", "Tree", "--channels", "4"], ["--metric-every", "3"]),
        ([*TURNS, "--channels", "4"], []),
        ([*TURNS, "--channels", "2"], []),
    ],
    ids=["trees", "turns", "turns-two-channels"],
)
def test_over_two_nics_a_host_a_killed_job_resumes_as_the_one_that_was_not(
    options: list[str], more: list[str], tmp_path: Path
) -> None:
    """Sums by trees over both ports, and by turns with NVLS trees: the first all-reduce and every
    second one are large. Each step is the trainers', and the end is that of the control run."""
    found = train(
        tmp_path / "out",
        f"p{os.getpid()}",
        [
            *("--hosts", "2", "--gpus-per-host", "2", "--nics-per-host", "2"),
            *(*options, "--steps", "9", "--kill-at", "4"),
        ],
        [*ONE_LAYER, *more],
    )
    assert found["comparison"]["equal"] == 9
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert len(found["statements"]) == 3 and all(one["holds"] for one in found["statements"])
