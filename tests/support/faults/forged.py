"""Frames that nobody of the job sent, with check sums as a NIC would make them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from support.netib import packets
from support.netib.packets import Port

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x00, 0x01, 0x02, 0x04
WRITE_ONLY_IMM = packets.WRITE_ONLY_IMM
BEGINS = (packets.WRITE_FIRST, packets.WRITE_ONLY, packets.WRITE_ONLY_IMM)
IMMEDIATE = (packets.WRITE_LAST_IMM, packets.WRITE_ONLY_IMM)
WRITES = (*BEGINS, packets.WRITE_MIDDLE, packets.WRITE_LAST, packets.WRITE_LAST_IMM)
RETH_BYTES, IMMEDIATE_BYTES, BTH_BYTES, ICRC_BYTES = 16, 4, 12, 4


@dataclass(frozen=True, slots=True)
class Header:
    """What a RoCE frame says of itself (InfiniBand Architecture vol. 1, 9.2; annex A17)."""

    source: Port
    destination: Port
    udp_source: int
    opcode: int
    qp: int
    psn: int
    asks: bool
    body: bytes
    """Behind the base transport header, without pad and check sum."""

    @property
    def writes(self) -> bool:
        return self.opcode in WRITES

    @property
    def begins(self) -> bool:
        return self.opcode in BEGINS

    @property
    def payload_at(self) -> int:
        """In `body`."""
        extended = RETH_BYTES if self.begins else 0
        return extended + (IMMEDIATE_BYTES if self.opcode in IMMEDIATE else 0)

    @property
    def payload(self) -> bytes:
        return self.body[self.payload_at :] if self.writes else b""


def header_of(data: bytes) -> Header | None:
    """None of what is no RoCE frame, or not all of one."""
    if len(data) < 58:
        return None
    kind = data[12:14]
    if kind == b"\x08\x00" and data[23] == 17:
        at, source, destination = 34, data[26:30], data[30:34]
    elif kind == b"\x86\xdd" and data[20] == 17 and len(data) >= 78:
        at, source, destination = 54, data[22:38], data[38:54]
    else:
        return None
    udp_source, port = struct.unpack_from(">HH", data, at)
    if port != packets.ROCE_PORT:
        return None
    opcode, flags, _, qp, psn = struct.unpack_from(">BBHII", data, at + 8)
    pad = flags >> 4 & 3
    body = data[at + 8 + BTH_BYTES : len(data) - ICRC_BYTES - pad]
    return Header(
        Port(data[6:12], source), Port(data[:6], destination), udp_source, opcode,
        qp & 0xFFFFFF, psn & 0xFFFFFF, bool(psn >> 31), body,
    )  # fmt: skip


def made(
    header: Header, opcode: int, psn: int, body: bytes, *, udp_source: int | None = None
) -> bytes:
    """A frame between the same two, to the same queue pair."""
    port = header.udp_source if udp_source is None else udp_source
    return packets.roce(
        header.source, header.destination, port, opcode, header.qp, psn, body, header.asks
    )


def altered(header: Header, dice: random.Random) -> bytes:
    """The same packet with other bytes in its payload."""
    body = bytearray(header.body)
    for _ in range(dice.choice((1, 1, 4))):
        body[dice.randrange(header.payload_at, len(body))] ^= dice.randrange(1, 256)
    if bytes(body) == header.body:
        body[-1] ^= 1
    return made(header, header.opcode, header.psn, bytes(body))


def numbered(header: Header, psn: int, dice: random.Random) -> bytes:
    """A packet to the same queue pair with that number, of any kind, with any key."""
    opcode = dice.choice((*WRITES, SEND_ONLY, SEND_MIDDLE))
    size = dice.choice((0, 4, len(header.payload), len(header.payload)))
    body = dice.randbytes(size)
    if opcode in IMMEDIATE:
        body = struct.pack("<I", size) + body
    if opcode in BEGINS:
        own = struct.unpack_from(">QII", header.body) if header.begins else None
        va, rkey = (own[0], own[1]) if own and dice.random() < 0.3 else _place(dice)
        told = size if opcode != packets.WRITE_FIRST else dice.choice((3 * size + 1, 1 << 28))
        body = packets.reth(va, rkey, told) + body
    port = dice.choice((header.udp_source, header.udp_source, dice.randrange(49152, 65536)))
    return made(header, opcode, psn, body, udp_source=port)


def owner(header: Header, messages: int, dice: random.Random) -> list[bytes]:
    """Whole writes to the same queue pair as a new connection would make them, from PSN 0 on."""
    va, rkey = _place(dice)
    port = dice.choice((header.udp_source, dice.randrange(49152, 65536)))
    psn = dice.choice((0, 0, dice.randrange(1 << 24)))
    frames = []
    for number in range(messages):
        content = dice.randbytes(dice.choice((32, 64, 256, 1500)))
        word = struct.pack("<I", len(content)) if dice.random() < 0.8 else b""
        where = va + 0x10000 * (number % 8)
        for opcode, body in packets.write_packets(where, rkey, content, word, 1024):
            frames.append(made(header, opcode, psn % 2**24, body, udp_source=port))
            psn += 1
    return frames


def transfers(near: Header, messages: int, dice: random.Random) -> list[bytes]:
    """Another tenant's writes on the same port; of half of them the first packet was missed."""
    source, destination = Port(dice.randbytes(6), _address(near, dice)), near.destination
    qp, psn, (va, rkey) = _qp(dice), dice.randrange(1 << 24), _place(dice)
    frames = []
    for number in range(messages):
        content = dice.randbytes(dice.randint(1, 9000))
        word = struct.pack("<I", number) if dice.random() < 0.5 else b""
        pieces = packets.write_packets(va, rkey, content, word, 1024)
        if dice.random() < 0.1:
            qp = _qp(dice)
        for nth, (opcode, body) in enumerate(pieces):
            frame = packets.roce(source, destination, 50000, opcode, qp, psn % 2**24, body)
            psn += 1
            if nth or number % 2:
                frames.append(frame)
    return frames or [packets.roce(source, destination, 50000, 10, qp, psn, packets.reth(1, 1, 0))]


def acknowledgements(near: Header, count: int, dice: random.Random) -> list[bytes]:
    """To queue pairs that nobody has, each to another one."""
    ports = near.source, near.destination
    return [
        packets.roce(
            *ports, 50000, packets.ACKNOWLEDGE, _qp(dice), dice.randrange(1 << 24),
            packets.aeth(0x1F, dice.randrange(1 << 24)),
        )
        for _ in range(count)
    ]  # fmt: skip


def sends(near: Header, count: int, dice: random.Random) -> list[bytes]:
    """Another tenant's messages by SEND, of one to five packets."""
    source, destination = Port(dice.randbytes(6), _address(near, dice)), near.destination
    qp, psn = _qp(dice), dice.randrange(1 << 24)
    frames = []
    for _ in range(count):
        size = dice.randint(1, 5)
        for nth in range(size):
            opcode = SEND_MIDDLE if nth else SEND_FIRST
            if nth == size - 1:
                opcode = SEND_LAST if nth else SEND_ONLY
            body = dice.randbytes(dice.choice((16, 1024)))
            frames.append(packets.roce(source, destination, 50001, opcode, qp, psn % 2**24, body))
            psn += 1
    return frames


def _qp(dice: random.Random) -> int:
    return dice.randrange(0x800000, 0xFFFFF0)


def _place(dice: random.Random) -> tuple[int, int]:
    """(virtual address, key) of a buffer of nobody's."""
    return dice.randrange(1 << 47), dice.randrange(1 << 32)


def _address(near: Header, dice: random.Random) -> bytes:
    return dice.randbytes(len(near.source.ip))
