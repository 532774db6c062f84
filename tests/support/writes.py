"""What test packets carry: payloads that tell themselves apart, and NCCL's immediate."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from support.transport import Packet


def payload(size: int, seed: int = 1) -> bytes:
    return bytes((seed * 37 + i * 11 + (i >> 8)) & 0xFF for i in range(size))


def ll_payload(lines: int, flag: int) -> bytes:
    return b"".join(struct.pack("<IIII", i, flag, i + 7, flag) for i in range(lines))


def frames(packets: Iterable[Packet]) -> list[bytes]:
    return [packet.frame() for packet in packets]


def little(size: int) -> int:
    """NCCL's immediate: the size, its bytes reversed on the wire."""
    return int.from_bytes(size.to_bytes(4, "little"), "big")
