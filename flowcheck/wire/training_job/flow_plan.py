"""Compiles a learned job into the placement tables that the C extractor uses: for each flow, what
each of its messages contains. The tables have the layout of `struct fc_send` and `struct
fc_segment` (dpdk_ext/core/fc_plan.h)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.connection_messages import EdgeMessage, SendKind, edge_messages
from flowcheck.wire.training_job.gradient_buckets import BucketLayout, BufferLayout
from flowcheck.wire.training_job.learned_job import LearnedJob

SEND = np.dtype(
    [
        ("wire_bytes", "<u4"),
        ("first_segment", "<u4"),
        ("segments", "<u4"),
        ("protocol", "u1"),
        ("kind", "u1"),
        ("skip_lines", "u1"),
        ("held", "u1"),
    ]
)
SEGMENT = np.dtype([("data_byte", "<u4"), ("data_bytes", "<u4"), ("dst_byte", "<u8")])


PROTOCOL_CODE = {Protocol.LL: 0, Protocol.LL128: 1, Protocol.SIMPLE: 2}
"""Protocol codes: NCCL src/include/nccl_tuner.h, NCCL_PROTO_*."""
LINEAR_CODE = 3
"""Code for LL128 with data lines in linear order, as before NCCL 2.10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTable:
    """Placement of consecutive messages of one flow."""

    sends: NDArray[np.void]
    """[messages] of dtype SEND: size, protocol, kind, and range in `segments`."""
    segments: NDArray[np.void]
    """[pieces] of dtype SEGMENT: runs of payload; `dst_byte` is an offset in the flat gradient,
    registration order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """Placement plan of one flow: messages from number `first_number` on use `first` once, then
    `each` again and again, one iteration per round."""

    flow: FlowKey
    first_number: int
    first: MessageTable
    each: MessageTable
    flags_count: bool = True
    """True: the LL or LL128 flag of a line is the message number plus one, since no Simple send
    came between."""
    connection: int = 0
    """Number of the connection. Flows of one connection share a plan; message numbers in it count
    over the connection."""
    first_psn: int | None = None
    """PSN of this flow's first message from `first_number` on, if message numbers count from
    there; None: they count from the flow's start."""
    stride: int = 1
    phase: int = 0
    """Message n of this flow is message n * stride + phase of its connection."""

    def number(self, own: int) -> int:
        """Number in the plan of message `own` of this flow."""
        return own * self.stride + self.phase

    second_at: int | None = None
    """Index in `first.sends` at which the second iteration begins; None: `first` is one
    iteration."""

    @property
    def first_steps(self) -> int:
        """Number of iterations in `first`."""
        return 1 if self.second_at is None else 2


def compile_flow_plans(job: LearnedJob) -> tuple[FlowPlan, ...]:
    """One plan per mirrored flow of the job's edges, ordered by edge, channel and turn."""
    first = [BucketLayout(job.reduced, bucket) for bucket in job.first_buckets]
    later = [BucketLayout(job.reduced, bucket) for bucket in job.buckets]
    places = accumulate((held.nbytes for held in job.buffer_broadcasts), initial=job.gradient_bytes)
    held = [
        BufferLayout(place, one.nbytes)
        for place, one in zip(places, job.buffer_broadcasts, strict=False)
    ]
    plans: list[FlowPlan] = []
    connections = 0
    for edge in job.edges:
        before = edge_messages(job, edge, job.first)
        two = len(job.first_iterations) > 1
        opening = edge_messages(job, edge, job.first_iterations[0])
        repeated = edge_messages(job, edge, job.each)
        for channel in range(len(edge.flows)):
            turns = edge.turns(channel)
            if not turns:
                continue
            codes = PROTOCOL_CODE | ({Protocol.LL128: LINEAR_CODE} if job.linear else {})
            tables = (
                _table(before[channel], first, held, codes),
                _table(repeated[channel], later, held, codes),
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


def _table(
    messages: Sequence[EdgeMessage],
    layouts: Sequence[BucketLayout],
    held: Sequence[BufferLayout],
    codes: Mapping[Protocol, int],
) -> MessageTable:
    sends: list[tuple[int, int, int, int, int, int, int]] = []
    segments: list[tuple[int, int, int]] = []
    for message in messages:
        first = len(segments)
        if message.kind is SendKind.FINAL and message.data_bytes:
            behind = (
                layouts[message.bucket]
                if message.buffer_broadcast is None
                else held[message.buffer_broadcast]
            )
            for piece in behind.pieces(message.start_byte, message.data_bytes):
                offset = piece.bucket_byte - message.start_byte
                segments.append((offset, piece.size_bytes, piece.state_byte))
        code = codes[message.protocol]
        own = message.wire_bytes, first, len(segments) - first
        last = message.skip_lines, message.buffer_broadcast is not None
        sends.append((*own, code, message.kind, *last))
    return MessageTable(sends=np.array(sends, SEND), segments=np.array(segments, SEGMENT))
