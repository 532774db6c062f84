"""Where an all-reduce begins whose connections were not seen from their start.

One that bears out its own beginning tells it of all that lie before and behind it without a gap,
on the connections it used. Where none does, the pauses of the ring are left: ranks wait for each
other between steps of training, and hardly amid a collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from flowcheck.findings.catalog.collective_evidence import AS_EACH_TIME, BEGINS_AFTER_PAUSE
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import Canvas, unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.causal import at_once, in_causal_order
from flowcheck.wire.learn.search.evidence import ENOUGH_BYTES, adds_up

LONGER = 4
"""How many times longer than any pause within a collective those between steps must be."""
LEAST_PAUSES = 2
"""So many of them: one alone may be anything."""


def beginnings(
    ring: Ring, cuts: Sequence[Cut], canvases: Sequence[Canvas], known: int
) -> dict[int, tuple[Finding, ...]]:
    """{index of an all-reduce whose beginning is told: what it rests on that is not sure}; the
    first `known` are counted from the start."""
    reduces = (i for i, cut in enumerate(cuts) if cut.op.kind is CollectiveKind.ALL_REDUCE)
    told: dict[int, tuple[Finding, ...]] = {i: () for i in reduces if i < known}
    for chain in _chains(ring, cuts):
        if all(i in told for i in chain):
            continue
        sure = [i for i in chain if begins_here(cuts[i], ring, canvases[i])]
        used = {name for i in sure for name in _used(cuts[i], ring)}
        rest = [i for i in chain if i not in told and i not in sure]
        rest = [i for i in rest if cuts[i].lost or at_once(cuts[i], ring)]
        told |= dict.fromkeys(sure, ())
        told |= {i: _early(cuts[i]) for i in rest if _used(cuts[i], ring) <= used}
        if any(i not in told for i in rest) and _at_pauses(ring, [cuts[i] for i in chain]):
            told |= {i: (BEGINS_AFTER_PAUSE(), *_early(cuts[i])) for i in rest if i not in told}
    return told


def _early(cut: Cut) -> tuple[Finding, ...]:
    return (AS_EACH_TIME(),) if cut.lost else ()


def _chains(ring: Ring, cuts: Sequence[Cut]) -> Iterator[list[int]]:
    """Indices of all-reduces each of which begins where the one before it ends on all connections.
    Of the first one alone sends may be missing, those before the capture."""
    chain: list[int] = []
    for i, cut in enumerate(cuts):
        reduces = cut.op.kind is CollectiveKind.ALL_REDUCE
        if chain and (not reduces or cut.lost or _ends(ring, cuts[i - 1]) != cut.starts):
            yield chain
            chain = []
        if reduces:
            chain.append(i)
    if chain:
        yield chain


def _ends(ring: Ring, cut: Cut) -> tuple[tuple[int, ...], ...]:
    """[edge][stream] the send behind its last one."""
    return tuple(
        tuple(
            n + (len(schedule[c]) if c is not None else 0) for n, c in zip(at, names, strict=True)
        )
        for at, names, schedule in zip(cut.starts, cut.channels, cut.schedules, strict=True)
    )


def _used(cut: Cut, ring: Ring) -> set[int]:
    return {id(stream) for stream, _, _ in cut.sends(ring)}


def _at_pauses(ring: Ring, cuts: Sequence[Cut]) -> bool:
    """The longest pauses lie between collectives, and all of these are in causal order."""
    spans = [sorted(cut.times(ring)) for cut in cuts]
    if not all(spans) or not all(in_causal_order(cut, ring) for cut in cuts if not cut.lost):
        return False
    inside = max((b - a for times in spans for a, b in pairwise(times)), default=0)
    between = [two[0] - one[-1] for one, two in pairwise(spans)]
    return sum(pause > LONGER * inside for pause in between) >= LEAST_PAUSES


def begins_here(cut: Cut, ring: Ring, canvas: Canvas) -> bool:
    """Content bears out where the collective begins: a reading shifted by some sends would take
    partial sums for results, which differ from one hop to the next."""
    if not at_once(cut, ring):
        return False
    if adds_up(cut, ring, canvas):
        return True
    if not cut.lost and _senders_named(ring) and _sizes_tell(cut, ring):
        return in_causal_order(cut, ring)
    return ring.ranks > 2 and len(ring.edges) > 1 and not cut.lost and _copies_agree(cut, ring)


def _senders_named(ring: Ring) -> bool:
    """Clear-to-send messages name who sends on every connection, and the ring agrees."""
    tags = [stream.tag for edge in ring.edges for stream in edge.streams]
    return None not in tags and not ring.penalty


def _sizes_tell(cut: Cut, ring: Ring) -> bool:
    """On every connection it fits at no later send of its own: a short chunk, or a last loop of
    shorter ones, stands where this start puts it. Who sends is a question of its own."""
    rows: dict[int, tuple[Stream, list[tuple[int, int]]]] = {}
    for stream, number, send in cut.sends(ring):
        rows.setdefault(id(stream), (stream, []))[1].append((number, send.wire_bytes))
    return not any(
        _fits_at(stream, row, shift)
        for stream, row in rows.values()
        for shift in range(1, len(row))
    )


def _fits_at(stream: Stream, row: Sequence[tuple[int, int]], shift: int) -> bool:
    """Sends that were not seen fit anything."""
    found = ((stream.sends.get(number + shift), size) for number, size in row)
    return all(send is None or send.wire_bytes == size for send, size in found)


def _copies_agree(cut: Cut, ring: Ring) -> bool:
    """Every chunk that both directions carry was seen whole twice, equal and not zero."""
    canvas = Canvas(cut.op.work_bytes)
    twice = False
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        if not send.final or not send.data_bytes:
            continue
        if seen is None or seen.message.missing:
            return False
        data, mask = unpacked(seen, cut.op.protocol, send.data_bytes)
        part = slice(send.start_byte, send.start_byte + send.data_bytes)
        if canvas.covered[part].any():
            if np.count_nonzero(data) * 2 < min(len(data), 2 * ENOUGH_BYTES):
                return False
            twice = True
        if canvas.put(send.start_byte, data, mask):
            return False
    return twice
