"""A connection: QPs, clear-to-send, RDMA writes with immediates, acknowledgements."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from support.netib import packets
from support.netib.fifo import clear_to_send, fifo
from support.netib.layouts import pack
from support.netib.options import LL, LL128, SIMPLE, Options
from support.netib.packets import Port
from support.netib.partition import over, up
from support.netib.reduction import Operation

BASE = {LL: 0, LL128: 0x80000, SIMPLE: 0x530000}
STEP_STRIDE = {LL: 0x10000, LL128: 0x96000, SIMPLE: 0x80000}
P2P_CHUNK_BYTES = 131072
USER_BYTES = 1 << 33
"""From the slots to a buffer of the user's."""
DIRECT = ("broadcast", "all_gather")

Emit = Callable[[Port, Port, bytes, "Operation | None"], None]
Ack = tuple["QueuePair", int, int]
"""(pair, acknowledged PSN, MSN)."""


@dataclass
class QueuePair:
    """Both ends of one QP pair; numbers a side sends count from 0."""

    sender_qpn: int
    receiver_qpn: int
    psn: int = 0
    messages: int = 0
    cts_psn: int = 0

    udp: str = ""

    def udp_source(self, back: bool = False) -> int:
        if self.udp == "one":
            return 49152
        if self.udp == "any":
            return 49152 + (self.receiver_qpn if back else self.sender_qpn) * 7919 % 16384
        return packets.source_port(self.sender_qpn, self.receiver_qpn)


@dataclass
class Connection:
    """One sender, one receiver, one channel of one communicator."""

    options: Options
    rng: np.random.Generator
    communicator: str
    sender: int
    channel: int
    src: Port
    dst: Port
    pairs: list[QueuePair]
    emit: Emit
    ready: Callable[[Connection, Operation, int], bool]
    tag: int
    """The sender's rank."""
    ranks: tuple[int, int] = (-1, -1)
    """Who sends and who receives."""
    queue: list[Operation] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    """Messages that arrived, by identity of the operation."""
    step: int = 0
    sent: int = 0
    granted: int = 0
    base: int = 0
    """FIFO step where the operation at hand begins; `granted_now` of its sends may go."""
    granted_now: int = 0
    flight: list[tuple[bytes, Ack | None]] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Where the receiver's buffers and the sender's FIFO lie, and their keys."""
        manners = self.options.manners
        self.block = int(self.rng.integers(0x3F8000, 0x3FA000)) << 21
        if not manners.aligned:
            self.block += int(self.rng.integers(1, 1 << 9)) << 12
        self.fifo = 0x7F0000000000 + int(self.rng.integers(1, 1 << 20)) * 4096 + 0x820
        self.fifo_rkey = int(self.rng.integers(0x1000, 0x300000))
        keys = self.rng.choice(1 << 20, 3, replace=False) + 0x200000
        self.rkeys = {LL: int(keys[0]), LL128: int(keys[1]), SIMPLE: int(keys[2])}
        if manners.tags == "zero":
            self.tag = 0
        if manners.lived:
            self.step, self.sent = (int(n) for n in self.rng.integers(1 << 30, size=2))
            self.granted = self.sent
            for pair in self.pairs:
                pair.psn = (1 << 24) - int(self.rng.integers(1, 400))
                pair.cts_psn = pair.messages = self.sent

    def enqueue(self, operation: Operation) -> None:
        if not self.queue:
            self.enter(operation)
        self.queue.append(operation)
        self.done[id(operation)] = 0

    def enter(self, operation: Operation) -> None:
        """The counter where the operation starts."""
        if operation.slices == 2:
            self.step = up(self.step, 4)
        self.base = self.step
        self.step += len(self.load(operation)) * operation.slices
        self.granted_now = 0

    def load(self, operation: Operation) -> list[bytes]:
        if operation.links:
            return operation.links[self.ranks[0], self.channel, self.ranks[1]]
        return operation.loads[self.sender, self.channel]

    def work(self) -> bool:
        """One small thing done; False: nothing can be done now."""
        acked = self.options.manners.acked
        if self.acks and (acked == "each" or self.rng.random() < 0.5):
            return self.acknowledge()
        if self.flight:
            return self.fly()
        if self.queue and self.grant():
            while self.options.manners.granted == "first" and self.grant():
                pass
            return True
        if self.queue and self.begin():
            return self.fly()
        return bool(self.acks) and self.acknowledge()

    def address(self, operation: Operation, message: int) -> tuple[int, int, int]:
        """(FIFO step, virtual address, capacity) of a message."""
        protocol = operation.about.protocol
        if self.communicator.startswith("pp"):
            slot = 16 * self.channel + message % 8
            size = P2P_CHUNK_BYTES
            if (2, 20) <= self.options.version < (2, 29):  # net.cc: sub->nbytes < sizes[subCount]
                size = max(map(len, self.load(operation)))
            return message, self.block + P2P_CHUNK_BYTES * slot, size
        if self.options.registered and protocol == SIMPLE and operation.about.kind in DIRECT:
            load = self.load(operation)
            at = sum(map(len, load[:message]))
            return self.base, self.block + USER_BYTES + at, len(load[message])
        step = self.base + message * operation.slices
        va = self.block + BASE[protocol] + step % 8 * STEP_STRIDE[protocol]
        return step, va, STEP_STRIDE[protocol] * operation.slices

    def grant(self) -> bool:
        operation = self.queue[0]
        window = 4 if operation.slices == 2 else 8
        most = min(len(self.load(operation)), self.done[id(operation)] + window)
        if self.granted_now >= most:
            return False
        _, va, size = self.address(operation, self.granted_now)
        rkey = self.rkeys[operation.about.protocol]
        slots, stride = fifo(self.options.version)
        slot = self.granted % slots
        self.granted += 1
        self.granted_now += 1
        entry = clear_to_send(self.options.version, va, size, rkey, self.tag, self.granted)
        pair = self.pairs[0]
        body = packets.reth(self.fifo + slot * stride, self.fifo_rkey, len(entry)) + entry
        self.back(packets.WRITE_ONLY, pair, pair.cts_psn, body, operation)
        pair.cts_psn += 1
        every = self.options.speed_updates
        if every and self.granted % every == 0:
            self.tell_speeds(pair, self.granted // every, operation)
        acked = self.options.manners.acked
        if acked == "each" or (not acked and self.rng.random() < 0.8):
            body = packets.aeth(0x1F, pair.cts_psn)
            frame = self.frame(packets.ACKNOWLEDGE, pair, pair.cts_psn - 1, body)
            self.emit(self.src, self.dst, frame, operation)
        return True

    def tell_speeds(self, pair: QueuePair, count: int, operation: Operation) -> None:
        """NCCL 2.31, NCCL_IB_EVENT_BASED_LB: behind the FIFO a counter, and a speed a device."""
        slots, stride = fifo(self.options.version)
        told = struct.pack("<Q8H8x", count, int(self.rng.integers(1, 8)) * 100, *[0] * 7)
        body = packets.reth(self.fifo + slots * stride + 64, self.fifo_rkey, len(told)) + told
        self.back(packets.WRITE_ONLY, pair, pair.cts_psn, body, operation)
        pair.cts_psn += 1

    def frame(self, opcode: int, pair: QueuePair, psn: int, body: bytes) -> bytes:
        """Of the sender, to the receiver."""
        last = opcode in (packets.WRITE_LAST_IMM, packets.WRITE_ONLY_IMM, packets.WRITE_LAST)
        return packets.roce(
            self.src, self.dst, pair.udp_source(), opcode, pair.receiver_qpn, psn, body, last
        )

    def back(
        self, opcode: int, pair: QueuePair, psn: int, body: bytes, operation: Operation | None
    ) -> None:
        asks, throttles = opcode == packets.WRITE_ONLY, opcode == packets.CNP
        udp, qpn = pair.udp_source(back=True), pair.sender_qpn
        made = packets.roce(self.dst, self.src, udp, opcode, qpn, psn, body, asks, throttles)
        self.emit(self.dst, self.src, made, operation)

    def begin(self) -> bool:
        """Start the next message if its data and its grant are there."""
        operation = self.queue[0]
        message = self.done[id(operation)]
        if message >= self.granted_now or not self.ready(self, operation, message):
            return False
        step, va, _ = self.address(operation, message)
        protocol = operation.about.protocol
        content = pack(
            protocol, self.load(operation)[message], step, self.rng, self.options.version,
            self.options.manners.filler,
        )  # fmt: skip
        self.flight = self.packets_of(va, self.rkeys[protocol], content)
        self.sent += 1
        return True

    def packets_of(self, va: int, rkey: int, content: bytes) -> list[tuple[bytes, Ack | None]]:
        options, size = self.options, len(content)
        big = options.version >= (2, 29)
        immediate = struct.pack(">I" if big else "<I", size)
        pieces = [(self.pairs[self.sent % len(self.pairs)], va, content)]
        if options.splits and len(self.pairs) > 1:
            each = up(over(size, len(self.pairs)), 128)
            # 2.30: an empty piece is at the end, not at a multiple of the piece's size.
            most = size if options.version >= (2, 30) else each * len(self.pairs)
            pieces = [
                (pair, va + min(n * each, most), content[n * each : (n + 1) * each])
                for n, pair in enumerate(self.pairs)
            ]
        trains = []
        for pair, at, piece in pieces:
            if options.adaptive and size > options.adaptive_over:
                each = options.mtu if options.pieces else max(1, len(piece))
                writes = []
                for start in range(0, len(piece) or 1, each):
                    part = piece[start : start + each]
                    writes += packets.write_packets(at + start, rkey, part, b"", options.mtu)
                    pair.messages += 1
                writes += packets.write_packets(0, 0, b"", immediate, options.mtu)
                pair.messages += 1
            else:
                writes = packets.write_packets(at, rkey, piece, immediate, options.mtu)
                pair.messages += 1
            train: list[tuple[bytes, Ack | None]] = []
            for opcode, body in writes:
                ack = (pair, pair.psn, pair.messages) if len(train) == len(writes) - 1 else None
                train.append((self.frame(opcode, pair, pair.psn & 0xFFFFFF, body), ack))
                pair.psn += 1
            trains.append(self.resent(train))
        flight = []
        while any(trains):
            train = trains[int(self.rng.integers(len(trains)))]
            flight += train[:2]
            del train[:2]
        return flight

    def resent(self, train: list[tuple[bytes, Ack | None]]) -> list[tuple[bytes, Ack | None]]:
        """Now and then a packet is lost beyond the mirror and go-back-N repeats from there."""
        if len(train) < 4 or self.rng.random() * 50 > self.options.retransmits:
            return train
        lost, until = sorted(int(n) for n in self.rng.integers(0, len(train), 2))
        seen = [(frame, None) for frame, _ in train[:until]]
        return [*seen, *train[lost:]] if lost < until else train

    def fly(self) -> bool:
        operation = self.queue[0]
        for _ in range(int(self.rng.integers(1, 7))):
            if not self.flight:
                break
            frame, ack = self.flight.pop(0)
            self.emit(self.src, self.dst, frame, operation)
            if ack is not None and self.options.manners.acked != "none":
                self.acks.append(ack)
        if self.options.cnps and self.rng.random() < 0.01:
            self.back(packets.CNP, self.pairs[0], 0, bytes(16), None)
        if not self.flight:
            self.done[id(operation)] += 1
            if self.done[id(operation)] == len(self.load(operation)):
                self.queue.pop(0)
                if self.queue:
                    self.enter(self.queue[0])
        return True

    def acknowledge(self) -> bool:
        """The oldest acknowledgement due, or a later one of the same pair for both."""
        pair, psn, msn = self.acks.pop(0)
        if self.acks and self.acks[0][0] is pair and self.rng.random() < 0.3:
            pair, psn, msn = self.acks.pop(0)
        body = packets.aeth(0x1F, msn)
        self.back(packets.ACKNOWLEDGE, pair, psn & 0xFFFFFF, body, None)
        return True
