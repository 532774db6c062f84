"""Which point-to-point parcel belongs to which all-reduce: by count on both streams, or content.

Time never decides: a hole in a mirror may swallow parcels of one step and sends of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.p2p import Completion, Parcel, addresses_lacking, lacking, partial_of
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import PSN_OF_START, SendSeen, Stream
from flowcheck.wire.learn.search.alike import is_multiple
from flowcheck.wire.learn.trainer.grammar import BUCKET

Owed = tuple[int, tuple[tuple[int, int], ...]]
"""(index of an all-reduce, ranges its direction lacks)."""


def completions(
    ring: Ring, cuts: Sequence[Cut], streams: Sequence[Stream]
) -> dict[int, Completion]:
    """[index of cut] -> what completes it. A stream counts only if it runs between the addresses
    of the connections that lack what it carries."""
    found: dict[int, Completion] = {}
    for edge in ring.edges if streams else ():
        reduced = list(_owed(ring, edge, cuts))
        owed = [entry for entry in reduced if entry[1]]
        addresses = {a for i, _ in owed for a in addresses_lacking(cuts[i], ring, edge)}
        for stream in streams:
            if addresses != {(stream.key.source, stream.key.destination)}:
                continue
            told = _by_count(ring, edge, cuts, stream, reduced)
            if told is None:
                told = _by_content(ring, edge, cuts, stream, owed)
            found.update(told)
    return found


def _owed(ring: Ring, edge: Edge, cuts: Sequence[Cut]) -> Iterator[Owed]:
    for i, cut in enumerate(cuts):
        if cut.op.kind is CollectiveKind.ALL_REDUCE:
            yield i, lacking(cut, ring, edge)


def counted_until(ring: Ring, edge: Edge, cuts: Sequence[Cut]) -> int:
    """How many of `cuts` are counted without a break from the first send of the edge's
    connections: their ordinal is known."""
    place = ring.edges.index(edge)
    if not all(stream.from_start for stream in edge.streams):
        return 0
    at = tuple(0 for _ in edge.streams)
    for count, cut in enumerate(cuts):
        if cut.starts[place] != at or cut.doubt:
            return count
        at = tuple(
            n + (len(cut.schedules[place][c]) if c is not None else 0)
            for n, c in zip(at, cut.channels[place], strict=True)
        )
    return len(cuts)


def _by_count(
    ring: Ring, edge: Edge, cuts: Sequence[Cut], stream: Stream, owed: Sequence[Owed]
) -> dict[int, Completion] | None:
    """The n-th parcel belongs to the n-th all-reduce that lacks one; PSNs count parcels through
    holes, since NCCL starts a connection at PSN 0. None where the counts do not go together."""
    known = counted_until(ring, edge, cuts)
    counted = [entry for entry in owed if entry[0] < known]
    gradients = [entry for entry in counted if cuts[entry[0]].op.meaning == BUCKET]
    # Some trainers send nothing where nothing is lacking, and nothing after a metric.
    ways = [[e for e in way if e[1]] for way in (counted, gradients)] + [counted, gradients]
    distinct = {tuple(i for i, _ in way): way for way in ways if way}
    told = [
        t for w in distinct.values() if (t := _laid_out(ring, edge, cuts, stream, w)) is not None
    ]
    same = {frozenset((i, c.parcel.number) for i, c in t.items() if c.ranges) for t in told}
    return told[0] if len(same) == 1 else None


def _laid_out(
    ring: Ring, edge: Edge, cuts: Sequence[Cut], stream: Stream, owed: Sequence[Owed]
) -> dict[int, Completion] | None:
    """Parcels where the all-reduces say they lie; None if a send lies elsewhere or at an
    impossible time, or if content that should be alike differs."""
    sends = {send.first_psn: send for send in stream.sends.values()}
    psn, number, used = PSN_OF_START, 0, 0
    found: dict[int, Completion] = {}
    for place, (i, ranges) in enumerate(owed):
        size = sum(b - a for a, b in ranges)
        at, first = 0, number
        layout: list[int] = []
        pieces: list[tuple[int, SendSeen]] = []
        while at < size or not layout:
            send = sends.get(psn)
            wide = min(_widest(stream), size - at) if send is None else send.wire_bytes
            if wide > size - at or (size and not wide):
                return None
            if send is not None:
                pieces.append((at, send))
            psn += _packets(stream, wide, send)
            layout.append(wide)
            at += wide
            number += 1
        used += len(pieces)
        if not pieces:
            continue
        parcel = Parcel(stream, tuple(pieces), tuple(layout), first)
        later = owed[place + 1][0] if place + 1 < len(owed) else None
        if not _in_time(ring, edge, cuts, parcel, i, later):
            return None
        found[i] = Completion(parcel, ranges)
    if used < sum(p < psn for p in sends) or not found:
        return None
    return _not_unlike(ring, edge, cuts, found)


def _widest(stream: Stream) -> int:
    """Long parcels are cut into sends of this size; the last one holds the rest."""
    return max((s.wire_bytes for s in stream.sends.values()), default=0)


def _packets(stream: Stream, size: int, send: SendSeen | None) -> int:
    """PSNs that a send of `size` bytes takes, its closing write included."""
    if send is not None and send.closed:
        return send.stop_psn - send.first_psn
    alike = [
        s.stop_psn - s.first_psn for s in stream.sends.values() if s.closed and s.wire_bytes == size
    ]
    pmtu = stream.flow.pmtu_bytes
    return max(alike, default=-(-size // pmtu) if pmtu and size else 1)


def _in_time(
    ring: Ring, edge: Edge, cuts: Sequence[Cut], parcel: Parcel, i: int, later: int | None
) -> bool:
    """Not before its all-reduce began, and not after the next one ended."""
    times = _times(ring, edge, cuts[i])
    if times and parcel.first_ns < min(times):
        return False
    times = _times(ring, edge, cuts[later]) if later is not None else []
    return not times or parcel.first_ns <= max(times)


def _times(ring: Ring, edge: Edge, cut: Cut) -> list[int]:
    return [
        seen.message.first_ns
        for stream, number, _ in cut.sends(ring)
        if stream in edge.streams and (seen := stream.sends.get(number)) is not None
    ]


def _alike(ring: Ring, edge: Edge, cut: Cut, completion: Completion) -> bool | None:
    """Is the parcel what all ranks together add, if each adds what this one does?"""
    if not completion.ranges:
        return None
    own, own_seen = partial_of(cut, ring, edge)
    at = np.concatenate([np.arange(a, b) for a, b in completion.ranges])
    data, seen = completion.parcel.content()
    if ring.ranks != 2 or len(data) != len(at):
        return None
    return is_multiple(own[at], data, own_seen[at] & seen, ring.ranks)


def _not_unlike(
    ring: Ring, edge: Edge, cuts: Sequence[Cut], found: dict[int, Completion]
) -> dict[int, Completion] | None:
    """Where ranks add the same in some steps and a parcel is another's, nothing is believed."""
    verdicts = [_alike(ring, edge, cuts[i], c) for i, c in found.items()]
    return None if True in verdicts and False in verdicts else found


def _by_content(
    ring: Ring, edge: Edge, cuts: Sequence[Cut], stream: Stream, owed: Sequence[Owed]
) -> dict[int, Completion]:
    """Pairs that content alone tells: one parcel fits one all-reduce and no other."""
    hits: dict[int, list[Completion]] = {}
    takers: dict[int, int] = {}
    for i, ranges in owed:
        size = sum(b - a for a, b in ranges)
        for number, send in stream.sends.items():
            if send.wire_bytes != size:
                continue
            parcel = Parcel(stream, ((0, send),), (size,), number)
            completion = Completion(parcel, ranges)
            if _alike(ring, edge, cuts[i], completion):
                hits.setdefault(i, []).append(completion)
                takers[number] = takers.get(number, 0) + 1
    return {
        i: told[0]
        for i, told in hits.items()
        if len(told) == 1 and takers[told[0].parcel.number] == 1
    }
