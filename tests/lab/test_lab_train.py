"""`flowcheck lab train` as a user starts it: followed, killed, given back, resumed, compared.

The judge is the trainer: its own digests after every step, in a file the services cannot see, and
its own runs that were stopped by its save, or never.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.free import free_port

from flowcheck.lab.cluster import namespaces
from flowcheck.lab.run.compare import Digests, trainer_digests
from flowcheck.lab.run.plan import GPT

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.timeout(500),
]
SMALL = ("--layers", "2", "--width", "64", "--heads", "2", "--context", "32")
LIMIT_S = 450


def train(out: Path, name: str, options: list[str], script: list[str]) -> dict[str, Any]:
    """What the run says as JSON; everything it made is gone."""
    command = [sys.executable, "-m", "flowcheck", "lab", "train", "--json"]
    command += ["--name", name, "--out", str(out), *options, "--", *SMALL, *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert namespaces.existing(f"fcl-{name}-") == []
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def never_stopped(folder: Path, script: list[str]) -> dict[int, Digests]:
    """The same job over gloo, on this machine: what two ranks sum is the same whoever sums it."""
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    told |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [*script, "--out", str(folder), "--digests", str(folder / "gloo.jsonl")]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(GPT), "--backend", "gloo", *words],
            env=os.environ | told | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(LIMIT_S) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return trainer_digests(folder / "gloo.jsonl")


@pytest.mark.parametrize(
    "controls",
    [pytest.param(True, marks=pytest.mark.nightly, id="controls"), pytest.param(False, id="gloo")],
)
def test_killed_job_goes_on_as_if_nothing_had_happened(tmp_path: Path, controls: bool) -> None:
    """Controls: the lab's own other runs, one of them stopped by the trainer's save."""
    script = ["--clip", "1", "--accumulate", "2", "--metric-every", "3"]
    options = ["--steps", "7", "--kill-at", "3"]
    if not controls:
        options.append("--no-control")
    found = train(tmp_path / "out", f"t{os.getpid()}", options, script)
    comparison = found["comparison"]
    assert (comparison["different"], comparison["missing"]) == ([], [])
    assert comparison["equal"] >= 6
    assert 0 <= found["killed_at"] - found["restored_step"] + 1 <= 2
    if controls:
        assert found["final"] == found["control"] == found["unbroken"]
    unbroken = never_stopped(tmp_path, [*SMALL, "--steps", "7", *script])
    assert found["final"] == unbroken[7]
    assert all(one["holds"] for one in found["statements"])
    told = (tmp_path / "out/trainers/digests.jsonl").read_text().splitlines()
    assert max(json.loads(line)["step"] for line in told) == 7


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "settings", "script"),
    [
        (
            ["--protocol", "Simple"],
            {"QPS_PER_CONNECTION": "4"},
            ["--metric-every", "3"],
        ),
        (["--hosts", "3", "--protocol", "LL128"], {"QPS_PER_CONNECTION": "2"}, ["--clip", "1"]),
        (["--nccl", "2.19"], {"QPS_PER_CONNECTION": "3"}, ["--metric-every", "3"]),
        (
            ["--protocol", "LL128"],
            {"QPS_PER_CONNECTION": "2", "SPLIT_DATA_ON_QPS": "1"},
            ["--clip", "1"],
        ),
    ],
    ids=["turns-simple", "turns-ll128", "split", "split-ll128"],
)
def test_connections_of_several_queue_pairs(
    options: list[str],
    settings: dict[str, str],
    script: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"NCCL_IB_{name}", value)
    found = train(
        tmp_path / "out",
        f"t{os.getpid()}",
        [*options, "--steps", "18", "--kill-at", "5", "--no-control"],
        script,
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--hosts", "3", "--switch", "ovs"], ["--accumulate", "2", "--sync-each"]),
        (["--switch", "ovs", "--erspan"], ["--clip", "1"]),
        (["--hosts", "4", "--protocol", "Simple"], ["--clip", "1"]),
        (["--hosts", "8", "--mirror", "p3:both"], ["--clip", "1"]),
        (["--protocol", "LL128", "--mtu", "9000", "--loss", "0.001"], ["--sgd"]),
    ],
    ids=["ovs", "erspan", "simple", "eight", "loss"],
)
def test_other_clusters_and_habits(tmp_path: Path, options: list[str], script: list[str]) -> None:
    found = train(
        tmp_path / "out",
        f"t{os.getpid()}",
        [*options, "--steps", "10", "--kill-at", "5", "--no-control"],
        script,
    )
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])
