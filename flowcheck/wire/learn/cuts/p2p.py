"""Point-to-point sends as parcels, and what a parcel adds to an all-reduce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import Canvas, unpacked
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.traffic.observed_messages import Range

SOURCE = "p2p (inferred)"


@dataclass(frozen=True, slots=True)
class Parcel:
    """Consecutive point-to-point sends of one connection, taken as one operation."""

    stream: Stream
    pieces: tuple[tuple[int, SendSeen], ...]
    """(first byte in the parcel, send) of every send that was seen."""
    layout: tuple[int, ...]
    """Bytes of all its sends, those not seen included."""
    number: int
    """Of its first send on the connection."""

    @property
    def size_bytes(self) -> int:
        return sum(self.layout)

    @property
    def first_ns(self) -> int:
        return min(send.message.first_ns for _, send in self.pieces)

    def content(self) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """(bytes, was each captured?)."""
        data = np.zeros(self.size_bytes, np.uint8)
        seen = np.zeros(self.size_bytes, np.bool_)
        for at, send in self.pieces:
            part = slice(at, at + send.wire_bytes)
            data[part], seen[part] = unpacked(send, Protocol.SIMPLE, send.wire_bytes)
        return data, seen


@dataclass(frozen=True, slots=True)
class Completion:
    """A parcel that holds what one direction of an all-reduce lacks."""

    parcel: Parcel
    ranges: tuple[Range, ...]
    """Of the tensor, in the order of the parcel's bytes."""

    def fits(self, canvas: Canvas) -> bool:
        """No byte of it contradicts a final byte that was seen."""
        return all(canvas.agrees(*part) for part in self._parts())

    def put(self, canvas: Canvas) -> None:
        """Place it."""
        for part in self._parts():
            canvas.put(*part)
        canvas.torn += sum(
            stop - start for _, send in self.parcel.pieces for start, stop in send.message.conflicts
        )

    def _parts(self) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.bool_]]]:
        """(first byte of a range, what is there, was it captured?)."""
        data, seen = self.parcel.content()
        at = 0
        for start, stop in self.ranges:
            part = slice(at, at + stop - start)
            yield start, data[part], seen[part]
            at = part.stop


def lacking(cut: Cut, ring: Ring, edge: Edge) -> tuple[Range, ...]:
    """Ranges of the tensor whose final value this edge never carries, by the schedule alone."""
    there = sorted(
        (send.start_byte, send.start_byte + send.data_bytes)
        for sends in cut.schedules[ring.edges.index(edge)]
        for send in sends
        if send.final and send.data_bytes  # one that holds nothing may stand behind the end
    )
    found: list[Range] = []
    at = 0
    for start, stop in [*there, (cut.op.work_bytes, cut.op.work_bytes)]:
        if start > at:
            found.append((at, start))
        at = max(at, stop)
    return tuple(found)


def addresses_lacking(cut: Cut, ring: Ring, edge: Edge) -> set[tuple[str, str]]:
    """(source, destination) of the connections that send a partial sum of what is lacking."""
    place = ring.edges.index(edge)
    ranges = lacking(cut, ring, edge)
    found: set[tuple[str, str]] = set()
    for stream, channel in zip(edge.streams, cut.channels[place], strict=True):
        for send in cut.schedules[place][channel] if channel is not None else ():
            first, stop = send.start_byte, send.start_byte + send.data_bytes
            if not send.final and any(first < b and a < stop for a, b in ranges):
                found.add((stream.key.source, stream.key.destination))
    return found


def partial_of(cut: Cut, ring: Ring, edge: Edge) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """([bytes] what the sender alone adds, [bytes] was it seen?): the first step of each loop
    carries one rank's part alone."""
    data = np.zeros(cut.op.work_bytes, np.uint8)
    seen = np.zeros(cut.op.work_bytes, np.bool_)
    for stream, number, send in cut.sends(ring):
        there = stream.sends.get(number)
        if there is None or send.final or stream not in edge.streams or not send.data_bytes:
            continue
        if send.chunk == (edge.sender - 1) % ring.ranks:
            part = slice(send.start_byte, send.start_byte + send.data_bytes)
            data[part], seen[part] = unpacked(there, cut.op.protocol, send.data_bytes)
    return data, seen
