"""What a mirror puts about a frame."""

from __future__ import annotations

import random
import struct

from support.netib.packets import ipv4

OUTER = bytes.fromhex("02fc0000000102fc00000002")
FROM, TO = bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2])


def tagged(frame: bytes, *tags: tuple[int, int]) -> bytes:
    """The frame with (EtherType, VLAN id) tags behind the addresses, outermost first."""
    inserted = b"".join(struct.pack(">HH", ethertype, vlan) for ethertype, vlan in tags)
    return frame[:12] + inserted + frame[12:]


def gre(frame: bytes, protocol: int, sequence: int | None, between: bytes = b"") -> bytes:
    """GRE over IPv4; with a sequence number unless that is None."""
    flags = 0x1000 if sequence is not None else 0
    head = struct.pack(">HH", flags, protocol)
    if sequence is not None:
        head += struct.pack(">I", sequence)
    body = head + between + frame
    return OUTER + b"\x08\x00" + ipv4(FROM, TO, len(body), protocol=47, tos=0) + body


def wrap(kind: str, frame: bytes, number: int) -> bytes:
    """The `number`-th mirrored frame as it is captured."""
    if kind == "vlan":
        return tagged(frame, (0x8100, 100))
    if kind == "qinq":
        return tagged(frame, (0x88A8, 200), (0x8100, 100))
    if kind == "erspan2":
        # Version 1, VLAN 0, session 7; then the 20-bit port index.
        return gre(frame, 0x88BE, number, struct.pack(">HHI", 0x1000, 7, 3))
    if kind == "erspan3":
        # Version 2, session 7; timestamp; SGT 0; P and FT 0, no platform header.
        return gre(frame, 0x22EB, number, struct.pack(">HHIHH", 0x2000, 7, number * 10, 0, 0))
    if kind == "gre":
        return gre(frame, 0x6558, None)
    if kind == "vxlan":
        body = struct.pack(">II", 0x08000000, 42 << 8) + frame
        udp = struct.pack(">HHHH", 49152 + number % 7, 4789, 8 + len(body), 0)
        outer = ipv4(FROM, TO, len(udp) + len(body), tos=0)
        return OUTER + b"\x08\x00" + outer + udp + body
    if kind == "macsec":
        # TCI: encrypted, changed, secure channel named; packet number; ciphertext and check value.
        tag = struct.pack(">BBI8s", 0x2C, 0, number, frame[6:12] + b"\0\1")
        return frame[:12] + b"\x88\xe5" + tag + cipher(frame[12:], number) + bytes(16)
    if kind == "esp":
        whole = cipher(frame[14:], number)
        body = struct.pack(">II", 0x1001, number) + whole
        return frame[:12] + b"\x08\x00" + ipv4(FROM, TO, len(body), protocol=50, tos=0) + body
    assert not kind
    return frame


def cipher(clear: bytes, number: int) -> bytes:
    """As many bytes that look like chance."""
    return random.Random(number).randbytes(len(clear))
