"""One datagram that somebody makes up, to a queue pair of a followed job: what it costs at most."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from support.extraction import (  # fmt: skip
    PMTU_BYTES,
    QP,
    RECEIVER,
    SENDER,
    SIMPLE,
    Send,
    bench,
    packets_of,
    plan_of,
)

from flowcheck.lab.synthetic_traffic.roce_frames import frame, write_packets
from flowcheck.wire.training_job.connection_messages import SendKind

MESSAGES, FOREIGN = 40, 77
AWAY = (
    *(-5_000_000, -70_000, -1000, -20, -10, -5, -2, -1, 0, 1, 2, 3, 5, 10, 100, 1000, 60_000),
    *(70_000, 1 << 22, (1 << 23) - 100, (1 << 23) + 100),
)
"""PSNs from where the job is."""


def job() -> list[Send]:
    size = 2 * PMTU_BYTES
    return [
        Send(bytes([n + 1]) * size, SIMPLE, SendKind.FINAL, ((0, size, n * size),))
        for n in range(MESSAGES)
    ]


def bth(opcode: int, psn: int) -> bytes:
    return struct.pack(">BBHII", opcode, 0x40, 0xFFFF, QP, psn)


def made_up(kind: str, psn: int) -> bytes:
    """A transport packet with PSN `psn`; of a write with an address, the key is not the job's."""
    psn %= 1 << 24
    if kind in ("first", "middle", "last"):
        nth = ("first", "middle", "last").index(kind)
        start = (psn - nth) % (1 << 24)
        return write_packets(
            bytes(3 * PMTU_BYTES),
            dest_qp=QP,
            psn=start,
            va=9,
            rkey=FOREIGN,
            pmtu_bytes=PMTU_BYTES,
            immediate=None,
        )[nth]
    reth = struct.pack(">QI", 9, FOREIGN)
    reads = {"read": 1 << 20, "read of all": 1 << 31, "read of more": 0xFFFFFFFF}
    if kind in reads:
        return bth(0x0C, psn) + reth + struct.pack(">I", reads[kind])
    return {
        "only": bth(0x0A, psn) + reth + struct.pack(">I", 100) + bytes(100),
        "huge first": bth(0x06, psn) + reth + struct.pack(">I", 1 << 30) + bytes(PMTU_BYTES),
        "atomic": bth(0x13, psn) + struct.pack(">QIQQ", 9, FOREIGN, 1, 2),
        "send only": bth(0x04, psn) + bytes(64),
        "send first": bth(0x00, psn) + bytes(PMTU_BYTES),
        "send middle": bth(0x01, psn) + bytes(PMTU_BYTES),
        "ack": bth(0x11, psn) + bytes(4),
        "nak sequence": bth(0x11, psn) + b"\x60\0\0\1",
        "nak invalid": bth(0x11, psn) + b"\x61\0\0\1",
        "nak access": bth(0x11, psn) + b"\x62\0\0\1",
        "uc write": bth(0x2A, psn) + reth + struct.pack(">I", 64) + bytes(64),
    }[kind]


KINDS = (
    *("first", "middle", "last", "only", "huge first", "read", "atomic", "send only", "send first"),
    *(
        "read of all",
        "read of more",
        "send middle",
        "ack",
        "nak sequence",
        "nak invalid",
        "nak access",
        "uc write",
    ),
)


def costs(folder: Path, forged: bytes, at: int) -> tuple[int, int]:
    """(bytes that lack, bytes of two kinds) of a step during which it comes; what is not lacking
    is right."""
    sends = job()
    packets, whole = packets_of(sends), b"".join(send.data for send in sends)
    folder.mkdir(exist_ok=True)
    with bench(folder, gradient_bytes=len(whole)) as run:
        run.shard.begin(0, 1)
        run.run(packets[:10])
        assert run.extractor.install_plan(plan_of(sends))
        run.feed(packet.frame for packet in packets[10:at])
        run.feed([frame(SENDER, RECEIVER, 50000, forged), frame(RECEIVER, SENDER, 50000, forged)])
        run.feed(packet.frame for packet in packets[at:])
        run.extractor.extract(run.ring.slots)
        run.extractor.assign_staged()
        lacks = sum(stop - start for start, stop in run.shard.missing(0))
        differ = run.shard.conflict_bytes(0)
        if not differ:
            there, taken = run.covered(), run.shard.gradient(0).tobytes()
            assert all(taken[i] == whole[i] for i in range(len(whole)) if there[i])
    for left in folder.iterdir():
        left.unlink()
    return lacks, differ


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        pytest.param(kind, at, marks=[pytest.mark.nightly] * ((number + at) % 2))
        for number, kind in enumerate(KINDS)
        for at in (20, 21)
    ],
)
def test_it_costs_its_own_place_at_most(kind: str, at: int, shm: Path) -> None:
    """at: the job's next packet begins a message, or is its second. A packet without an address
    that fits where it stands is a copy of the job's own as far as anybody can tell."""
    most = (0, PMTU_BYTES) if kind in ("middle", "last") else (0, 0)
    for away in AWAY:
        lacks, differ = costs(shm / "run", made_up(kind, at + away), at)
        assert (lacks, min(differ, 1) * PMTU_BYTES) in ((0, 0), most), away
        assert differ <= PMTU_BYTES
