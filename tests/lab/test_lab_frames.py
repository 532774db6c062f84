"""The frames of the lab's transport, judged by tshark, scapy and our own decoder."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap
from support.chain import analyzed
from support.hosts import Hosts, hosts
from support.ports import Exchange
from support.talk import MIXED, TESTS, captured
from support.transport import parsed
from support.wireshark import rdma_messages, tshark

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no ip command"),
]

LAYOUTS = {
    21900: {"bytes": 32, "size": (8, 4), "rkey": 12, "nreqs": 16, "tag": 20, "idx": 24},
    22000: {"bytes": 64, "size": (8, 4), "rkey": 12, "nreqs": 20, "tag": 24, "idx": 32},
    22400: {"bytes": 64, "size": (8, 8), "rkey": 16, "nreqs": 32, "tag": 36, "idx": 40},
    23000: {"bytes": 64, "size": (8, 8), "rkey": 16, "nreqs": 48, "tag": 52, "idx": 56},
}
"""Where a clear-to-send entry has its fields, by the release that brought the layout."""


@pytest.fixture
def pair() -> Iterator[Hosts]:
    with hosts(2, TESTS) as made:
        yield made


def quiet(folder: Path, version: int, **settings: int) -> Exchange:
    """One connection each way; a timer too slow to repeat a frame."""
    settings = {"nccl_version": version, "timeout_ms": 5000, "traffic_class": 104, **settings}
    return Exchange(str(folder), [MIXED], settings=settings)


@pytest.mark.parametrize("version", LAYOUTS)
def test_frames_are_those_of_net_ib(pair: Hosts, tmp_path: Path, version: int) -> None:
    exchange = quiet(tmp_path, version)
    capture = captured(pair, exchange, tmp_path)
    frames = [bytes(frame) for frame in rdpcap(str(capture))]
    assert tshark(capture, "frame.number", keep="_ws.malformed || !infiniband") == []
    layout = LAYOUTS[version]
    for sender in (0, 1):
        own = bytes([10, 78, 0, sender + 1])
        messages = rdma_messages(frame for frame in frames if frame[26:30] == own)
        data = [one for one in messages if one.immediate is not None]
        entries = [one for one in messages if one.immediate is None]
        sent = [exchange.payload(sender, 0, number) for number in range(len(MIXED))]
        assert [one.payload for one in data] == sent
        assert [one.length for one in data] == MIXED
        order = "big" if version >= 22900 else "little"
        assert [int.from_bytes(one.immediate or b"", order) for one in data] == MIXED  # type: ignore[arg-type]
        for one in data:
            packets = max(1, -(-one.length // 4096))
            right = [0x06] + [0x07] * (packets - 2) + [0x09] if packets > 1 else [0x0B]
            assert one.opcodes == right
        check_clear_to_send(entries, layout, version, 1 - sender)
    check_grants(frames, layout)


def field(entry: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(entry[at : at + size], "little")


def check_clear_to_send(entries: list[Any], layout: Any, version: int, tag: int) -> None:
    """What a receiver writes for messages of `tag`, against the published layout."""
    stride = 256 if version < 22000 else 512
    assert len(entries) == len(MIXED)
    for number, one in enumerate(entries):
        assert one.opcodes == [0x0A]
        assert len(one.payload) == one.length == layout["bytes"]
        assert field(one.payload, layout["idx"], 8) == number + 1
        assert field(one.payload, *layout["size"]) == MIXED[number]
        assert field(one.payload, layout["nreqs"]) == 1
        assert field(one.payload, layout["tag"]) == tag
        assert one.va == entries[0].va + number * stride
        assert one.rkey == entries[0].rkey


def check_grants(frames: list[bytes], layout: Any) -> None:
    """Every message goes where the clear-to-send of its number says."""
    for sender in (0, 1):
        own, other = bytes([10, 78, 0, sender + 1]), bytes([10, 78, 0, 2 - sender])
        data = [m for m in rdma_messages(f for f in frames if f[26:30] == own) if m.immediate]
        grants = rdma_messages(f for f in frames if f[26:30] == other)
        grants = [one for one in grants if one.immediate is None]
        for message, grant in zip(data, grants, strict=True):
            assert message.va == field(grant.payload, 0, 8)
            assert message.rkey == field(grant.payload, layout["rkey"])


def source_port(one: int, other: int) -> int:
    """include/rdma/ib_verbs.h: rdma_calc_flow_label, then rdma_flow_label_to_udp_sport."""
    v = one * other
    v ^= v >> 20
    v ^= v >> 40
    label = v & 0xFFFFF
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | 0xC000


def test_headers_and_checksums(pair: Hosts, tmp_path: Path) -> None:
    capture = captured(pair, quiet(tmp_path, 22900), tmp_path)
    frames = [bytes(frame) for frame in rdpcap(str(capture))]
    next_psn: dict[int, int] = defaultdict(int)
    ports: dict[int, set[int]] = defaultdict(set)
    messages: Counter[int] = Counter()
    for frame in frames:
        again = Ether(frame)
        assert frame[-4:] == again[BTH].compute_icrc(bytes(again[BTH])[:-4])
        opcode, flags, key, qp, word = struct.unpack_from(">BBHII", frame, 42)
        assert (flags & 0xCF, key, frame[15], frame[6:12] != frame[:6]) == (0x40, 0xFFFF, 104, True)
        ports[struct.unpack_from(">H", frame, 34)[0]].add(qp)
        if opcode == 0x11:
            syndrome, msn = frame[54], int.from_bytes(frame[55:58], "big")
            assert syndrome == 0x1F
            assert msn <= max(messages.values())
        else:
            assert word & 0xFFFFFF == next_psn[qp]
            next_psn[qp] += 1
            messages[qp] += opcode in (0x09, 0x0A, 0x0B)
    assert all(len(qps) == 2 for qps in ports.values())
    assert all(source_port(*qps) == port for port, qps in ports.items())
    # Wireshark's own IPv4 checksum, and the decoder's verdict on every frame.
    rows = tshark(capture, "frame.number", keep="ip.checksum.status == 0")
    assert rows == []
    with parsed(tmp_path, frames) as run:
        verdicts = run.verdicts()
        assert set(verdicts) == {"write", "ack"}
        assert verdicts["write"] == sum(next_psn.values())


@pytest.mark.parametrize(("version", "empty_at"), [(22900, [256, 384]), (23000, [130, 130])])
def test_a_message_is_split_over_qps(
    pair: Hosts, tmp_path: Path, version: int, empty_at: list[int]
) -> None:
    """Shares of whole 128 bytes; each QP's write has the size of the whole message."""
    settings = {"qps_per_connection": 4, "split_data": 1, "nccl_version": version}
    exchange = Exchange(str(tmp_path), [[130, 70_001]], settings=settings)
    frames = [bytes(frame) for frame in rdpcap(str(captured(pair, exchange, tmp_path)))]
    messages = rdma_messages(f for f in frames if f[26:30] == bytes([10, 78, 0, 1]))
    data = [one for one in messages if one.immediate is not None]
    by_qp = sorted({one.dest_qp for one in data})
    small, large = ([m for qp in by_qp for m in data if m.dest_qp == qp][n::2] for n in (0, 1))
    assert {one.immediate for one in small} == {(130).to_bytes(4, "big")}
    starts = [one.va - small[0].va for one in small]
    assert starts == [0, 128, *empty_at]
    assert [one.length for one in small] == [128, 2, 0, 0]
    assert [one.va - large[0].va for one in large] == [0, 17_536, 35_072, 52_608]
    assert [one.length for one in large] == [17_536, 17_536, 17_536, 17_393]
    assert b"".join(one.payload for one in large) == exchange.payload(0, 0, 1)


def test_the_decoder_puts_messages_together_in_spite_of_retransmission(
    pair: Hosts, tmp_path: Path
) -> None:
    exchange = Exchange(str(tmp_path), [MIXED * 2], settings={"loss": 0.05, "reorder": 0.02})
    capture = captured(pair, exchange, tmp_path)
    frames = [bytes(frame) for frame in rdpcap(str(capture))]
    assert tshark(capture, "frame.number", keep="_ws.malformed || !infiniband") == []
    assert len(tshark(capture, "frame.number", keep="infiniband.aeth.syndrome == 96")) > 0
    sent = Counter(
        exchange.payload(sender, 0, number)
        for sender in (0, 1)
        for number in range(len(MIXED) * 2)
        if exchange.sizes_bytes[0][number] > 64
    )
    with parsed(tmp_path, frames) as run:
        assert set(run.verdicts()) <= {"write", "ack", "nak", "stale", "orphan"}
        found = Counter(bytes(data) for data, seen in run.reassembled().values() if all(seen))
    assert sent - found == Counter()
    verdicts = analyzed(capture)["frames"]
    assert verdicts["total"] == len(frames)
    assert verdicts["icrc_bad"] == verdicts["malformed"] == verdicts["roce_other"] == 0


def test_messages_of_several_qps_interleave(pair: Hosts, tmp_path: Path) -> None:
    """Large messages on two QPs share the wire packet by packet, as a NIC deals them."""
    exchange = Exchange(str(tmp_path), [[400_000] * 8] * 2, settings={"timeout_ms": 5000})
    rows = tshark(captured(pair, exchange, tmp_path), "ip.src", "infiniband.bth.destqp",
                  keep="infiniband.bth.opcode == 7")  # fmt: skip
    qps = [qp for source, qp in rows if source == "10.78.0.1"]
    changes = sum(one != other for one, other in itertools.pairwise(qps))
    assert set(Counter(qps).values()) == {8 * 96}
    assert changes > len(qps) / 8
