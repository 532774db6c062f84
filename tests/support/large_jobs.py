"""Records of jobs too large to be written as captures: messages of right sizes, order, numbers and
addresses, whose payload is a view of one small buffer.

Sizes come from `support.netib`, which shares no line with the package.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from support.netib import Options
from support.netib.fabric import Fabric
from support.netib.fifo import clear_to_send, fifo
from support.netib.layouts import slices
from support.netib.nodes import ranks_of
from support.netib.options import Collective
from support.netib.partition import Shape, plan
from support.netib.reduction import Operation, shape_of
from support.netib.trainer import bucketed, strides
from support.netib.transport import Connection

from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

START_PSN = 1 << 32
BROADCAST_BYTES = 250 << 20
"""torch/csrc/distributed/c10d/reducer.hpp: kDefaultBucketBytesCap of _sync_module_states."""
FLOAT_BYTES = 4
POOL_BYTES = 4 << 20
PLACES = 4093
"""Beginnings in the pool, 512 bytes apart: one for each chunk of each collective, so that copies
are equal and nothing else is."""
STEP_NS, GAP_NS = 1_000, 300_000
"""From one message to the next, and from one collective to the next."""


def gpt_shapes(layers: int, width: int, vocabulary: int = 50_257) -> tuple[tuple[int, ...], ...]:
    """Parameters of a GPT-2 in registration order: weights tied, 1,024 positions."""
    block: tuple[tuple[int, ...], ...] = (
        (width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,),
        (width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,),
    )  # fmt: skip
    return ((vocabulary, width), (1024, width), *(block * layers), (width,), (width,))


GPT = {0.15: gpt_shapes(14, 800), 0.5: gpt_shapes(26, 1216), 1.5: gpt_shapes(48, 1600)}
"""By billions of parameters."""


@dataclass
class LargeJob:
    """A job's records, and what is true of it."""

    shapes: tuple[tuple[int, ...], ...]
    flows: list[ObservedFlow] = field(default_factory=list)
    messages: list[ObservedMessage] = field(default_factory=list)
    buckets: list[list[int]] = field(default_factory=list)
    collectives: int = 0
    begun_ns: list[int] = field(default_factory=list)
    """When the first message of each iteration was seen."""

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes))


@dataclass
class _Sender:
    """One connection and its two flows."""

    connection: Connection
    data: FlowKey
    grants: FlowKey
    psn: int = START_PSN
    cts_psn: int = START_PSN
    sent: int = 0


def large_job(
    shapes: tuple[tuple[int, ...], ...],
    *,
    ranks: int = 16,
    channels: int = 8,
    version: tuple[int, int] = (2, 27),
    iterations: int = 2,
    protocol: str = "Simple",
) -> LargeJob:
    """A job as rank 0's port has it, one rank a node: DDP's start-up, then iterations."""
    options = Options(
        ranks=ranks, channels=channels, version=version, protocol=protocol, shapes=shapes, mtu=4096
    )
    made = _Records(options)
    made.start_up()
    for iteration in range(iterations):
        if iteration == 1:
            made.rebuild()
        made.begins()
        for bucket in made.job.buckets:
            made.reduce(sum(prod(shapes[index]) for index in bucket))
    # The next one begins: only then was the last one whole.
    made.begins()
    made.reduce(sum(prod(shapes[index]) for index in made.job.buckets[0]))
    return made.finish()


class _Records:
    """Writes collectives, one after the other, as records."""

    def __init__(self, options: Options) -> None:
        self.options = options
        rng = np.random.default_rng(options.seed)
        self.pool = rng.integers(0, 256, POOL_BYTES + PLACES * 512, np.uint8)
        self.pool.flags.writeable = False
        self.job = LargeJob(options.shapes, buckets=[list(range(len(options.shapes)))])
        fabric = Fabric(options, rng)
        self.senders = {
            (sender, channel): _sender(connection)
            for (_, sender, channel), connection in fabric.connections.items()
        }
        self.now_ns = 1_700_000_000_000_000_000
        self.order = 0

    def start_up(self) -> None:
        """The checks of DDP's constructor, then the weights."""
        shapes = self.options.shapes
        self.gather(struct.pack("<q", len(shapes)))
        facts = [number for shape in shapes for number in (*shape, *strides(shape))]
        self.broadcast(struct.pack(f"<{len(facts)}q", *facts))
        waiting = 0
        for shape in shapes:
            # torch/csrc/utils/tensor_flatten.cpp: one more tensor closes a group of enough bytes.
            waiting += prod(shape) * FLOAT_BYTES
            if waiting >= BROADCAST_BYTES:
                self.broadcast(waiting)
                waiting = 0
        if waiting:
            self.broadcast(waiting)

    def rebuild(self) -> None:
        """Gradients are ready from the last parameter on; the first rank tells the order."""
        order = list(range(len(self.options.shapes)))[::-1]
        self.job.buckets = bucketed(self.options, order, FLOAT_BYTES)
        told = [index for bucket in self.job.buckets for index in bucket]
        self.broadcast(struct.pack(f"<{len(told) + 1}i", *told, len(self.job.buckets)))
        sizes = [len(bucket) for bucket in self.job.buckets]
        self.broadcast(struct.pack(f"<{len(sizes)}i", *sizes))

    def begins(self) -> None:
        """An iteration: all-reduces come next."""
        self.job.begun_ns.append(self.now_ns + GAP_NS + STEP_NS)

    def reduce(self, elements: int) -> None:
        shape = self._shape("all_reduce", elements, FLOAT_BYTES, elements * FLOAT_BYTES)
        self._run(shape, _reduced(self.options, shape), None)

    def broadcast(self, content: bytes | int) -> None:
        """Of bytes, or of so many that nobody looks at."""
        size = content if isinstance(content, int) else len(content)
        shape = self._shape("broadcast", size, 1, size)
        loads: dict[tuple[int, int], list[_Piece]] = {}
        for channel, loops in plan(shape).items():
            pieces = [(at, length, True) for [(at, length)] in loops]
            for sender in range(self.options.ranks - 1):
                loads[sender, channel] = pieces
        self._run(shape, loads, content if isinstance(content, bytes) else None)

    def gather(self, block: bytes) -> None:
        """Every rank has the same block."""
        ranks, size = self.options.ranks, len(block)
        shape = self._shape("all_gather", size, 1, size * ranks)
        loads: dict[tuple[int, int], list[_Piece]] = {}
        for channel, loops in plan(shape).items():
            for sender in range(ranks):
                pieces = loads.setdefault((sender, channel), [])
                for [(at, length)] in loops:
                    for step in range(ranks - 1):
                        first = (sender - step) % ranks * size + at
                        own = slices(length, 1, shape.slices)
                        pieces += [(first + start, count, True) for start, count in own]
        self._run(shape, loads, block * ranks)

    def finish(self) -> LargeJob:
        messages = self.job.messages
        of: dict[FlowKey, list[ObservedMessage]] = {}
        for message in messages:
            of.setdefault(message.flow, []).append(message)
        for sender in self.senders.values():
            udp = sender.connection.pairs[0].udp_source()
            for key in (sender.data, sender.grants):
                if key in of:
                    self.job.flows.append(_flow(key, udp, of[key], self.options.mtu))
        return self.job

    def _shape(self, kind: str, count: int, element_bytes: int, size: int) -> Shape:
        protocol = self.options.protocol_for(size)
        return shape_of(self.options, kind, count, element_bytes, protocol)

    def _run(
        self, shape: Shape, loads: dict[tuple[int, int], list[_Piece]], content: bytes | None
    ) -> None:
        """Connections take turns, message by message: what a rank sends it has received before."""
        self.job.collectives += 1
        self.now_ns += GAP_NS
        about = Collective(shape.kind, "dp", shape.protocol, b"")
        sizes = {place: [range(length) for _, length, _ in of] for place, of in loads.items()}
        operation = Operation(about, sizes, shape.slices, 1)  # type: ignore[arg-type]
        # Into rank 0 comes the sum that it sends on in the step behind.
        active = [place for place in sorted(self.senders, reverse=True) if loads.get(place)]
        for place in active:
            self.senders[place].connection.enter(operation)
        for n in range(max(len(loads[place]) for place in active)):
            for place in active:
                if n < len(loads[place]):
                    self._send(self.senders[place], operation, n, loads[place][n], content)

    def _send(
        self, sender: _Sender, operation: Operation, n: int, piece: _Piece, content: bytes | None
    ) -> None:
        """One message and the clear-to-send before it."""
        connection, version = sender.connection, self.options.version
        _, va, capacity = connection.address(operation, n)
        rkey = connection.rkeys[operation.about.protocol]
        slots, stride = fifo(version)
        slot = sender.sent % slots
        sender.sent += 1
        entry = clear_to_send(version, va, capacity, rkey, connection.tag, sender.sent)
        granted = np.frombuffer(entry, np.uint8)
        at = connection.fifo + slot * stride, connection.fifo_rkey
        self._write(sender.grants, sender.cts_psn, sender.sent - 1, at, None, granted)
        sender.cts_psn += 1
        start, length, final = piece
        if content is not None:
            payload = np.frombuffer(content, np.uint8)[start : start + length]
        else:
            name = (self.job.collectives, start, final or sender.sent)
            first = hash(name) % PLACES * 512
            payload = self.pool[first : first + length]
        order = ">I" if version >= (2, 29) else "<I"
        immediate = int.from_bytes(struct.pack(order, length), "big")
        self._write(sender.data, sender.psn, sender.sent - 1, (va, rkey), immediate, payload)
        sender.psn += max(1, -(-length // self.options.mtu))

    def _write(
        self,
        flow: FlowKey,
        psn: int,
        number: int,
        at: tuple[int, int],
        immediate: int | None,
        payload: np.ndarray[tuple[int], np.dtype[np.uint8]],
    ) -> None:
        self.order += 1
        self.now_ns += STEP_NS
        self.job.messages.append(
            ObservedMessage(
                flow=flow,
                first_psn=psn,
                packets=max(1, -(-len(payload) // self.options.mtu)),
                number=number,
                psn_counted=True,
                va=at[0],
                rkey=at[1],
                immediate=immediate,
                wire_bytes=len(payload),
                payload=payload,
                first_ns=self.now_ns,
                order=self.order,
            )
        )


_Piece = tuple[int, int, bool]
"""(byte of the result, bytes, whether it is the sum)."""


def _reduced(options: Options, shape: Shape) -> dict[tuple[int, int], list[_Piece]]:
    """[sender, channel] what each rank beside rank 0 sends of an all-reduce; reduction.hop_by_hop
    has the bytes."""
    ranks, each = options.ranks, shape.element_bytes
    loads: dict[tuple[int, int], list[_Piece]] = {}
    for channel, loops in plan(shape).items():
        assert ranks_of(options, channel) == tuple(range(ranks))
        for sender in (0, ranks - 1):
            pieces = loads.setdefault((sender, channel), [])
            for chunks in loops:
                for step in range(2 * (ranks - 1)):
                    at, length = chunks[(sender - step - 1) % ranks]
                    for first, count in slices(length, each, shape.slices):
                        # The rank before the chunk's last adds its part: it is whole from there.
                        place = (at + first) * each, count * each, step >= ranks - 1
                        pieces.append(place)
    return loads


def _sender(connection: Connection) -> _Sender:
    pair = connection.pairs[0]
    ends = [".".join(map(str, port.ip)) for port in (connection.src, connection.dst)]
    return _Sender(
        connection,
        FlowKey(source=ends[0], destination=ends[1], dest_qp=pair.receiver_qpn),
        FlowKey(source=ends[1], destination=ends[0], dest_qp=pair.sender_qpn),
    )


def _flow(key: FlowKey, udp: int, messages: Sequence[ObservedMessage], mtu: int) -> ObservedFlow:
    return ObservedFlow(
        key=key,
        udp_source_port=udp,
        pmtu_bytes=mtu,
        frames=sum(message.packets for message in messages),
        payload_bytes=sum(message.wire_bytes for message in messages),
        psn_missing=0,
        psn_duplicate=0,
        icrc_bad=0,
        acks=0,
        first_ns=messages[0].first_ns,
        last_ns=messages[-1].first_ns,
    )
