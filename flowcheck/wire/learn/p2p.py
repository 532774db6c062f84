"""Point-to-point sends, and whether one completes an all-reduce it follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.learn.cut import Cut
from flowcheck.wire.learn.place import Canvas, ranges_of, unpacked
from flowcheck.wire.learn.rings import Edge, Ring
from flowcheck.wire.learn.streams import SendSeen, Stream
from flowcheck.wire.terms import Kind, Protocol

SOURCE = "p2p (inferred)"


@dataclass(frozen=True, slots=True)
class Parcel:
    """Consecutive point-to-point sends of one connection, taken as one operation."""

    stream: Stream
    sends: tuple[SendSeen, ...]

    @property
    def size_bytes(self) -> int:
        return sum(send.wire_bytes for send in self.sends)

    @property
    def first_ns(self) -> int:
        return min(send.message.first_ns for send in self.sends)

    def content(self) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """(bytes, was each captured?)."""
        parts = [unpacked(s, Protocol.SIMPLE, s.wire_bytes) for s in self.sends]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


@dataclass(frozen=True, slots=True)
class Completion:
    """A parcel that holds what one direction of an all-reduce lacks."""

    parcel: Parcel
    ranges: tuple[tuple[int, int], ...]
    """Of the tensor, in the order of the parcel's bytes."""

    def fits(self, canvas: Canvas) -> bool:
        """No byte of it contradicts a final byte that was seen."""
        data, seen = self.parcel.content()
        at = 0
        for start, stop in self.ranges:
            size = stop - start
            if not canvas.agrees(start, data[at : at + size], seen[at : at + size]):
                return False
            at += size
        return True

    def put(self, canvas: Canvas) -> None:
        """Place it."""
        data, seen = self.parcel.content()
        at = 0
        for start, stop in self.ranges:
            canvas.put(start, data[at : at + stop - start], seen[at : at + stop - start])
            at += stop - start


def lacking(cut: Cut, ring: Ring, edge: Edge) -> tuple[tuple[int, int], ...]:
    """Ranges of the tensor whose final value this edge never carries, by the schedule alone."""
    there = np.zeros(cut.op.work_bytes, np.bool_)
    schedule = cut.schedules[ring.edges.index(edge)]
    for sends in schedule:
        for send in sends:
            if send.final:
                there[send.start_byte : send.start_byte + send.data_bytes] = True
    return ranges_of(~there)


def completions(
    ring: Ring, cuts: Sequence[Cut], streams: Sequence[Stream]
) -> dict[int, Completion]:
    """[index of cut] -> what completes it. A stream counts only if it runs to an address the
    ring's own sends go to, one parcel follows each all-reduce, and every parcel is exactly as
    large as what its direction lacks."""
    found: dict[int, Completion] = {}
    for edge in ring.edges:
        ends = {(s.key.source, s.key.destination) for s in edge.streams}
        for stream in streams:
            if (stream.key.source, stream.key.destination) in ends:
                told = _follow(ring, edge, cuts, stream)
                # A ring over two ports, and one send to one of them, may be a coincidence.
                if len(ends) == 1 or len(told) > 1:
                    found.update(told)
    return found


def _edge_time(ring: Ring, edge: Edge, cut: Cut) -> int | None:
    """When the first send of `cut` on `edge` was seen."""
    return min(
        (
            seen.message.first_ns
            for stream, number, _ in cut.sends(ring)
            if stream in edge.streams and (seen := stream.sends.get(number)) is not None
        ),
        default=None,
    )


def _follow(ring: Ring, edge: Edge, cuts: Sequence[Cut], stream: Stream) -> dict[int, Completion]:
    """Parcels of `stream` by the all-reduce they follow; {} if one does not fit, or if more
    all-reduces lack theirs than lost sends and the end of the capture explain."""
    timed = [
        (time, i)
        for i, cut in enumerate(cuts)
        if cut.op.kind is Kind.ALL_REDUCE and (time := _edge_time(ring, edge, cut)) is not None
    ]
    sends = [stream.sends[n] for n in sorted(stream.sends)]
    lost = stream.stop - stream.first - len(sends)
    found: dict[int, Completion] = {}
    bare = 0
    for place, (after, i) in enumerate(timed):
        until = timed[place + 1][0] if place + 1 < len(timed) else 1 << 63
        mine = [s for s in sends if after <= s.message.first_ns < until]
        ranges = lacking(cuts[i], ring, edge)
        if not mine:
            bare += bool(ranges)
            continue
        parcel = Parcel(stream, tuple(mine))
        if parcel.size_bytes != sum(b - a for a, b in ranges):
            return {}
        found[i] = Completion(parcel, ranges)
    early = any(s.message.first_ns < timed[0][0] for s in sends) if timed else True
    return {} if early or bare > lost + 1 else found
