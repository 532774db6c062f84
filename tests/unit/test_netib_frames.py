"""The traffic generator's frames against tshark and scapy, its layouts against tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scapy.contrib.roce import BTH
from scapy.utils import PcapReader
from support.netib import Options, generate
from support.netib.layouts import PLACES
from support.netib.partition import Shape, plan
from support.netib.reduction import all_reduce
from support.wireshark import tshark

QUICK = ((40, 50), (40,))


@pytest.mark.parametrize("ipv6", [False, True])
def test_icrc_is_scapys(ipv6: bool, tmp_path: Path) -> None:
    options = Options(ipv6=ipv6, shapes=QUICK, steps=2, storage=3, cnps=True)
    with PcapReader(str(generate(options, tmp_path).files[0])) as packets:
        for packet in packets:
            assert bytes(packet[BTH])[-4:] == packet[BTH].compute_icrc(bytes(packet))


@pytest.mark.parametrize("wrap", ["", "vlan", "qinq", "erspan2", "erspan3", "gre", "vxlan"])
def test_tshark_reads_every_frame(wrap: str, tmp_path: Path) -> None:
    options = Options(
        ranks=3, channels=2, shapes=QUICK, steps=2, wrap=wrap, adaptive=True, version=(2, 30)
    )
    made = generate(options, tmp_path)
    rows = tshark(
        made.files[0],
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "_ws.malformed",
    )
    with PcapReader(str(made.files[0])) as packets:
        frames = [bytes(packet) for packet in packets]
    assert len(rows) == len(frames)
    numbers: dict[str, list[int]] = {}
    for opcode, qpn, psn, _ in rows:
        assert opcode, "not taken for RoCE"
        if 6 <= int(opcode) <= 11:
            numbers.setdefault(qpn, []).append(int(psn))
    for each in numbers.values():
        assert each == list(range(len(each)))


def test_frame_sizes_are_the_facts(tmp_path: Path) -> None:
    """Section 4.4: CTS 138 bytes with 64-byte entries, ACK 62, zero-length writes 78."""
    options = Options(ranks=2, version=(2, 30), shapes=((3,),), protocol="Simple")
    rows = tshark(generate(options, tmp_path).files[0], "frame.len", "infiniband.bth.opcode")
    sizes = {(int(opcode), int(length)) for length, opcode in rows}
    assert {(0x0A, 138), (0x11, 62), (0x0B, 78)} <= sizes


def test_ll128_places_are_the_table_of_the_facts() -> None:
    for k in range(4):
        for at in range(128):
            line = (k, at) if at < 120 else (4 + k, at - 8)
            assert PLACES[128 * k + at] == 128 * line[0] + line[1]
            assert PLACES[960 + 128 * k + at] == 128 * (line[0] + 8) + line[1]
        for at in range(112):
            assert PLACES[512 + 112 * k + at] == 128 * (4 + k) + at
            assert PLACES[1472 + 112 * k + at] == 128 * (12 + k) + at
    assert len(np.unique(PLACES)) == 1920


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ((2, 30), [65536] * 15 + [16963]),
        ((2, 23), [63488] * 15 + [47683]),
        ((2, 22), [62500] + [62504] * 14 + [62447]),
    ],
)
def test_parts_of_channels_are_the_facts_examples(
    version: tuple[int, int], parts: list[int]
) -> None:
    planned = plan(Shape("all_reduce", 1_000_003, 4, 4, 16, "Simple", version))
    found = [sum(n for loop in loops for _, n in loop) for loops in planned.values()]
    assert found == parts


@pytest.mark.parametrize("version", [(2, 19), (2, 21), (2, 23), (2, 26), (2, 30)])
@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast"])
def test_every_element_is_in_one_chunk(version: tuple[int, int], protocol: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        count, ranks = int(rng.integers(1, 3_000_000)), int(rng.integers(2, 17))
        each = int(rng.choice([2, 4])) if kind == "all_reduce" else 1
        shape = Shape(kind, count, each, ranks, int(rng.integers(1, 17)), protocol, version)
        chunks = [chunk for loops in plan(shape).values() for loop in loops for chunk in loop]
        end = 0
        for at, length in sorted(chunk for chunk in chunks if chunk[1]):
            assert at == end
            end += length
        assert end == count


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_ranks_store_is_near_the_exact_sum(protocol: str, dtype: str) -> None:
    options = Options(ranks=5, channels=3, protocol=protocol)
    parts = [torch.randn(5000).to(getattr(torch, dtype)) for _ in range(5)]
    made = torch.frombuffer(
        bytearray(all_reduce(options, parts).about.result), dtype=parts[0].dtype
    )
    exact = sum(part.double() for part in parts)
    assert torch.allclose(made.double(), exact, atol=16 * torch.finfo(parts[0].dtype).eps)
