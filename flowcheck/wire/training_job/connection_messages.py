"""All messages that the collectives of a job send over one connection, and the bucket bytes in
each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.algorithms.algorithm_registry import connection_sends
from flowcheck.wire.collectives.nccl_parameters import (
    LL128_GROUP_BYTES,
    LL128_GROUP_DATA_BYTES,
    SPLIT_BYTES,
    Protocol,
    pieces,
)
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import (
    CollectiveOp,
    Communicator,
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


def iteration_sizes(
    job: LearnedJob,
) -> Iterator[tuple[tuple[int, int], tuple[FlowKey, ...], NDArray[np.int64]]]:
    """For each mirrored connection: ((edge, channel), its flows in the order of their turns,
    [messages] int64 wire bytes of one iteration)."""
    for place, edge in enumerate(job.edges):
        for channel, sent in enumerate(edge_messages(job, edge, job.each)):
            if turns := edge.turns(channel):
                sizes = np.array([message.wire_bytes for message in sent], np.int64)
                yield (place, channel), turns, sizes


def op_sizes(job: LearnedJob, edge: Edge, op: CollectiveOp) -> tuple[tuple[int, ...], ...]:
    """[channel][message] wire bytes of what `op` sends over `edge`, whatever communicator `op`
    names."""
    own = msgspec.structs.replace(op, communicator=edge.communicator)
    channels = edge_messages(job, edge, (own,))
    return tuple(tuple(message.wire_bytes for message in channel) for channel in channels)


def edge_messages(
    job: LearnedJob, edge: Edge, ops: Iterable[CollectiveOp]
) -> list[list[EdgeMessage]]:
    """[channel][message] of everything that `ops` send over `edge`, in order. If queue pairs split
    each send, one message per piece."""
    communicator = job.communicators[edge.communicator]
    channels: list[list[EdgeMessage]] = [[] for _ in edge.flows]
    for op in ops:
        if op.communicator != edge.communicator:
            continue
        for channel, message in _op_messages(job, communicator, edge, op):
            channels[channel] += _pieces(message, edge.pieces)
    return channels


def _pieces(message: EdgeMessage, count: int) -> Iterator[EdgeMessage]:
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
    job: LearnedJob, communicator: Communicator, edge: Edge, op: CollectiveOp
) -> Iterator[tuple[int, EdgeMessage]]:
    placed = op.role is Role.BUCKET or op.buffer_broadcast is not None
    done = SendKind.FINAL if placed else SendKind.IGNORED
    if op.kind is None:
        for part in op.messages:
            yield (
                part.channel,
                EdgeMessage(
                    part.data_bytes, op.protocol, done, part.start_byte, part.data_bytes, op.bucket
                ),
            )
        return
    schedule = connection_sends(
        op.kind,
        op.work_bytes,
        sender=edge.writers,
        receiver=edge.receiver,
        trees=edge.trees,
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
    for channel, sends in enumerate(schedule):
        for send in sends:
            kind = done if send.final or done is SendKind.IGNORED else SendKind.PARTIAL
            yield (
                channel,
                EdgeMessage(
                    send.wire_bytes,
                    op.protocol,
                    kind,
                    send.start_byte,
                    send.data_bytes,
                    op.bucket,
                    buffer_broadcast=op.buffer_broadcast,
                ),
            )
