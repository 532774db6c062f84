"""Real NCCL's messages, recorded on a GPU by scripts/gpu, as the frames net_ib would make of them.

What was sent, in which order, into which buffer and with which tag is NCCL's own; the frames around
it are made here, from the wire facts alone (support.netib.packets and fifo). Nothing of `flowcheck`
is used.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.netib import packets
from support.netib.fifo import clear_to_send, fifo
from support.netib.packets import Port

FOLDER = Path(__file__).parents[1] / "data" / "gpu"
RECORD = struct.Struct("<II IIQQIiII")
"""Writer, connection; then struct record of scripts/gpu/recorder.c."""
SENT, POSTED = 3, 4
MTU_BYTES = 1024


@dataclass(frozen=True)
class Event:
    """A message sent or a buffer posted, at one end of a connection."""

    kind: int
    writer: int
    connection: int
    at_ns: int
    address: int
    size: int
    tag: int
    key: int
    payload: bytes


@dataclass
class Recorded:
    """One job: the ranks at the ends of each connection, its events in order, the truth."""

    ends: list[tuple[int, int]]
    version: tuple[int, int]
    events: list[Event]
    truth: dict[str, Any]


def load(name: str) -> Recorded:
    about = json.loads((FOLDER / f"{name}.json").read_text())
    blob = lzma.decompress((FOLDER / f"{name}.wire.xz").read_bytes())
    return Recorded(
        [tuple(pair) for pair in about["connections"]],
        tuple(about["nccl"]),
        events_of(blob),
        about,
    )


def events_of(blob: bytes) -> list[Event]:
    found, at = [], 0
    while at < len(blob):
        writer, connection, kind, _, ns, address, size, tag, key, _ = RECORD.unpack_from(blob, at)
        at += RECORD.size
        payload = blob[at : at + size] if kind == SENT else b""
        at += len(payload)
        found.append(Event(kind, writer, connection, ns, address, size, tag, key, payload))
    return found


@dataclass
class _Connection:
    """The state of one QP pair; numbers count from 0."""

    sender: Port
    receiver: Port
    number: int
    fifo_address: int
    psn: int = 0
    messages: int = 0
    granted: int = 0
    buffers: deque[Event] = field(default_factory=deque)

    @property
    def sender_qpn(self) -> int:
        return 0x100 + 2 * self.number

    @property
    def receiver_qpn(self) -> int:
        return 0x101 + 2 * self.number


def port_of(rank: int) -> Port:
    return Port(bytes([2, 0, 0, 0, 0, rank + 1]), bytes([10, 1, 0, rank + 1]))


def frames(recorded: Recorded, mtu: int = MTU_BYTES) -> list[tuple[int, bytes]]:
    """[(time in ns, frame)] of one mirrored port, in order."""
    connections = [
        _Connection(port_of(a), port_of(b), n, 0x7F1000000000 + (n << 20))
        for n, (a, b) in enumerate(recorded.ends)
    ]
    found = []
    for event in recorded.events:
        own = connections[event.connection]
        made = (
            _posted(own, event, recorded.version)
            if event.kind == POSTED
            else _sent(own, event, recorded.version, mtu)
        )
        found += [(event.at_ns + n, frame) for n, frame in enumerate(made)]
    return found


def _posted(own: _Connection, event: Event, version: tuple[int, int]) -> list[bytes]:
    own.buffers.append(event)
    own.granted += 1
    slots, stride = fifo(version)
    entry = clear_to_send(version, event.address, event.size, event.key, event.tag, own.granted)
    place = own.fifo_address + (own.granted - 1) % slots * stride
    body = packets.reth(place, 0x5000 + own.number, len(entry)) + entry
    back, forth = packets.source_port(own.receiver_qpn, own.sender_qpn), own.granted
    write = packets.roce(
        own.receiver, own.sender, back, packets.WRITE_ONLY, own.sender_qpn, forth - 1, body, True
    )
    answer = packets.roce(
        own.sender,
        own.receiver,
        back,
        packets.ACKNOWLEDGE,
        own.receiver_qpn,
        forth - 1,
        packets.aeth(0x1F, forth),
    )
    return [write, answer]


def _sent(own: _Connection, event: Event, version: tuple[int, int], mtu: int) -> list[bytes]:
    buffer = own.buffers.popleft()
    assert buffer.size >= event.size and buffer.tag == event.tag
    immediate = struct.pack(">I" if version >= (2, 29) else "<I", event.size)
    made = []
    port = packets.source_port(own.sender_qpn, own.receiver_qpn)
    last = (packets.WRITE_LAST_IMM, packets.WRITE_ONLY_IMM)
    for opcode, body in packets.write_packets(
        buffer.address, buffer.key, event.payload, immediate, mtu
    ):
        made.append(
            packets.roce(
                own.sender,
                own.receiver,
                port,
                opcode,
                own.receiver_qpn,
                own.psn & 0xFFFFFF,
                body,
                opcode in last,
            )
        )
        own.psn += 1
    own.messages += 1
    made.append(
        packets.roce(
            own.receiver,
            own.sender,
            port,
            packets.ACKNOWLEDGE,
            own.sender_qpn,
            own.psn - 1 & 0xFFFFFF,
            packets.aeth(0x1F, own.messages),
        )
    )
    return made


def write_pcap(path: Path, seen: list[tuple[int, bytes]]) -> Path:
    """A capture with nanoseconds."""
    with path.open("wb") as to:
        to.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))
        for at, frame in seen:
            to.write(struct.pack("<IIII", *divmod(at, 10**9), len(frame), len(frame)) + frame)
    return path
