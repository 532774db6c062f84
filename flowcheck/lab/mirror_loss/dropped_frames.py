"""A dropped copy from its first bytes: which packet of RoCE it was, and how much payload it had."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from flowcheck.lab.mirror_loss.drop_program import HEAD_BYTES

ROCE_PORT = 4791
"""UDP port of RoCEv2 (IB specification, annex A17)."""
EXTENSION_BYTES = (0, 0, 0, 4, 0, 4, 16, 0, 0, 4, 16, 20, 16, 4, 0, 4, 4, 4)
"""[opcode] bytes of the headers behind the BTH, of reliable connections: SEND, WRITE, READ and
their answers (IB specification vol. 1, chapter 9, table of opcodes)."""
IPV4, UDP, GRE = 0x0800, 17, 47
ERSPAN_TYPE_2 = 0x88BE
ERSPAN_BYTES = 16
"""GRE with a sequence number 8, ERSPAN type II 8 (draft-foschiano-erspan-03, 4.2)."""
RECORD = struct.Struct(f"=IxxxxQ{HEAD_BYTES}s")


@dataclass(frozen=True, slots=True)
class DroppedFrame:
    """One dropped copy."""

    copy: int
    """Its number among all frames of the monitor port, from 1."""
    bytes: int
    """Its length with the Ethernet header and, in a tunnel, the outer headers."""
    opcode: int | None = None
    """Opcode of the BTH; None: it is no RoCE over IPv4, or of another transport service."""
    queue_pair: int = 0
    """Destination queue pair."""
    psn: int = 0
    destination: str = ""
    """IPv4 address to which the frame itself went."""
    payload_bytes: int = 0
    """Bytes behind all RoCE headers and before padding and ICRC."""


def decode_record(record: bytes) -> DroppedFrame:
    """The frame of a record of the log."""
    length, copy, head = RECORD.unpack(record)
    return _decoded(copy, length, head[:length])


def _decoded(copy: int, length: int, frame: bytes) -> DroppedFrame:
    other = DroppedFrame(copy, length)
    at = 14
    if len(frame) < at + 40 or frame[12:14] != IPV4.to_bytes(2, "big"):
        return other
    header = 4 * (frame[at] & 0x0F)
    if frame[at + 9] == GRE and frame[at + header + 2 : at + header + 4] == (
        ERSPAN_TYPE_2.to_bytes(2, "big")
    ):
        return _decoded(copy, length, frame[at + header + ERSPAN_BYTES :])
    udp = at + header
    if frame[at + 9] != UDP or len(frame) < udp + 20:
        return other
    _, port, udp_bytes = struct.unpack_from(">HHH", frame, udp)
    opcode, flags, _, queue_pair, psn = struct.unpack_from(">BBHII", frame, udp + 8)
    if port != ROCE_PORT or opcode >= len(EXTENSION_BYTES):
        return other
    pad = flags >> 4 & 3
    return DroppedFrame(
        copy,
        length,
        opcode,
        queue_pair & 0xFFFFFF,
        psn & 0xFFFFFF,
        ".".join(map(str, frame[at + 16 : at + 20])),
        max(0, udp_bytes - 8 - 12 - EXTENSION_BYTES[opcode] - pad - 4),
    )
