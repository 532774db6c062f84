"""Hosts of several GPUs in the lab: real trainers, several a host; the judge is the trainers' own
digests, and the addresses in what was captured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from lab.test_lab_train import SMALL, train
from support.chain import flowcheck

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="no tcpdump command"),
    pytest.mark.timeout(500),
]


def test_a_job_of_two_gpus_a_host_is_followed_killed_and_resumed(tmp_path: Path) -> None:
    options = ["--hosts", "2", "--gpus-per-host", "2", "--steps", "7", "--kill-at", "3"]
    found = train(tmp_path / "out", f"g{os.getpid()}", options, [])
    assert found["comparison"]["missing"] == found["comparison"]["different"] == []
    assert all(one["holds"] for one in found["statements"])


def conversations(capture: Path) -> Counter[tuple[str, str]]:
    """(source, destination) of the RoCE frames, addresses' last bytes."""
    words = ["tcpdump", "-nr", str(capture), "udp", "port", "4791"]
    told = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    pairs = ((line.split()[2], line.split()[4]) for line in told.splitlines())
    return Counter((a.split(".")[3], b.split(".")[3]) for a, b in pairs)


@pytest.mark.parametrize(
    ("nics", "wanted"),
    [(1, {("1", "2"), ("2", "1")}), (2, {("1", "3"), ("3", "1"), ("2", "4"), ("4", "2")})],
)
def test_only_what_goes_from_host_to_host_passes_the_ports(
    nics: int, wanted: set[tuple[str, str]], tmp_path: Path
) -> None:
    """Every port of both hosts is mirrored, so that nothing else is. With a NIC for each GPU rails
    are kept: a NIC talks to the one of its number."""
    mirrors = [word for port in range(2 * nics) for word in ("--mirror", f"p{port}:both")]
    code, _, told = flowcheck(
        *("lab", "record", "--name", f"g{os.getpid()}", "--out", tmp_path / "job", *mirrors),
        *("--gpus-per-host", "2", "--nics-per-host", str(nics), "--channels", "2"),
        *("--steps", "2", "--", *SMALL),
    )
    assert code == 0, told
    assert set(conversations(tmp_path / "job.pcapng")) == wanted
    truth = json.loads((tmp_path / "job.json").read_text())
    summed = [one for one in truth["collectives"] if one["kind"] == "all_reduce"]
    # One digest: the four ranks' results are equal.
    assert summed and all(isinstance(one["sha256"], str) for one in summed)
    assert {one["ranks"] for one in summed} == {4}
