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
from flowcheck.wire.training_job.connection_messages import (
    NO_BUFFER,
    PROTOCOLS,
    MessageColumns,
    SendKind,
    edge_columns,
)
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
        ("module_buffer", "u1"),
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

    def sizes_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """[places] wire bytes of the message at each place of the plan, counted from its first one
        on; -1 before that."""
        first, each = self.first.sends["wire_bytes"], self.each.sends["wire_bytes"]
        period = max(1, len(each))
        whole = np.concatenate([first, each, [-1]]).astype(np.int64)
        beyond = len(first) + (places - len(first)) % period
        inside = np.where(places < len(first), places, beyond)
        return whole[np.where(places < 0, len(whole) - 1, inside)]

    @property
    def first_steps(self) -> int:
        """Number of iterations in `first`."""
        return 1 if self.second_at is None else 2

    def places_through(self, iteration: int) -> int:
        """Number of places up to the end of an iteration, counted from 1."""
        if iteration < self.first_steps:
            return self.second_at or 0
        return len(self.first.sends) + (iteration - self.first_steps) * len(self.each.sends)


def compile_flow_plans(job: LearnedJob) -> tuple[FlowPlan, ...]:
    """One plan per mirrored flow of the job's edges, ordered by edge, channel and turn."""
    first = [BucketLayout(job.reduced, bucket) for bucket in job.first_buckets]
    later = [BucketLayout(job.reduced, bucket) for bucket in job.buckets]
    places = accumulate((held.nbytes for held in job.buffer_broadcasts), initial=job.gradient_bytes)
    held = [
        BufferLayout(place, one.nbytes)
        for place, one in zip(places, job.buffer_broadcasts, strict=False)
    ]
    at_first, at_later = _Places.of(first, held), _Places.of(later, held)
    codes = PROTOCOL_CODE | ({Protocol.LL128: LINEAR_CODE} if job.linear else {})
    plans: list[FlowPlan] = []
    connections = 0
    two = len(job.first_iterations) > 1
    for edge in job.edges:
        before = edge_columns(job, edge, job.first)
        opening = edge_columns(job, edge, job.first_iterations[0]) if two else ()
        repeated = edge_columns(job, edge, job.each)
        for channel in range(len(edge.flows)):
            turns = edge.turns(channel)
            if not turns:
                continue
            tables = (
                _table(before[channel], at_first, codes),
                _table(repeated[channel], at_later, codes),
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
                        second_at=len(opening[channel].wire_bytes) if two else None,
                    )
                )
            connections += 1
    return tuple(plans)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the bytes of all buckets, and of the buffers behind them, belong: all laid one behind
    the other."""

    begins: NDArray[np.int64]
    """[bucket, then buffer broadcast] its first byte."""
    sizes: NDArray[np.int64]
    """[of the same] its bytes."""
    buckets: int
    run_begins: NDArray[np.int64]
    """[run] first byte."""
    run_places: NDArray[np.int64]
    """[run] the same in the state."""

    @classmethod
    def of(cls, buckets: Sequence[BucketLayout], held: Sequence[BufferLayout]) -> _Places:
        layouts: list[BucketLayout | BufferLayout] = [*buckets, *held]
        sizes = np.array([layout.size_bytes for layout in layouts], np.int64)
        begins = np.cumsum(sizes) - sizes
        runs = [(*layout.runs, int(begin)) for layout, begin in zip(layouts, begins, strict=True)]
        starts = [begin + start for own, _, begin in runs for start in own]
        places = [place for _, own, _ in runs for place in own]
        return cls(
            begins, sizes, len(buckets), np.array(starts, np.int64), np.array(places, np.int64)
        )

    def segments(self, sent: MessageColumns) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """([message] how many it has, SEGMENTs of all): a message is cut where its bytes' place in
        the state jumps. Raises ValueError if one leaves its bucket."""
        placed = np.flatnonzero((sent.kinds == SendKind.FINAL) & (sent.data_bytes > 0))
        counts = np.zeros(len(sent.kinds), np.int64)
        if not len(placed):
            return counts, np.zeros(0, SEGMENT)
        buffers = sent.buffer_broadcasts[placed]
        held = buffers != NO_BUFFER
        name = np.where(held, self.buckets + buffers, sent.buckets[placed])
        start, size = sent.start_bytes[placed], sent.data_bytes[placed]
        # A line's slack behind a buffer belongs nowhere.
        stop = np.where(held, np.minimum(start + size, self.sizes[name]), start + size)
        if (start < 0).any() or (stop > self.sizes[name]).any():
            raise ValueError("a message leaves its bucket")
        start, stop = start + self.begins[name], np.maximum(start, stop) + self.begins[name]
        first = np.searchsorted(self.run_begins, start, "right") - 1
        own = np.searchsorted(self.run_begins, stop, "left") - first
        own[start == stop] = 0
        counts[placed] = own
        of = np.repeat(np.arange(len(placed)), own)
        run = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(own) - own, own)
        ends = np.append(self.run_begins[1:], self.sizes.sum())
        begin = np.maximum(self.run_begins[run], start[of])
        end = np.minimum(ends[run], stop[of])
        found = np.zeros(len(of), SEGMENT)
        found["data_byte"], found["data_bytes"] = begin - start[of], end - begin
        found["dst_byte"] = self.run_places[run] + begin - self.run_begins[run]
        return counts, found


def _table(sent: MessageColumns, places: _Places, codes: Mapping[Protocol, int]) -> MessageTable:
    counts, segments = places.segments(sent)
    sends = np.zeros(len(counts), SEND)
    sends["wire_bytes"], sends["kind"] = sent.wire_bytes, sent.kinds
    sends["first_segment"], sends["segments"] = np.cumsum(counts) - counts, counts
    sends["protocol"] = np.array([codes[one] for one in PROTOCOLS])[sent.protocols]
    sends["skip_lines"] = sent.skip_lines
    sends["module_buffer"] = sent.buffer_broadcasts != NO_BUFFER
    return MessageTable(sends=sends, segments=segments)
