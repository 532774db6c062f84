"""All messages that the collectives of a job send over one connection, and the bucket bytes in
each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.algorithms.algorithm_registry import connection_sends
from flowcheck.wire.collectives.nccl_parameters import (
    LL128_GROUP_BYTES,
    LL128_GROUP_DATA_BYTES,
    SPLIT_BYTES,
    Protocol,
)
from flowcheck.wire.collectives.send_table import Schedule
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import (
    CollectiveOp,
    Edge,
    LearnedJob,
    Role,
)


class SendKind(IntEnum):
    """How the extractor treats the payload of a message (`fc_send.kind` in
    dpdk_ext/core/fc_plan.h)."""

    IGNORED = 0
    """Not placed: the message carries no gradient."""
    PARTIAL = 1
    """A partial sum: its size is checked, its bytes are not placed."""
    FINAL = 2
    """A final result: placed by its segments."""


@dataclass(frozen=True, slots=True)
class EdgeMessage:
    """One message of one channel of an edge, with the part of a bucket that it carries. Sizes and
    positions in bytes; `skip_lines` in lines."""

    wire_bytes: int
    protocol: Protocol
    kind: SendKind
    start_byte: int
    data_bytes: int
    bucket: int
    skip_lines: int = 0
    buffer_broadcast: int | None = None
    """Index into `LearnedJob.buffer_broadcasts`; None: the message carries part of bucket
    `bucket`."""


class MessageColumns(NamedTuple):
    """Messages of one channel of an edge in their order, [message] each: what `EdgeMessage` says of
    one."""

    wire_bytes: NDArray[np.int64]
    protocols: NDArray[np.int64]
    """Places in `PROTOCOLS`."""
    kinds: NDArray[np.int64]
    start_bytes: NDArray[np.int64]
    data_bytes: NDArray[np.int64]
    buckets: NDArray[np.int64]
    skip_lines: NDArray[np.int64]
    buffer_broadcasts: NDArray[np.int64]
    """NO_BUFFER: it is of a bucket."""


PROTOCOLS = tuple(Protocol)
NO_BUFFER = -1


def iteration_sizes(
    job: LearnedJob,
) -> Iterator[tuple[tuple[int, int], tuple[FlowKey, ...], NDArray[np.int64]]]:
    """For each mirrored connection: ((edge, channel), its flows in the order of their turns,
    [messages] int64 wire bytes of one iteration)."""
    for place, edge in enumerate(job.edges):
        for channel, sent in enumerate(edge_columns(job, edge, job.each)):
            if turns := edge.turns(channel):
                yield (place, channel), turns, sent.wire_bytes


def op_sizes(job: LearnedJob, edge: Edge, op: CollectiveOp) -> tuple[tuple[int, ...], ...]:
    """[channel][message] wire bytes of what `op` sends over `edge`, whatever communicator `op`
    names."""
    own = msgspec.structs.replace(op, communicator=edge.communicator)
    return tuple(tuple(sent.wire_bytes.tolist()) for sent in edge_columns(job, edge, (own,)))


def edge_messages(
    job: LearnedJob, edge: Edge, ops: Iterable[CollectiveOp]
) -> list[list[EdgeMessage]]:
    """[channel][message] of everything `ops` sends over `edge`."""
    return [
        [
            EdgeMessage(
                wire_bytes=wire,
                protocol=PROTOCOLS[protocol],
                kind=SendKind(kind),
                start_byte=start,
                data_bytes=size,
                bucket=bucket,
                skip_lines=skip,
                buffer_broadcast=None if buffer == NO_BUFFER else buffer,
            )
            for wire, protocol, kind, start, size, bucket, skip, buffer in zip(
                *(column.tolist() for column in sent), strict=True
            )
        ]
        for sent in edge_columns(job, edge, ops)
    ]


def edge_columns(
    job: LearnedJob, edge: Edge, ops: Iterable[CollectiveOp]
) -> tuple[MessageColumns, ...]:
    """[channel] of everything `ops` sends over `edge`."""
    channels: list[list[_Part]] = [[] for _ in edge.flows]
    known: dict[object, Schedule] = {}
    for op in ops:
        if op.communicator != edge.communicator:
            continue
        for channel, part in _op_parts(job, edge, op, known):
            channels[channel].append(part)
    return tuple(_pieces(_joined(parts), edge.pieces) for parts in channels)


class _Part(NamedTuple):
    """What one collective sends on a channel."""

    op: CollectiveOp
    wire_bytes: NDArray[np.int64]
    start_bytes: NDArray[np.int64]
    data_bytes: NDArray[np.int64]
    final: NDArray[np.bool_]


def _op_parts(
    job: LearnedJob, edge: Edge, op: CollectiveOp, known: dict[object, Schedule]
) -> Iterator[tuple[int, _Part]]:
    """known: schedules of the edge so far: layers repeat."""
    if op.kind is None:
        for part in op.messages:
            size, start = np.array([part.data_bytes]), np.array([part.start_byte])
            yield part.channel, _Part(op, size, start, size, np.ones(1, np.bool_))
        return
    name = (op.kind, op.work_bytes, op.algorithm, op.element_bytes, op.root, op.protocol)
    if name not in known:
        known[name] = _schedule(job, edge, op)
    for channel, table in enumerate(known[name]):
        if len(table):
            yield (
                channel,
                _Part(op, table.wire_bytes, table.start_bytes, table.data_bytes, table.final),
            )


def _schedule(job: LearnedJob, edge: Edge, op: CollectiveOp) -> Schedule:
    communicator = job.communicators[edge.communicator]
    assert op.kind is not None
    return connection_sends(
        op.kind,
        op.work_bytes,
        sender=edge.writers,
        receiver=edge.receiver,
        trees=edge.trees,
        heads=edge.heads,
        nvls=communicator.nvls,
        algorithm=op.algorithm,
        found=communicator.found,
        element_bytes=op.element_bytes,
        extra_sends=communicator.extra_sends,
        root=op.root,
        ranks=communicator.ranks,
        gpus=communicator.gpus,
        channels=communicator.channels,
        protocol=op.protocol,
        era=job.era,
        tuning=communicator.tuning,
    )


def _joined(parts: Sequence[_Part]) -> MessageColumns:
    """Parts one behind the other."""
    if not parts:
        return MessageColumns(*(np.zeros(0, np.int64) for _ in MessageColumns._fields))
    counts = [len(part.wire_bytes) for part in parts]
    ops = [part.op for part in parts]
    buffers = [NO_BUFFER if op.buffer_broadcast is None else op.buffer_broadcast for op in ops]
    placed = [op.role is Role.BUCKET or op.buffer_broadcast is not None for op in ops]
    final = np.concatenate([part.final for part in parts])
    kinds = np.where(final, SendKind.FINAL, SendKind.PARTIAL)
    return MessageColumns(
        wire_bytes=np.concatenate([part.wire_bytes for part in parts]),
        protocols=np.repeat([PROTOCOLS.index(op.protocol) for op in ops], counts),
        kinds=np.where(np.repeat(placed, counts), kinds, SendKind.IGNORED).astype(np.int64),
        start_bytes=np.concatenate([part.start_bytes for part in parts]),
        data_bytes=np.concatenate([part.data_bytes for part in parts]),
        buckets=np.repeat([op.bucket for op in ops], counts),
        skip_lines=np.zeros(len(final), np.int64),
        buffer_broadcasts=np.repeat(buffers, counts),
    )


def _pieces(sent: MessageColumns, count: int) -> MessageColumns:
    """What each of `count` queue pairs carries of messages they split, empty pieces too; as
    nccl_parameters.pieces has it of one message."""
    if count == 1:
        return sent
    sent = MessageColumns(*(np.repeat(column, count) for column in sent))
    turn = np.tile(np.arange(count), len(sent.wire_bytes) // count)
    whole = sent.wire_bytes
    even = (whole + count - 1) // count
    size = (even + SPLIT_BYTES - 1) // SPLIT_BYTES * SPLIT_BYTES
    starts = np.minimum(turn * size, whole)
    stops = np.minimum(starts + size, whole)
    ll = sent.protocols == PROTOCOLS.index(Protocol.LL)
    ll128 = sent.protocols == PROTOCOLS.index(Protocol.LL128)
    # A group's data lies all over its lines.
    grouped = starts // LL128_GROUP_BYTES, -(-stops // LL128_GROUP_BYTES)
    begins, ends = (
        np.select([ll, ll128], [edge // 2, group * LL128_GROUP_DATA_BYTES], edge)
        for edge, group in zip((starts, stops), grouped, strict=True)
    )
    begins, ends = np.minimum(begins, sent.data_bytes), np.minimum(ends, sent.data_bytes)
    return sent._replace(
        wire_bytes=stops - starts,
        start_bytes=sent.start_bytes + begins,
        data_bytes=np.where(stops > starts, ends - begins, 0),
        skip_lines=np.where(ll128, starts % LL128_GROUP_BYTES // SPLIT_BYTES, 0),
    )
