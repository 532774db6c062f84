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
from support.wireshark import tshark
from unit.test_lab_nvls import TREES, messages

pytestmark = [
    pytest.mark.lab,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
    pytest.mark.skipif(shutil.which("tcpdump") is None, reason="no tcpdump command"),
    pytest.mark.timeout(500),
]


@pytest.mark.parametrize(
    "more", [["--hosts", "2"], ["--hosts", "3", "--algo", "Tree", "--no-control"]]
)
def test_a_job_of_two_gpus_a_host_is_followed_killed_and_resumed(
    more: list[str], tmp_path: Path
) -> None:
    options = ["--gpus-per-host", "2", "--steps", "7", "--kill-at", "3", *more]
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


def sizes_sent(capture: Path) -> dict[tuple[str, str, str], list[int]]:
    """{(source, destination, QP): sizes of its messages}, as immediates tell them since 2.29."""
    found: dict[tuple[str, str, str], list[int]] = {}
    fields = ("ip.src", "ip.dst", "infiniband.bth.destqp", "infiniband.immdt")
    for source, destination, qp, immediate in tshark(capture, *fields, keep="infiniband.immdt"):
        end = source.split(".")[3], destination.split(".")[3], qp
        found.setdefault(end, []).append(int(immediate.split(",")[0], 16))
    return found


def test_frames_of_nvls_trees_have_nccls_sizes_on_every_rail(tmp_path: Path) -> None:
    """Both ways of every port of all hosts; judged by tshark and by the partition as the test of
    messages has it."""
    hosts, steps, channels = 3, 2, 2
    mirrors = [word for port in range(2 * hosts) for word in ("--mirror", f"p{port}:rx")]
    code, _, told = flowcheck(
        *("lab", "record", "--name", f"g{os.getpid()}", "--out", tmp_path / "job", *mirrors),
        *("--hosts", str(hosts), "--gpus-per-host", "2", "--nics-per-host", "2"),
        *("--algorithm", "NVLSTree", "--channels", str(channels), "--steps", str(steps)),
        *("--", *SMALL),
    )
    assert code == 0, told
    truth = json.loads((tmp_path / "job.json").read_text())
    summed = [one for one in truth["collectives"] if one["algorithm"] == "NVLS_TREE"]
    assert len(summed) >= steps and all(isinstance(one["sha256"], str) for one in summed)
    (count,) = {one["count"] for one in summed}
    streams = sizes_sent(tmp_path / "job.pcapng")
    for (channel, head), spans in messages(22900, count, 4, channels, 2, hosts).items():
        sizes = [elements * 4 for _, elements in spans]
        edges = [(a, b) for a, below in TREES[hosts][channel].items() for b in below]
        for parent, child in edges:
            ends = [str(host * 2 + head + 1) for host in (parent, child)]
            for way in (tuple(ends), tuple(ends[::-1])):
                sent = [every for end, every in streams.items() if end[:2] == way]
                found = [[size for size in every if size in sizes] for every in sent]
                assert sizes * steps in found, (channel, head, way)
