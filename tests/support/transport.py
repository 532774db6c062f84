"""Frames made by hand and what the parser says of them: shared by the transport's tests."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowcheck._core import ffi, lib
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import VERDICTS, counter_values

FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM = range(0x06, 0x0C)
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
SEND_LAST_INVALIDATE, SEND_ONLY_INVALIDATE = 0x16, 0x17
READ_REQUEST, ACK = 0x0C, 0x11
WORD = (LAST_IMM, ONLY_IMM, SEND_LAST_IMM, SEND_ONLY_IMM, 0x16, 0x17)
MARK_FIELDS = [name for name, _ in ffi.typeof("struct fc_mark").fields]


@dataclass(frozen=True)
class Packet:
    """One RoCEv2 packet; `frame()` gives its bytes with a right ICRC."""

    opcode: int
    psn: int
    payload: bytes = b""
    va: int = 0
    rkey: int = 0
    length: int = 0
    immediate: int = 0
    dest_qp: int = 0x11
    source: str = "10.0.0.1"
    destination: str = "10.0.0.2"
    msn: int = 0
    syndrome: int = 0
    port: int = 50000
    pkey: int = 0xFFFF

    def body(self) -> bytes:
        """BTH to pad."""
        pad = -len(self.payload) % 4
        bth = struct.pack(
            ">BBHII", self.opcode, 0x40 | pad << 4, self.pkey, self.dest_qp, self.psn & 0xFFFFFF
        )
        extended = b""
        if self.opcode in (FIRST, ONLY, ONLY_IMM, READ_REQUEST):
            extended += struct.pack(">QII", self.va, self.rkey, self.length)
        if self.opcode in WORD:
            extended += struct.pack(">I", self.immediate)
        if self.opcode == ACK:
            extended += struct.pack(">I", self.syndrome << 24 | self.msn)
        return bth + extended + self.payload + bytes(pad)

    def frame(self) -> bytes:
        body = self.body()
        udp = struct.pack(">HHHH", self.port, 4791, len(body) + 12, 0)
        source = ipaddress.ip_address(self.source)
        destination = ipaddress.ip_address(self.destination)
        if source.version == 4:
            ip = struct.pack(">BBHIBBH", 0x45, 2, len(body) + 32, 0x40000000, 64, 17, 0)
            masked = bytearray(ip)
            masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
            ethertype = b"\x08\x00"
        else:
            ip = struct.pack(">IHBB", 0x60000000, len(body) + 12, 17, 64)
            masked = bytearray(ip)
            masked[0:4] = b"\x6f\xff\xff\xff"
            masked[7] = 0xFF
            ethertype = b"\x86\xdd"
        addresses = source.packed + destination.packed
        covered = bytes(8 * [0xFF]) + bytes(masked) + addresses + udp[:6] + b"\xff\xff"
        covered += body[:4] + b"\xff" + body[5:]
        icrc = struct.pack("<I", zlib.crc32(covered))
        return bytes(12) + ethertype + ip + addresses + udp + body + icrc


def write(
    payload: bytes,
    *,
    psn: int,
    va: int = 0x1000,
    rkey: int = 7,
    pmtu: int = 256,
    immediate: int | None = None,
    like: Packet | None = None,
) -> list[Packet]:
    """The packets of one RDMA write; PSNs as on the wire, modulo 2**24."""
    base = like or Packet(ONLY, 0)
    pieces = [payload[at : at + pmtu] for at in range(0, len(payload), pmtu)] or [b""]
    packets = []
    for nth, piece in enumerate(pieces):
        first, last = nth == 0, nth == len(pieces) - 1
        with_imm = last and immediate is not None
        if first:
            opcode = (ONLY_IMM if with_imm else ONLY) if last else FIRST
        else:
            opcode = (LAST_IMM if with_imm else LAST) if last else MIDDLE
        packets.append(
            replace(
                base,
                opcode=opcode,
                psn=(psn + nth) & 0xFFFFFF,
                payload=piece,
                va=va,
                rkey=rkey,
                length=len(payload),
                immediate=immediate or 0,
            )
        )
    return packets


def send(
    payload: bytes, *, psn: int, pmtu: int = 256, end: str = "", like: Packet | None = None
) -> list[Packet]:
    """The packets of one SEND; `end`: "", "imm" or "invalidate"."""
    onlys = {"": SEND_ONLY, "imm": SEND_ONLY_IMM, "invalidate": SEND_ONLY_INVALIDATE}
    lasts = {"": SEND_LAST, "imm": SEND_LAST_IMM, "invalidate": SEND_LAST_INVALIDATE}
    packets = write(payload, psn=psn, pmtu=pmtu, like=like, immediate=0xABCD)
    opcodes = [SEND_FIRST] + [SEND_MIDDLE] * (len(packets) - 2) + [lasts[end]]
    if len(packets) == 1:
        opcodes = [onlys[end]]
    return [replace(p, opcode=code) for p, code in zip(packets, opcodes, strict=True)]


@dataclass(frozen=True)
class Mark:
    """`struct fc_mark`, copied."""

    message: int
    alternative: int
    psn: int
    flow: int
    offset_bytes: int
    payload_at: int
    payload_bytes: int
    verdict: int
    opcode: int
    again: int
    same_headers: int

    @property
    def said(self) -> str:
        return VERDICTS[self.verdict]


@dataclass
class Run:
    """A ring that was parsed."""

    ring: FrameRing
    table: FlowTable
    parser: Parser

    def put(self, frames: Sequence[bytes], *, wire_bytes: Sequence[int] | None = None) -> None:
        commit = self.ring.capture_commit()
        for nth, frame in enumerate(frames):
            wire = wire_bytes[nth] if wire_bytes else len(frame)
            position = self.ring.head + nth
            code = lib.fc_ring_put(
                self.ring.handle, nth, frame, len(frame), wire, 1000 + position, position
            )
            assert code == 0
        lib.fc_ring_publish(self.ring.handle, len(frames), commit)

    def mark(self, position: int) -> Mark:
        raw = lib.fc_ring_at(self.ring.handle, position).mark
        return Mark(**{name: int(getattr(raw, name)) for name in MARK_FIELDS})

    def marks(self) -> list[Mark]:
        return [self.mark(position) for position in range(self.ring.parsed)]

    def payload(self, position: int) -> bytes:
        mark = lib.fc_ring_at(self.ring.handle, position).mark
        frame = lib.fc_ring_frame_at(self.ring.handle, position)
        return bytes(ffi.buffer(frame + mark.payload_at, mark.payload_bytes))

    def verdicts(self) -> Counter[str]:
        return Counter(mark.said for mark in self.marks())

    def counters(self) -> dict[str, int]:
        commit: Any = self.ring.parse_commit()
        return counter_values(commit.counters)

    def sends(self) -> dict[int, bytes]:
        """{first PSN: bytes} of the SENDs that are whole: final records and PSNs of marks."""
        found = {}
        for record in self.table.messages():
            if record.kind != lib.FC_KIND_SEND or record.packets_seen != record.packets:
                continue
            data, step = bytearray(record.length_bytes), int(record.pmtu_bytes)
            for position, mark in enumerate(self.marks()):
                nth = mark.psn - record.first_psn
                if mark.said != "send" or mark.flow != record.flow or not 0 <= nth < record.packets:
                    continue
                if mark.message:
                    assert (mark.message, mark.offset_bytes) == (record.position, nth * step)
                assert nth * step + mark.payload_bytes <= len(data)
                data[nth * step : nth * step + mark.payload_bytes] = self.payload(position)
            found[int(record.first_psn)] = bytes(data)
        return found

    def reassembled(self) -> dict[int, tuple[bytearray, bytearray]]:
        """{message: (bytes, seen)} from marks alone, as the extractor will do it."""
        found: dict[int, tuple[bytearray, bytearray]] = {}
        for position, mark in enumerate(self.marks()):
            if mark.said != "write":
                continue
            record = self.table.message(mark.message)
            assert record is not None and record.position == mark.message
            size = int(record.length_bytes)
            data, seen = found.setdefault(mark.message, (bytearray(size), bytearray(size)))
            start, stop = mark.offset_bytes, mark.offset_bytes + mark.payload_bytes
            assert stop <= size
            data[start:stop] = self.payload(position)
            seen[start:stop] = bytes([1]) * (stop - start)
        return found


@contextlib.contextmanager
def parsing(
    folder: Path, *, slots: int = 256, icrc_every: int = 1, messages: int = 0
) -> Iterator[Run]:
    """An empty ring with its table and parser in `folder`; messages: of its pool, if not as few as
    may be."""
    with (
        FrameRing.create(folder / "ring", slots=slots) as ring,
        FlowTable.create(folder / "flows", messages=messages or max(4, slots * 2)) as table,
        Parser(ring, table, icrc_every=icrc_every) as parser,
    ):
        yield Run(ring, table, parser)
    (folder / "ring").unlink()
    (folder / "flows").unlink()


@contextlib.contextmanager
def parsed(
    folder: Path, frames: Sequence[bytes], *, icrc_every: int = 1, span: int = 1 << 20
) -> Iterator[Run]:
    """`frames` through a ring of their own size, parsed in calls of `span` slots."""
    slots = 1 << max(1, (len(frames) - 1).bit_length())
    with parsing(folder, slots=slots, icrc_every=icrc_every) as run:
        run.put(frames)
        while run.parser.parse(span):
            continue
        yield run
