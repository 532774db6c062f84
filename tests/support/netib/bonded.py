"""Connections over a NIC of several ports that NCCL takes for one (NCCL_IB_MERGE_NICS): a queue
pair on each port, clear-to-sends by turns, a piece of every send on each.

Up to 2.30 pieces are as large as each other; from 2.31 on each port has its share of a hundred
(src/transport/net_ib/p2p.cc): of three ports 33, 33 and 34.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from support.netib import packets
from support.netib.fifo import fifo
from support.netib.packets import Port
from support.netib.partition import over, up
from support.netib.reduction import Operation
from support.netib.transport import Ack, Connection, QueuePair

KEY_STRIDE = 1 << 20
"""Of one buffer, from one port to the next."""


@dataclass
class Bonded(Connection):
    """All ports of each host are mirrored into one file."""

    ends: list[tuple[Port, Port]] = field(default_factory=list)
    """[pair] (port of who sends, port of who receives)."""

    def frame(self, opcode: int, pair: QueuePair, psn: int, body: bytes) -> bytes:
        last = opcode in (packets.WRITE_LAST_IMM, packets.WRITE_ONLY_IMM, packets.WRITE_LAST)
        src, dst = self.ends[self.pairs.index(pair)]
        return packets.roce(src, dst, pair.udp_source(), opcode, pair.receiver_qpn, psn, body, last)

    def back(
        self, opcode: int, pair: QueuePair, psn: int, body: bytes, operation: Operation | None
    ) -> None:
        src, dst = self.ends[self.pairs.index(pair)]
        udp, asks = pair.udp_source(back=True), opcode == packets.WRITE_ONLY
        made = packets.roce(dst, src, udp, opcode, pair.sender_qpn, psn, body, asks)
        self.emit(self.dst, self.src, made, operation)

    def grant(self) -> bool:
        operation = self.queue[0]
        window = 4 if operation.slices == 2 else 8
        most = min(len(self.load(operation)), self.done[id(operation)] + window)
        if self.granted_now >= most:
            return False
        _, va, size = self.address(operation, self.granted_now)
        slots, stride = fifo(self.options.version)
        number = self.granted
        self.granted += 1
        self.granted_now += 1
        rkey = self.rkeys[operation.about.protocol]
        keys = [rkey + n * KEY_STRIDE for n in range(len(self.pairs))]
        keys += [0] * (8 - len(keys))
        entry = struct.pack("<QQ8IIIQ", va, size, *keys, 1, self.tag, self.granted)
        pair = self.pairs[number % len(self.pairs)]
        at = self.fifo + number % slots * stride
        body = packets.reth(at, self.fifo_rkey, len(entry)) + entry
        self.back(packets.WRITE_ONLY, pair, pair.cts_psn, body, operation)
        pair.cts_psn += 1
        return True

    def packets_of(self, va: int, rkey: int, content: bytes) -> list[tuple[bytes, Ack | None]]:
        size, done, flight = len(content), 0, []
        immediate = struct.pack(">I", size)
        for place, (pair, least) in enumerate(zip(self.pairs, self.shares(size), strict=True)):
            piece = content[done : done + least]
            writes = packets.write_packets(
                va + done, rkey + place * KEY_STRIDE, piece, immediate, self.options.mtu
            )
            done += len(piece)
            pair.messages += 1
            for number, (opcode, body) in enumerate(writes):
                ack = (pair, pair.psn, pair.messages) if number == len(writes) - 1 else None
                flight.append((self.frame(opcode, pair, pair.psn & 0xFFFFFF, body), ack))
                pair.psn += 1
        return flight

    def shares(self, size: int) -> list[int]:
        """[port] bytes of its piece at most."""
        ports = len(self.pairs)
        if self.options.version < (2, 31):
            return [up(over(size, ports), 128)] * ports
        weights = [100 // ports] * (ports - 1)
        weights.append(100 - sum(weights))
        return [up(over(size * weight, 100), 128) for weight in weights]
