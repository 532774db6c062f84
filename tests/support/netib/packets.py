"""RoCEv2 frames: Ethernet, IP, UDP, base transport header, ICRC."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

ROCE_PORT = 4791
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM = 0x06, 0x07, 0x08, 0x09
WRITE_ONLY, WRITE_ONLY_IMM, ACKNOWLEDGE, CNP = 0x0A, 0x0B, 0x11, 0x81

GRANT = WRITE_ONLY
"""Of clear-to-send messages, and of no data but that of `Options.adaptive`."""


@dataclass(frozen=True)
class Port:
    """One NIC port."""

    mac: bytes
    ip: bytes
    """4 or 16 bytes."""


def source_port(qpn: int, other_qpn: int) -> int:
    """The UDP source port of a QP pair, by the kernel's rule for flow label 0."""
    value = qpn * other_qpn
    value ^= value >> 20
    value ^= value >> 40
    label = value & 0xFFFFF
    return ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14)) | 0xC000


def checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(src: bytes, dst: bytes, body_bytes: int, protocol: int = 17, tos: int = 2) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, tos, 20 + body_bytes, 0, 0x4000, 64, protocol, 0)
    total = checksum(head + src + dst)
    return head[:10] + struct.pack(">H", total) + src + dst


def roce(
    src: Port,
    dst: Port,
    udp_source: int,
    opcode: int,
    dest_qp: int,
    psn: int,
    body: bytes,
    ack_request: bool = False,
    becn: bool = False,
) -> bytes:
    """A whole frame without FCS; `body` is extended headers and payload, unpadded."""
    pad = -len(body) % 4
    first = struct.pack(">BBH", opcode, 0x40 | pad << 4, 0xFFFF)
    last = struct.pack(">II", dest_qp, (0x80000000 if ack_request else 0) | psn & 0xFFFFFF)
    bth = first + last
    if becn:
        bth = bth[:4] + b"\x40" + bth[5:]
    rest = body + bytes(pad)
    udp_bytes = 8 + 12 + len(rest) + 4
    udp = struct.pack(">HHHH", udp_source, ROCE_PORT, udp_bytes, 0)
    if len(src.ip) == 4:
        ip = ipv4(src.ip, dst.ip, udp_bytes)
        masked = ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:]
        ethertype = b"\x08\x00"
    else:
        ip = struct.pack(">IHBB", 0x60200000, udp_bytes, 17, 64) + src.ip + dst.ip
        masked = b"\x6f\xff\xff\xff" + ip[4:7] + b"\xff" + ip[8:]
        ethertype = b"\x86\xdd"
    covered = b"\xff" * 8 + masked + udp[:6] + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:] + rest
    icrc = struct.pack("<I", zlib.crc32(covered))
    return dst.mac + src.mac + ethertype + ip + udp + bth + rest + icrc


def opcode_of(frame: bytes) -> int | None:
    """Of a RoCE frame as `roce` makes it; None: it is none."""
    ip_bytes = {b"\x08\x00": 20, b"\x86\xdd": 40}.get(frame[12:14])
    return None if ip_bytes is None else frame[14 + ip_bytes + 8]


def reth(va: int, rkey: int, length: int) -> bytes:
    return struct.pack(">QII", va, rkey, length)


def aeth(syndrome: int, msn: int) -> bytes:
    return struct.pack(">I", syndrome << 24 | msn & 0xFFFFFF)


def write_packets(
    va: int, rkey: int, content: bytes, immediate: bytes, mtu: int
) -> list[tuple[int, bytes]]:
    """(opcode, body) of each packet of an RDMA write; no immediate: a plain one."""
    start = reth(va, rkey, len(content))
    if len(content) <= mtu:
        opcode = WRITE_ONLY_IMM if immediate else WRITE_ONLY
        return [(opcode, start + immediate + content)]
    pieces = [content[at : at + mtu] for at in range(0, len(content), mtu)]
    middles = [(WRITE_MIDDLE, piece) for piece in pieces[1:-1]]
    last = WRITE_LAST_IMM if immediate else WRITE_LAST
    return [(WRITE_FIRST, start + pieces[0]), *middles, (last, immediate + pieces[-1])]
