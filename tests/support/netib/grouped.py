"""Grouped receives: one clear-to-send grants several, and their sizes come behind the data."""

from __future__ import annotations

import struct

from support.netib import packets
from support.netib.fifo import clear_to_send, fifo
from support.netib.transport import Ack, Connection

TABLE_BYTES = 1 << 34
"""From the slots to the receiver's table of sizes, 32 bytes a slot."""


class Grouped(Connection):
    """A point-to-point connection through a proxy of another rank (PXN)."""

    def together(self) -> int:
        """Messages of the group that comes next."""
        operation = self.queue[0]
        left = len(self.load(operation)) - self.granted_now
        return min(self.options.grouped, left)

    def grant(self) -> bool:
        operation, count = self.queue[0], self.together()
        if not count or self.granted_now > self.done[id(operation)] + 4:
            return False
        self.granted += 1
        entries = b""
        for message in range(self.granted_now, self.granted_now + count):
            _, va, size = self.address(operation, message)
            rkey = self.rkeys[operation.about.protocol]
            one = clear_to_send(self.options.version, va, size, rkey, self.tag, self.granted)
            entries += with_receives(one, self.options.version, count)
        self.granted_now += count
        slots, stride = fifo(self.options.version)
        pair = self.pairs[0]
        at = self.fifo + self.granted % slots * stride
        body = packets.reth(at, self.fifo_rkey, len(entries)) + entries
        self.back(packets.WRITE_ONLY, pair, pair.cts_psn, body, operation)
        pair.cts_psn += 1
        return True

    def begin(self) -> bool:
        operation = self.queue[0]
        load, message = self.load(operation), self.done[id(operation)]
        count = min(self.options.grouped, len(load) - message)
        if message + count > self.granted_now:
            return False
        pair, rkey = self.pairs[0], self.rkeys[operation.about.protocol]
        writes = []
        sizes = [len(load[n]) for n in range(message, message + count)]
        for n in range(message, message + count):
            _, va, _ = self.address(operation, n)
            writes += packets.write_packets(va, rkey, load[n], b"", self.options.mtu)
        writes += self.ending(sizes, message)
        train: list[tuple[bytes, Ack | None]] = []
        for opcode, body in writes:
            last = len(train) == len(writes) - 1
            frame = self.frame(opcode, pair, pair.psn & 0xFFFFFF, body)
            train.append((frame, (pair, pair.psn, pair.messages + count + 1) if last else None))
            pair.psn += 1
        pair.messages += count + 1
        self.flight = train
        self.done[id(operation)] += count - 1  # and one when it has flown
        return True

    def ending(self, sizes: list[int], message: int) -> list[tuple[int, bytes]]:
        """What says that all of the group is there."""
        version, mtu = self.options.version, self.options.mtu
        if version < (2, 20):
            mask = sum(1 << n for n, size in enumerate(sizes) if size)
            return packets.write_packets(0, 0, b"", struct.pack("<I", mask), mtu)
        word = struct.pack(">I", sizes[0]) if version >= (2, 29) else bytes(4)
        table = struct.pack(f"<{len(sizes)}I", *sizes)
        at = self.block + TABLE_BYTES + message % 256 * 32
        return packets.write_packets(at, self.rkeys["LL"], table, word, mtu)


def with_receives(entry: bytes, version: tuple[int, int], count: int) -> bytes:
    """The entry saying that it is one of so many."""
    at = 16 if version < (2, 20) else 20 if version < (2, 24) else 32 if version < (2, 30) else 48
    return entry[:at] + struct.pack("<I", count) + entry[at + 4 :]
