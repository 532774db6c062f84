"""From a learned job to the tables C obeys: for every flow, what each of its messages holds.

The tables mirror `struct fc_send` and `struct fc_segment` of dpdk_ext/core/fc_plan.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.buckets import BucketLayout
from flowcheck.wire.job import Communicator, Edge, Job, Op, Role
from flowcheck.wire.links import over_link
from flowcheck.wire.schedule import Protocol, Tuning
from flowcheck.wire.seen import FlowKey
from flowcheck.wire.terms import LL128_GROUP_BYTES, LL128_GROUP_DATA_BYTES, SPLIT_BYTES, pieces

SEND = np.dtype(
    [
        ("wire_bytes", "<u4"),
        ("first_segment", "<u4"),
        ("segments", "<u4"),
        ("protocol", "u1"),
        ("kind", "u1"),
        ("skip_lines", "u1"),
        ("reserved", "u1"),
    ]
)
SEGMENT = np.dtype([("data_byte", "<u4"), ("data_bytes", "<u4"), ("dst_byte", "<u8")])


class SendKind(IntEnum):
    IGNORED = 0
    """Its bytes belong to no gradient."""
    PARTIAL = 1
    """A partial sum: checked for size, placed nowhere."""
    FINAL = 2
    """Result bytes: placed by its segments."""


PROTOCOL_CODE = {Protocol.LL: 0, Protocol.LL128: 1, Protocol.SIMPLE: 2}
"""NCCL src/include/nccl_tuner.h, NCCL_PROTO_*."""
LINEAR_CODE = 3
"""LL128 of a job whose lines lie in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Consecutive messages of one flow."""

    sends: NDArray[np.void]
    """[messages] SEND."""
    segments: NDArray[np.void]
    """[pieces] SEGMENT; `dst_byte` counts in the state, registration order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """`first` once, from message `first_number` on; then `each` for ever, one step a round."""

    flow: FlowKey
    first_number: int
    first: Table
    each: Table
    flags_count: bool = True
    """A line's flag is its message's number plus one: no Simple send ever came between."""
    connection: int = 0
    """Flows of one connection have one plan: numbers in it are of the connection."""
    first_psn: int | None = None
    """Of this flow's first message from `first_number` on, where numbers are counted from there;
    None: from the start."""
    stride: int = 1
    phase: int = 0
    """Message n of this flow is number n * stride + phase of its connection."""

    def number(self, own: int) -> int:
        """In the plan, of message `own` of this flow."""
        return own * self.stride + self.phase

    second_at: int | None = None
    """Into the sends of `first`, where those of the second step begin; None: it is one step."""

    @property
    def first_steps(self) -> int:
        return 1 if self.second_at is None else 2


@dataclass(frozen=True, slots=True)
class _Message:
    wire_bytes: int
    protocol: Protocol
    kind: SendKind
    start_byte: int
    data_bytes: int
    bucket: int
    skip_lines: int = 0


def compile_flow_plans(job: Job) -> tuple[FlowPlan, ...]:
    """One plan per mirrored flow of the job's edges, in edge, channel and turn order."""
    first = [BucketLayout(job.reduced, bucket) for bucket in job.first_buckets]
    later = [BucketLayout(job.reduced, bucket) for bucket in job.buckets]
    plans: list[FlowPlan] = []
    connections = 0
    for edge in job.edges:
        before = _edge_messages(job, edge, job.first)
        two = len(job.first_iterations) > 1
        opening = _edge_messages(job, edge, job.first_iterations[0])
        repeated = _edge_messages(job, edge, job.each)
        for channel in range(len(edge.flows)):
            turns = edge.turns(channel)
            if not turns:
                continue
            codes = PROTOCOL_CODE | ({Protocol.LL128: LINEAR_CODE} if job.linear else {})
            tables = (
                _table(before[channel], first, codes),
                _table(repeated[channel], later, codes),
            )
            for phase, flow in enumerate(turns):
                plans.append(
                    FlowPlan(
                        flow=flow,
                        first_number=edge.first_numbers[channel] * edge.pieces,
                        first=tables[0],
                        each=tables[1],
                        flags_count=edge.flags_count and not edge.split,
                        connection=connections,
                        first_psn=edge.first_psns[channel][phase] if edge.first_psns else None,
                        stride=len(turns),
                        phase=phase,
                        second_at=len(opening[channel]) if two else None,
                    )
                )
            connections += 1
    return tuple(plans)


def iteration_sizes(
    job: Job,
) -> Iterator[tuple[tuple[int, int], tuple[FlowKey, ...], NDArray[np.int64]]]:
    """((edge, channel), flows by turns, [message] wire bytes) of what an iteration sends over each
    mirrored connection."""
    for place, edge in enumerate(job.edges):
        for channel, sent in enumerate(_edge_messages(job, edge, job.each)):
            if turns := edge.turns(channel):
                sizes = np.array([message.wire_bytes for message in sent], np.int64)
                yield (place, channel), turns, sizes


def op_sizes(job: Job, edge: Edge, op: Op) -> tuple[tuple[int, ...], ...]:
    """[channel][message] wire bytes of what `op` sends over `edge`."""
    own = msgspec.structs.replace(op, communicator=edge.communicator)
    channels = _edge_messages(job, edge, (own,))
    return tuple(tuple(message.wire_bytes for message in channel) for channel in channels)


def _edge_messages(job: Job, edge: Edge, ops: Iterable[Op]) -> list[list[_Message]]:
    """[channel][message] of everything `ops` sends over `edge`."""
    communicator = job.communicators[edge.communicator]
    channels: list[list[_Message]] = [[] for _ in edge.flows]
    for op in ops:
        if op.communicator != edge.communicator:
            continue
        for channel, message in _op_messages(job, communicator, edge, op):
            channels[channel] += _pieces(message, edge.pieces)
    return channels


def _pieces(message: _Message, count: int) -> Iterator[_Message]:
    """What each queue pair carries of a message they split, empty pieces too."""
    if count == 1:
        yield message
        return
    for start, stop in pieces(message.wire_bytes, count):
        begin, end, skip = start, stop, 0
        if message.protocol is Protocol.LL:
            begin, end = start // 2, stop // 2
        elif message.protocol is Protocol.LL128:
            # A group's data lies all over its lines.
            skip = start % LL128_GROUP_BYTES // SPLIT_BYTES
            begin = start // LL128_GROUP_BYTES * LL128_GROUP_DATA_BYTES
            end = -(-stop // LL128_GROUP_BYTES) * LL128_GROUP_DATA_BYTES
        begin, end = min(begin, message.data_bytes), min(end, message.data_bytes)
        yield replace(
            message,
            wire_bytes=stop - start,
            start_byte=message.start_byte + begin,
            data_bytes=end - begin if stop > start else 0,
            skip_lines=skip,
        )


def _op_messages(
    job: Job, communicator: Communicator, edge: Edge, op: Op
) -> Iterator[tuple[int, _Message]]:
    done = SendKind.FINAL if op.role is Role.BUCKET else SendKind.IGNORED
    if op.kind is None:
        for part in op.messages:
            yield (
                part.channel,
                _Message(
                    part.data_bytes, op.protocol, done, part.start_byte, part.data_bytes, op.bucket
                ),
            )
        return
    schedule = over_link(
        op.kind,
        op.work_bytes,
        sender=edge.writers,
        receiver=edge.receiver,
        tree=op.tree,
        found=communicator.found,
        element_bytes=op.element_bytes,
        extra_sends=communicator.extra_sends,
        root=op.root,
        ranks=communicator.ranks,
        channels=communicator.channels,
        protocol=op.protocol,
        rule=job.rule,
        tuning=Tuning(
            threads=communicator.threads,
            threshold=communicator.threshold,
            buffer_bytes=communicator.buffer_bytes,
        ),
    )
    for channel, sends in enumerate(schedule):
        for send in sends:
            kind = done if send.final or done is SendKind.IGNORED else SendKind.PARTIAL
            yield (
                channel,
                _Message(
                    send.wire_bytes, op.protocol, kind, send.start_byte, send.data_bytes, op.bucket
                ),
            )


def _table(
    messages: Sequence[_Message], layouts: Sequence[BucketLayout], codes: Mapping[Protocol, int]
) -> Table:
    sends: list[tuple[int, int, int, int, int, int, int]] = []
    segments: list[tuple[int, int, int]] = []
    for message in messages:
        first = len(segments)
        if message.kind is SendKind.FINAL and message.data_bytes:
            for piece in layouts[message.bucket].pieces(message.start_byte, message.data_bytes):
                offset = piece.bucket_byte - message.start_byte
                segments.append((offset, piece.size_bytes, piece.state_byte))
        code = codes[message.protocol]
        own = message.wire_bytes, first, len(segments) - first
        sends.append((*own, code, message.kind, message.skip_lines, 0))
    return Table(sends=np.array(sends, SEND), segments=np.array(segments, SEGMENT))
