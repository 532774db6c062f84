"""The lab's traffic judged by tshark, scapy, torch and a capture of the real thing."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from support.wireshark import RdmaMessage, rdma_messages, tshark

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch

from flowcheck.lab.synthetic_traffic import ring_collectives
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
    write_pcap,
)

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, ACK = 6, 7, 8, 9, 10, 11, 17
SMALL = SyntheticJob(shapes=((60, 50), (50,), (7, 50)), steps=3)


def written(job: SyntheticJob, folder: Path) -> tuple[SyntheticTraffic, Path]:
    traffic = make_traffic(job)
    path = folder / "job.pcap"
    assert write_pcap(path, traffic.frames) == len(traffic.frames)
    return traffic, path


def messages(traffic: SyntheticTraffic, kind: str, sender: int | None = None) -> list[RdmaMessage]:
    return rdma_messages(
        wire.frame for wire in traffic.frames if wire.kind == kind and sender in (None, wire.sender)
    )


@pytest.mark.parametrize("ip_version", [4, 6])
@pytest.mark.parametrize("adaptive", [False, True])
def test_tshark_finds_nothing_malformed_and_every_frame_rc(
    ip_version: int, adaptive: bool, tmp_path: Path
) -> None:
    job = replace(SMALL, ip_version=ip_version, adaptive=adaptive)
    traffic, path = written(job, tmp_path)
    said = tshark(
        path, "_ws.expert.message", keep="_ws.malformed || _ws.expert.severity >= 6291456"
    )
    # RoCE over IPv6 has UDP checksum 0, also from real NICs; plain UDP may not.
    assert {text for row in said for text in row} <= {"Illegal checksum value (0)"}
    rows = tshark(path, "infiniband.bth.opcode", "ip.checksum.status", "udp.length", "udp.dstport")
    assert len(rows) == len(traffic.frames)
    assert {port for _, _, _, port in rows} == {"4791"}
    assert {int(row[0], 0) for row in rows} <= {FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, ACK}


@pytest.mark.parametrize("pmtu_bytes", [256, 1024, 4096])
def test_opcodes_psns_and_lengths_follow_the_infiniband_rules(
    pmtu_bytes: int, tmp_path: Path
) -> None:
    """IBTA volume 1, 9.4: First, Middle and Last hold whole MTUs, PSNs count packets from 0."""
    traffic, path = written(replace(SMALL, ranks=3, pmtu_bytes=pmtu_bytes), tmp_path)
    fields = ("infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.opcode")
    expected: dict[int, int] = {}
    for qp, psn, opcode in tshark(path, *fields, keep="infiniband.bth.opcode != 17"):
        flow = int(qp, 0)
        assert int(psn, 0) == expected.get(flow, 0), opcode
        expected[flow] = int(psn, 0) + 1
    seen = rdma_messages(wire.frame for wire in traffic.frames)
    for message in seen:
        assert len(message.payload) == message.length
        count = max(1, -(-message.length // pmtu_bytes))
        many = [FIRST] + [MIDDLE] * (count - 2)
        if message.immediate is None:
            assert message.opcodes == ([ONLY] if count == 1 else [*many, LAST])
        else:
            assert message.opcodes == ([ONLY_IMM] if count == 1 else [*many, LAST_IMM])
            assert int.from_bytes(message.immediate, "little") == message.length
    assert sum(len(message.opcodes) for message in seen) == sum(expected.values())


@pytest.mark.parametrize("ip_version", [4, 6])
def test_icrc_is_the_one_scapy_computes(ip_version: int) -> None:
    job = SyntheticJob(shapes=((33,), (2, 3)), steps=2, ip_version=ip_version, pmtu_bytes=256)
    for wire in make_traffic(job).frames:
        packet = Ether(wire.frame)
        assert packet[BTH].compute_icrc(wire.frame) == wire.frame[-4:]


def test_a_job_of_the_lab_equals_the_real_capture_message_by_message(truth: Path) -> None:
    """iter_40000_p2p: DDP of one 1 x 5000 parameter on two ranks, frames sent by rank 0."""
    real = json.loads((truth / "iter_40000_p2p.json").read_text())
    job = SyntheticJob(shapes=((1, 5000),), steps=1, point_to_point=True)
    traffic = make_traffic(job)
    data = messages(traffic, "data", sender=0)
    assert [(m.length, len(m.opcodes), m.psn, m.immediate) for m in data] == [
        (m["dma_len"], m["packets"], m["psn_first"], bytes.fromhex(m["imm"][2:]))
        for m in real["rdma_messages"]
        if m["kind"] == "data"
    ]
    ring = [m for m in data if m.dest_qp == data[0].dest_qp]
    told = [send for send in real["nccl_sends"] if send["proto"] == "LL"]
    assert [m.flag for m in ring] == [send["ll_flag"] for send in told]
    assert [m.va - ring[0].va for m in ring] == [
        int(send["va"], 0) - int(told[0]["va"], 0) for send in told
    ]
    grants = messages(traffic, "cts", sender=0)
    told_grants = [m for m in real["rdma_messages"] if m["kind"] == "cts"]
    assert [(m.length, m.psn) for m in grants] == [
        (m["dma_len"], m["psn_first"]) for m in told_grants
    ]
    fields = [np.frombuffer(m.payload, "<u4") for m in grants]
    assert [(int(f[2]), int(f[4]), int(f[5]), int(f[6])) for f in fields] == [
        (m["cts"]["size"], m["cts"]["nreqs"], m["cts"]["tag"], m["cts"]["idx"]) for m in told_grants
    ]


CHUNKS = {
    # version, elements, ranks: elements of each chunk, worked by hand from NCCL's rules.
    # Up to 2.19: minimum 512 threads x 2 floats = 1024, ceil(5000 / 4096) x 1024 = 2048.
    ("2.19", 5000, 4): (2048, 2048, 904, 0),
    # ceil(5000 / 2048) x 1024 = 3072: the parts of the real capture.
    ("2.19", 5000, 2): (3072, 1928),
    # 2.20: ceil(5000 / 4) rounded up to 1024.
    ("2.20", 5000, 4): (2048, 2048, 904, 0),
    # From 2.22 on a chunk is rounded up to 16 bytes alone.
    ("2.23", 5000, 4): (1252, 1252, 1252, 1244),
    ("2.26", 5000, 3): (1668, 1668, 1664),
    ("2.29", 10, 4): (4, 4, 2, 0),
}


@pytest.mark.parametrize(("case", "sizes"), CHUNKS.items(), ids=str)
def test_sums_are_torch_sums_in_ring_order(
    case: tuple[str, int, int], sizes: tuple[int, ...]
) -> None:
    """Chunk k is summed by ring positions k+1, k+2, ... k, rounded at every hop."""
    version, elements, ranks = case
    random = torch.Generator().manual_seed(elements)
    for dtype in (torch.float32, torch.int32):
        tensors = [(torch.randn(elements, generator=random) * 999).to(dtype) for _ in range(ranks)]
        result, _ = ring_collectives.all_reduce(
            [tensor.numpy().tobytes() for tensor in tensors],
            version=version,
            channels=1,
            add=ring_collectives.adder(dtype),
        )
        at = 0
        pieces = []
        for chunk, size in enumerate(sizes):
            order = [(chunk + 1 + turn) % ranks for turn in range(ranks)]
            total = tensors[order[0]][at : at + size]
            for rank in order[1:]:
                total = total + tensors[rank][at : at + size]
            pieces.append(total)
            at += size
        assert result == torch.cat(pieces).numpy().tobytes()


def final_bytes(traffic: SyntheticTraffic, result: bytes, seen: list[RdmaMessage]) -> np.ndarray:
    """Which bytes of `result` cross in `seen`: found by content, without any schedule."""
    there = np.zeros(len(result), bool)
    for message in seen:
        for data in (message.ll_data, message.ll_data[:-4], message.payload):
            at = result.find(data) if len(data) >= 8 else -1
            if at >= 0:
                there[at : at + len(data)] = True
                break
    return there


JOBS = [
    SMALL,
    replace(SMALL, ranks=4, version="2.23"),
    replace(SMALL, ranks=3, version="2.29", adaptive=True, ip_version=4),
    SyntheticJob(shapes=((200, 301), (301,)), steps=2, channels=3, version="2.20"),
    SyntheticJob(shapes=((200, 301), (301,)), steps=2, ranks=3, channels=2, version="2.26"),
    replace(SMALL, buckets=((2, 1), (0,)), pmtu_bytes=4096),
]


@pytest.mark.parametrize("job", JOBS, ids=range(len(JOBS)))
def test_every_element_of_every_all_reduce_crosses_in_final_form(job: SyntheticJob) -> None:
    traffic = make_traffic(job)
    results = [data for kind, data in traffic.collectives if kind == "all_reduce"]
    assert len(results) == 1 + (job.steps - 1) * len(job.buckets or (0,))
    seen = messages(traffic, "data")
    for result in results:
        assert final_bytes(traffic, result, seen).all()
    at_port = rdma_messages(w.frame for w in traffic.frames_at_port(1) if w.kind == "data")
    for result in results:
        assert final_bytes(traffic, result, at_port).all()


def test_one_direction_of_one_port_lacks_exactly_one_chunk() -> None:
    """Two ranks, 2.19, 5000 elements: what comes in lacks the part of the receiver's own chunk."""
    traffic = make_traffic(SyntheticJob(shapes=((1, 5000),), steps=1))
    result = traffic.collectives[-1][1]
    sent_by_0 = final_bytes(traffic, result, messages(traffic, "data", sender=0))
    sent_by_1 = final_bytes(traffic, result, messages(traffic, "data", sender=1))
    assert np.flatnonzero(~sent_by_0)[[0, -1]].tolist() == [3072 * 4, 5000 * 4 - 1]
    assert (sent_by_0 ^ sent_by_1).all()


def test_the_point_to_point_send_is_the_chunk_the_ring_sends_lack() -> None:
    traffic = make_traffic(SyntheticJob(shapes=((1, 5000),), steps=2, point_to_point=True))
    sent = messages(traffic, "data", sender=0)
    for kind, result in traffic.collectives:
        if kind == "all_reduce":
            ring = [m for m in sent if m.dest_qp == sent[0].dest_qp]
            assert not final_bytes(traffic, result, ring).all()
            assert final_bytes(traffic, result, sent).all()


def test_gradients_are_the_reduced_buckets_in_registration_order() -> None:
    job = SyntheticJob(shapes=((3, 5), (7,), (2, 2)), steps=2, buckets=((2, 0), (1,)))
    traffic = make_traffic(job)
    reduced = [
        np.frombuffer(data, "<f4") for kind, data in traffic.collectives[3:] if kind == "all_reduce"
    ]
    first, later, last = reduced
    assert traffic.gradients[0] == first.tobytes()
    gradient = np.concatenate([later[4:], last, later[:4]])
    assert traffic.gradients[1] == gradient.tobytes()


def test_the_same_seed_gives_the_same_frames_and_another_seed_others() -> None:
    job = SyntheticJob(shapes=((9,),), steps=1)
    assert make_traffic(job).frames == make_traffic(job).frames
    other = SyntheticJob(shapes=((9,),), steps=1, seed=1)
    assert make_traffic(job).weights != make_traffic(other).weights
