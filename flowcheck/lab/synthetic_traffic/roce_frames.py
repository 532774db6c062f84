"""RoCEv2 frames as a NIC sends them: Ethernet, IP, UDP, BTH, RETH, ICRC. Sources: InfiniBand
Architecture Specification vol. 1, chapter 9 (BTH, RETH, ImmDt, AETH, opcodes) and annex A17
(RoCEv2 encapsulation and its ICRC)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

ROCE_PORT = 4791
"""UDP port of RoCEv2 (IB specification, annex A17)."""
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM = 6, 7, 8, 9
WRITE_ONLY, WRITE_ONLY_IMM, ACKNOWLEDGE = 10, 11, 17
"""Opcodes of the BTH for reliable connections (IB specification vol. 1, chapter 9)."""


@dataclass(frozen=True, slots=True)
class NicPort:
    """Addresses of a NIC port."""

    mac: bytes
    address: IPv4Address | IPv6Address


def crc_invariant(ip: bytes, udp: bytes, transport: bytes) -> bytes:
    """The four ICRC bytes; variant header fields count as ones (annex A17.3.3)."""
    header = bytearray(ip)
    if ip[0] >> 4 == 4:
        header[1] = header[8] = 0xFF
        header[10:12] = b"\xff\xff"
    else:
        header[0] |= 0x0F
        header[1:4] = b"\xff\xff\xff"
        header[7] = 0xFF
    masked = bytearray(transport)
    masked[4] = 0xFF
    covered = b"\xff" * 8 + bytes(header) + udp[:6] + b"\xff\xff" + bytes(masked)
    return struct.pack("<I", zlib.crc32(covered))


def frame(source: NicPort, destination: NicPort, udp_source_port: int, transport: bytes) -> bytes:
    """The complete frame from Ethernet to ICRC. transport: from BTH to padding."""
    udp_bytes = 8 + len(transport) + 4
    udp = struct.pack(">HHHH", udp_source_port, ROCE_PORT, udp_bytes, 0)
    if isinstance(source.address, IPv4Address):
        kind = 0x0800
        ip = struct.pack(">BBHHHBBH", 0x45, 2, 20 + udp_bytes, 0, 0x4000, 64, 17, 0)
        ip += source.address.packed + destination.address.packed
        total = sum(struct.unpack(">10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        ip = ip[:10] + struct.pack(">H", ~total & 0xFFFF) + ip[12:]
    else:
        kind = 0x86DD
        ip = struct.pack(">IHBB", 0x60200000, udp_bytes, 17, 64)
        ip += source.address.packed + destination.address.packed
    ethernet = destination.mac + source.mac + struct.pack(">H", kind)
    return ethernet + ip + udp + transport + crc_invariant(ip, udp, transport)


def bth(opcode: int, dest_qp: int, psn: int, *, pad: int = 0, ack_request: bool = False) -> bytes:
    """Base transport header (12 bytes) with the default partition key and MigReq set."""
    return struct.pack(
        ">BBHII",
        opcode,
        0x40 | pad << 4,
        0xFFFF,
        dest_qp,
        (ack_request << 31) | psn & 0xFFFFFF,
    )


def write_packets(
    payload: bytes,
    *,
    dest_qp: int,
    psn: int,
    va: int,
    rkey: int,
    pmtu_bytes: int,
    immediate: bytes | None,
) -> list[bytes]:
    """The transport part of each packet of one RDMA write: First to Last, or Only. immediate: of
    the last packet; None: no immediate."""
    pieces = [payload[at : at + pmtu_bytes] for at in range(0, len(payload), pmtu_bytes)] or [b""]
    reth = struct.pack(">QII", va, rkey, len(payload))
    packets = []
    for n, piece in enumerate(pieces):
        first, last = n == 0, n == len(pieces) - 1
        if first and last:
            opcode = WRITE_ONLY if immediate is None else WRITE_ONLY_IMM
        elif last:
            opcode = WRITE_LAST if immediate is None else WRITE_LAST_IMM
        else:
            opcode = WRITE_FIRST if first else WRITE_MIDDLE
        pad = -len(piece) % 4
        packets.append(
            bth(opcode, dest_qp, psn + n, pad=pad, ack_request=last)
            + (reth if first else b"")
            + (immediate if last and immediate is not None else b"")
            + piece
            + bytes(pad)
        )
    return packets


def acknowledge(dest_qp: int, psn: int, completed: int) -> bytes:
    """An ACK without credits. completed: the message sequence number (MSN)."""
    return bth(ACKNOWLEDGE, dest_qp, psn) + struct.pack(">I", 0x1F << 24 | completed & 0xFFFFFF)
