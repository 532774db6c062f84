"""What the jobs of the lab put on the wire, read by tshark and by `flowcheck analyze`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.chain import analyzed
from support.hosts import ended_well, entry_points, hosts, lines_of
from support.wireshark import tshark

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]

SUM = "all_reduce"

LINEAR = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("roce")
model = DistributedDataParallel(torch.nn.Linear(5000, 1, bias=False))
for step in range(3):
    model(torch.randn(4, 5000)).mean().backward()
dist.destroy_process_group()
"""


BUCKETS = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
torch.manual_seed(1)
layers = torch.nn.Linear(301, 203), torch.nn.ReLU(), torch.nn.Linear(203, 57)
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    seed = torch.Generator().manual_seed(step * 10 + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(4, 301, generator=seed)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entry_points(tmp_path_factory.mktemp("entry"))


def test_messages_on_the_wire_equal_those_of_the_real_capture(entry: Path, tmp_path: Path) -> None:
    """DDP of Linear(5000, 1), NCCL 2.19, one channel, LL: sizes as captured from ConnectX NICs."""
    settings = {"FLOWCHECK_LAB_NCCL": "2.19", "NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "1"}
    with hosts(2, entry) as pair, pair.capture(0, tmp_path / "wire.pcap"):
        ended_well(pair.run(LINEAR, **settings))
    writes = tshark(
        tmp_path / "wire.pcap",
        *("ip.src", "infiniband.reth.dmalen", "infiniband.bth.opcode"),
        keep="infiniband.bth.opcode == 6 || infiniband.bth.opcode == 10 "
        "|| infiniband.bth.opcode == 11",
    )
    # Clear-to-send is a plain write of 32 bytes in this release.
    data = [(src, int(size)) for src, size, opcode in writes if (size, opcode) != ("32", "10")]
    sent = {host: [size for src, size in data if src == f"10.78.0.{host}"] for host in (1, 2)}
    assert sent[1] == [16, 64, 40000, 15424, 24576, 16, 16, *[15424, 24576] * 2]
    assert sent[2] == [16, *[24576, 15424] * 3]
    assert tshark(tmp_path / "wire.pcap", "frame.number", keep="_ws.malformed") == []


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["LL128", "Simple"])
def test_frames_of_every_protocol_are_whole(entry: Path, tmp_path: Path, protocol: str) -> None:
    capture = tmp_path / "wire.pcap"
    with hosts(2, entry) as pair, pair.capture(0, capture):
        ended_well(pair.run(BUCKETS, NCCL_PROTO=protocol))
    assert tshark(capture, "frame.number", keep="_ws.malformed") == []
    # RETH lengths of whole messages add up to what LL128 lines or plain elements need.
    rows = tshark(capture, "ip.src", "infiniband.reth.dmalen", keep="infiniband.immdt || "
                  "infiniband.bth.opcode == 6")  # fmt: skip
    sizes = {int(size) for _, size in rows if size}
    assert sizes
    if protocol == "LL128":
        assert all(size % 2048 == 0 for size in sizes)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("count", "version", "channels"), [(2, "2.19", "2"), (3, "2.23", "1"), (4, "2.29", "2")]
)
def test_analyze_finds_the_sums_the_trainers_got(
    entry: Path, tmp_path: Path, count: int, version: str, channels: str
) -> None:
    settings = {
        "NCCL_PROTO": "LL",
        "FLOWCHECK_LAB_NCCL": version,
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
        "FLOWCHECK_LAB_TRUTH": str(tmp_path),
    }
    capture = tmp_path / "wire.pcap"
    with hosts(count, entry) as made, made.capture(0, capture):
        ended_well(made.run(BUCKETS, **settings))
    truth = [one["sha256"] for one in lines_of(tmp_path / "rank0.jsonl") if one["kind"] == SUM]
    found = [one for one in analyzed(capture)["collectives"] if one["kind"] == SUM]
    assert len(truth) == 4
    assert [one["sha256"] for one in found] == truth
