"""Traffic on the mirrored port that is none of the job's."""

from __future__ import annotations

import struct

import numpy as np
from support.netib import packets
from support.netib.options import Options
from support.netib.packets import Port

SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY = 0x00, 0x01, 0x02, 0x04
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = 0x0C, 0x0D, 0x0E, 0x0F, 0x10
ATOMIC_ACKNOWLEDGE, FETCH_ADD = 0x12, 0x14

Noise = list[tuple[Port, Port, bytes]]


def storage(options: Options, rng: np.random.Generator, port: Port, server: Port) -> Noise:
    """Requests by SEND, answers by READ of the server from the client, as NVMe over RDMA."""
    client_qpn, server_qpn = (int(n) for n in rng.integers(0x40, 0xFFFF00, 2))
    udp = packets.source_port(client_qpn, server_qpn)
    made: Noise = []
    psn = {True: int(rng.integers(1 << 24)), False: int(rng.integers(1 << 24))}

    def say(to_server: bool, opcode: int, number: int, body: bytes) -> None:
        src, dst = (port, server) if to_server else (server, port)
        qpn = server_qpn if to_server else client_qpn
        made.append((src, dst, packets.roce(src, dst, udp, opcode, qpn, number, body)))

    for msn in range(1, options.storage + 1):
        say(True, SEND_ONLY, psn[True], rng.bytes(64))
        say(False, packets.ACKNOWLEDGE, psn[True], packets.aeth(0x1F, msn))
        psn[True] += 1
        size = int(rng.integers(1, 5 * options.mtu))
        if options.manners.storage:
            address, rkey = int(rng.integers(1 << 47)), int(rng.integers(1 << 31))
            word = struct.pack(">I", msn) if options.manners.storage == "immediate" else b""
            content = rng.bytes(size)
            for opcode, body in packets.write_packets(address, rkey, content, word, options.mtu):
                say(False, opcode, psn[False], body)
                psn[False] += 1
            say(False, SEND_ONLY, psn[False], rng.bytes(16))
            psn[False] += 1
        elif rng.random() < 0.5:
            request = packets.reth(int(rng.integers(1 << 47)), int(rng.integers(1 << 31)), size)
            say(False, READ_REQUEST, psn[False], request)
            opcodes = (READ_ONLY, READ_FIRST, READ_MIDDLE, READ_LAST)
            head = packets.aeth(0x1F, msn)
            answer(rng, options.mtu, size, psn, True, opcodes, head, say)
        else:
            opcodes = (SEND_ONLY, SEND_FIRST, SEND_MIDDLE, SEND_LAST)
            answer(rng, options.mtu, size, psn, False, opcodes, b"", say)
    return made


def puts(options: Options, rng: np.random.Generator, port: Port, peer: Port) -> Noise:
    """Plain writes of any size, each with a fetch-and-add behind it that tells its receiver, as
    NCCL's GIN and NVSHMEM make them (NCCL src/transport/net_ib/gin.cc)."""
    qpn, peer_qpn = (int(n) for n in rng.integers(0x40, 0xFFFF00, 2))
    udp = packets.source_port(qpn, peer_qpn)
    base, rkey = int(rng.integers(1 << 40)) << 4, int(rng.integers(1 << 31))
    made: Noise = []
    psn = 0
    for number in range(1, options.puts + 1):
        content = rng.bytes(int(rng.integers(1, 9 * options.mtu)))
        at = base + int(rng.integers(1 << 26))
        writes = packets.write_packets(at, rkey, content, b"", options.mtu)
        writes.append((FETCH_ADD, struct.pack(">QIQQ", base - 64, rkey, 1, 0)))
        for opcode, body in writes:
            made.append((port, peer, packets.roce(port, peer, udp, opcode, peer_qpn, psn, body)))
            psn += 1
        body = packets.aeth(0x1F, number) + struct.pack(">Q", number - 1)
        told = packets.roce(peer, port, udp, ATOMIC_ACKNOWLEDGE, qpn, psn - 1, body)
        made.append((peer, port, told))
    return made


def answer(rng, mtu, size, psn, to_server, opcodes, head, say) -> None:  # type: ignore[no-untyped-def]
    """`size` bytes in packets; READ responses bear the request's numbers."""
    only, first, middle, last = opcodes
    pieces = [min(mtu, size - at) for at in range(0, size, mtu)]
    for at, piece in enumerate(pieces):
        opcode = middle
        if len(pieces) == 1:
            opcode = only
        elif at == 0:
            opcode = first
        elif at == len(pieces) - 1:
            opcode = last
        say(to_server, opcode, psn[False], (b"" if opcode == middle else head) + rng.bytes(piece))
        psn[False] += 1


def chatter(rng: np.random.Generator, port: Port, other: Port, number: int) -> Noise:
    """ARP, LLDP and pause frames, padded to 60 bytes."""
    arp = b"\xff" * 6 + port.mac + struct.pack(">HHHBBH", 0x0806, 1, 0x0800, 6, 4, 1)
    arp += port.mac + bytes([10, 0, 0, 1]) + bytes(6) + bytes([10, 0, 0, 2])
    lldp = bytes.fromhex("0180c200000e") + other.mac + b"\x88\xcc"
    lldp += bytes.fromhex("0207040200000000010403052f31060200780000")
    pause = bytes.fromhex("0180c2000001") + port.mac + bytes.fromhex("880801010008") + rng.bytes(16)
    kinds = [frame.ljust(60, b"\0") for frame in (arp, lldp, pause)]
    return [(port, other, kinds[at % 3]) for at in range(number)]
