"""A ring, a parser, a shard and an extractor on frames made here, and what should come of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import ffi, lib
from flowcheck.lab.synthetic_traffic.roce_frames import NicPort, frame, write_packets
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import GENERATIONS, GradientShard
from flowcheck.plane.shared_memory.packet_counters import counter_values
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import SEGMENT, SEND, FlowPlan, MessageTable

LL, SIMPLE = 0, 2
PMTU_BYTES = 256
QP = 7
SENDER = NicPort(b"\x02\0\0\0\0\1", IPv4Address("10.0.0.1"))
RECEIVER = NicPort(b"\x02\0\0\0\0\2", IPv4Address("10.0.0.2"))
FLOW = FlowKey(source="10.0.0.1", destination="10.0.0.2", dest_qp=QP)


def ll_lines(data: bytes, flag: int) -> bytes:
    """LL as NCCL's kernels write it: 4 data bytes, the flag, twice a line."""
    padded = data + bytes(-len(data) % 8)
    return b"".join(
        padded[at : at + 4]
        + struct.pack("<I", flag)
        + padded[at + 4 : at + 8]
        + struct.pack("<I", flag)
        for at in range(0, len(padded), 8)
    )


@dataclass
class Send:
    """One message and where its data belong: (data_byte, data_bytes, dst_byte)."""

    data: bytes
    protocol: int = SIMPLE
    kind: SendKind = SendKind.FINAL
    segments: Sequence[tuple[int, int, int]] = ()

    def payload(self, number: int) -> bytes:
        return ll_lines(self.data, number + 1) if self.protocol == LL else self.data


def table(sends: Sequence[Send]) -> MessageTable:
    rows = np.zeros(len(sends), SEND)
    pieces: list[tuple[int, int, int]] = []
    for row, send in zip(rows, sends, strict=True):
        row["wire_bytes"] = len(send.payload(0))
        row["first_segment"] = len(pieces)
        row["segments"] = len(send.segments)
        row["protocol"], row["kind"] = send.protocol, send.kind
        pieces += send.segments
    return MessageTable(sends=rows, segments=np.array(pieces, SEGMENT))


def plan_of(sends: Sequence[Send], *, first_number: int = 0, each: Sequence[Send] = ()) -> FlowPlan:
    return FlowPlan(flow=FLOW, first_number=first_number, first=table(sends), each=table(each))


@dataclass(frozen=True)
class Packet:
    """One packet of message `number`, carrying wire bytes [offset, offset + size)."""

    number: int
    offset: int
    size: int
    frame: bytes = field(repr=False)


def packets_of(
    sends: Iterable[Send],
    *,
    qp: int = QP,
    immediate: bool = True,
    psn: int = 0,
    rkey: int = 9,
    port: int = 50000,
) -> list[Packet]:
    """All packets of one flow from `psn` on, in order."""
    out = []
    for number, send in enumerate(sends):
        payload = send.payload(number)
        parts = write_packets(
            payload,
            dest_qp=qp,
            psn=psn,
            va=0x1000 + 0x10000 * (number % 8),
            rkey=rkey,
            pmtu_bytes=PMTU_BYTES,
            immediate=struct.pack("<I", len(payload)) if immediate else None,
        )
        psn += len(parts)
        for nth, transport in enumerate(parts):
            offset = nth * PMTU_BYTES
            size = min(PMTU_BYTES, len(payload) - offset)
            out.append(Packet(number, offset, size, frame(SENDER, RECEIVER, port, transport)))
    return out


@dataclass
class Bench:
    ring: FrameRing
    flows: FlowTable
    staging: Staging
    shard: GradientShard
    parser: Parser
    extractor: Extractor

    def feed(self, frames: Iterable[bytes]) -> None:
        """Publishes and parses; nothing is extracted."""
        commit = self.ring.capture_commit()
        for one in frames:
            buffer = ffi.from_buffer(one)
            code = lib.fc_ring_put(self.ring.handle, 0, buffer, len(one), len(one), 1, 0)
            assert code == 0
            lib.fc_ring_publish(self.ring.handle, 1, commit)
        self.parser.parse(self.ring.slots)

    def run(self, packets: Iterable[Packet]) -> None:
        self.feed(packet.frame for packet in packets)
        for _ in range(1 + GENERATIONS):  # it ends once before each step that could be opened
            self.extractor.extract(self.ring.slots)

    def counters(self) -> dict[str, int]:
        commit = self.ring.extract_commit()
        return counter_values(commit.counters)

    def covered(self, generation: int = 0) -> NDArray[np.bool_]:
        there = np.ones(self.shard.gradient_bytes, bool)
        for start, stop in self.shard.missing(generation):
            there[start:stop] = False
        return there


@contextmanager
def bench(
    folder: Path,
    *,
    gradient_bytes: int = 4096,
    unit_bytes: int = 4,
    slots: int = 4096,
    data_bytes: int = 8 << 20,
    records: int = 1024,
    held: int = 512,
    block: bool = True,
    live: bool = False,
) -> Iterator[Bench]:
    with ExitStack() as stack:
        enter = stack.enter_context
        ring = enter(FrameRing.create(folder / "ring", slots=slots, live_source=live))
        flows = enter(FlowTable.create(folder / "flows", messages=2 * slots))
        staging = enter(
            Staging.create(
                folder / "staging",
                messages=2 * slots,
                data_bytes=data_bytes,
                records=records,
                held=held,
            )
        )
        shard = enter(
            GradientShard.create(
                folder / "shard", gradient_bytes=gradient_bytes, unit_bytes=unit_bytes
            )
        )
        parser = enter(Parser(ring, flows))
        extractor = enter(Extractor(ring, flows, staging, shard, block=block))
        yield Bench(ring, flows, staging, shard, parser, extractor)


def expected(
    sends: Sequence[Send], packets: Iterable[Packet], gradient_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Gradient and coverage in bytes, by numpy alone, once these packets have arrived."""
    gradient = np.zeros(gradient_bytes, np.uint8)
    covered = np.zeros(gradient_bytes, bool)
    for packet in packets:
        send = sends[packet.number]
        scale = 2 if send.protocol == LL else 1
        here = np.zeros(len(send.data) + 8, bool)
        here[packet.offset // scale : (packet.offset + packet.size) // scale] = True
        if send.kind is not SendKind.FINAL:
            continue
        data = np.frombuffer(send.data + bytes(8), np.uint8)
        for data_byte, size, dst in send.segments:
            run = here[data_byte : data_byte + size]
            gradient[dst : dst + size][run] = data[data_byte : data_byte + size][run]
            covered[dst : dst + size] |= run
    return gradient, covered
