"""What one extractor has staged at one instant, copied out of memory that goes on to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowcheck._core import lib
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.shared_memory.merged_ranges import merged_spans
from flowcheck.plane.shared_memory.staging_file import NUMBER_UNKNOWN, Staging
from flowcheck.wire.traffic.observed_messages import (
    FlowKey,
    ObservedMessage,
    OtherBytes,
    Range,
)

PART_COLUMNS = ("flow", "first_psn", "packets", "number", "va", "rkey", "immediate", "length_bytes",
                "line_flag", "flags", "first_ns", "position")  # fmt: skip
"""Of struct fc_message (fc_flow.h), in the order in which `messages` takes them."""

NOTHING_MISSING: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class OrphanPacket:
    """A packet whose message its own mirror point does not know."""

    flow: FlowKey
    psn: int
    """Unwrapped."""
    payload: NDArray[np.uint8] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """Records of one extractor's flows and staged messages. Payloads of whole messages stay where
    they lie, which nothing overwrites while they are staged."""

    flows: NDArray[np.void] = field(repr=False)
    """[flows] a copy of `FlowTable.flows`."""
    keys: tuple[FlowKey, ...]
    """[flows] as the ring's own parser calls them."""
    records: NDArray[np.void] = field(repr=False)
    """[messages] struct fc_staged, in order of discovery."""
    partial: dict[int, NDArray[np.uint8]] = field(repr=False)
    """{index in `records`: a copy of the bitmap of its packets} of those that are not whole, or
    whose length was inferred."""
    orphans: tuple[OrphanPacket, ...] = field(repr=False)
    data: NDArray[np.uint8] = field(repr=False)
    """[data bytes] the region in which payloads lie."""
    live: NDArray[np.void] = field(repr=False)
    """[messages ever staged] the records as they are now."""
    rows: NDArray[np.intp] = field(repr=False)
    """[messages] where each lies in `live`."""
    differing: dict[int, tuple[OtherBytes, ...]] = field(default_factory=dict, repr=False)
    """{position of a message: where another copy has other bytes than its payload}, of copies that
    are kept."""
    only: frozenset[int] | None = None
    """Indices of the flows whose messages and packets it has; None: of all."""

    def messages(self) -> list[ObservedMessage]:
        """Every staged message, whole or not, in order of discovery. Costs some microseconds a
        message."""
        part = self.records["message"]
        columns = [part[name].tolist() for name in PART_COLUMNS]
        starts = (self.records["block_at"] + self.records["bitmap_bytes"]).tolist()
        differ = zip(
            self.records["conflict_from"].tolist(),
            self.records["conflict_stop"].tolist(),
            strict=True,
        )
        reth, counted = int(lib.FC_MESSAGE_RETH), int(lib.FC_MESSAGE_COUNTED)
        immediate, line_flag = int(lib.FC_MESSAGE_IMMEDIATE), int(lib.FC_MESSAGE_LINE_FLAG)
        inferred = int(lib.FC_MESSAGE_INFERRED)
        out = []
        rows = zip(starts, differ, *columns, strict=True)
        for index, (start, conflict, *told) in enumerate(rows):
            flow, psn, packets, number, va, rkey, word, size, flag, flags, first_ns, order = told
            payload, missing = self.data[start : start + size], NOTHING_MISSING
            others = self.differing.get(order, ())
            conflicts = [(at, at + len(other)) for at, other in others]
            conflicts += [conflict] if conflict[0] < conflict[1] else []
            if index in self.partial:
                payload, missing = self._partial(index, payload)
            out.append(
                ObservedMessage(
                    flow=self.keys[flow],
                    first_psn=psn,
                    packets=packets,
                    number=None if number == NUMBER_UNKNOWN else number,
                    psn_counted=bool(flags & counted),
                    va=va if flags & reth else None,
                    rkey=rkey if flags & reth else None,
                    immediate=word if flags & immediate else None,
                    wire_bytes=size,
                    length_inferred=bool(flags & inferred),
                    line_flag=flag if flags & line_flag else None,
                    payload=payload,
                    missing=missing,
                    conflicts=merged_spans(conflicts),
                    others=others,
                    first_ns=first_ns,
                    order=order,
                )
            )
        return out

    def _partial(
        self, index: int, payload: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], tuple[Range, ...]]:
        """(a copy of a payload with zeros where nothing had come, ranges of bytes that had not)."""
        record = self.records[index]
        message, size = record["message"], len(payload)
        packets, pmtu = int(message["packets"]), int(message["pmtu_bytes"])
        pmtu = pmtu if packets > 1 else max(1, size)  # as pmtu_of, fc_staging.c
        there = np.unpackbits(self.partial[index], count=packets, bitorder="little")
        edges = np.flatnonzero(np.diff(there, prepend=1, append=1)).reshape(-1, 2) * pmtu
        missing = tuple((start, min(stop, size)) for start, stop in edges.tolist() if start < size)
        out = payload.copy()
        # A message that turned out longer has another block since, and this one is used again; one
        # that was placed left its record and its block to another.
        now = self.live[self.rows[index]]
        same = now["state"] and now["message"]["position"] == message["position"]
        if not same or now["block_at"] != record["block_at"]:
            missing = ((0, size),)
        for start, stop in missing:
            out[start:stop] = 0
        return out, missing


def _differing(staging: Staging, records: NDArray[np.void]) -> dict[int, tuple[OtherBytes, ...]]:
    """As of StagedSnapshot. records: of the messages."""
    rows = {int(m["position"]): row for row, m in enumerate(records["message"])}
    found: dict[int, tuple[OtherBytes, ...]] = {}
    for position, psn, other in staging.other_copies():
        if (row := rows.get(position)) is None:
            continue
        record = records[row]
        message = record["message"]
        start = (psn - int(message["first_psn"])) * int(message["pmtu_bytes"])
        at = int(record["block_at"] + record["bitmap_bytes"]) + start
        stop = start + len(other)
        if not 0 <= start < stop <= int(message["length_bytes"]):
            continue
        unlike = staging.region()[at : at + len(other)] != other
        edges = np.flatnonzero(np.diff(np.concatenate([[False], unlike, [False]])))
        own = [(start + a, other[a:b].tobytes()) for a, b in edges.reshape(-1, 2).tolist()]
        found[position] = (*found.get(position, ()), *own)
    return found


def staged_snapshot_of(extractor: Extractor, only: Iterable[int] | None = None) -> StagedSnapshot:
    """Everything the extractor has staged and held. only: indices of the flows whose messages and
    packets count; None: all."""
    staging, keys = extractor.staging, extractor.own_keys()
    chosen = None if only is None else frozenset(only)
    records = extractor.refreshed_records()
    if chosen is not None:
        flows_of = staging.records()["message"]["flow"][records]
        records = records[np.isin(flows_of, np.fromiter(chosen, np.int64, len(chosen)))]
    copied = staging.records()[records]
    flags = copied["message"]["flags"] & lib.FC_MESSAGE_INFERRED
    torn = np.flatnonzero((copied["completed"] == 0) | (flags != 0))
    data = staging.region()
    blocks = zip(
        torn.tolist(),
        copied["block_at"][torn].tolist(),
        copied["bitmap_bytes"][torn].tolist(),
        strict=True,
    )
    partial = {index: data[at : at + size].copy() for index, at, size in blocks}
    orphans = tuple(
        OrphanPacket(keys[flow], psn, data)
        for flow, psn, data in staging.orphan_packets()
        if chosen is None or flow in chosen
    )
    flows = extractor.flows.flows()[: len(keys)].copy()
    return StagedSnapshot(
        flows=flows,
        keys=tuple(keys),
        records=copied,
        partial=partial,
        orphans=orphans,
        data=data,
        live=staging.records(),
        rows=records,
        differing=_differing(staging, copied) if staging.has_other_copies else {},
        only=chosen,
    )
