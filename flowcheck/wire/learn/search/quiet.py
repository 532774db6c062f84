"""Where a ring that was joined amid a collective begins the next one: behind a quiet time on all
its connections, since ranks wait for each other there, or where what is forwarded begins anew.

Only a place to start from: the sizes on the wire decide (cuts/cut.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.candidates import Positions
from flowcheck.wire.learn.flows.channels import mark, marks_of
from flowcheck.wire.learn.flows.nodes import MOST_RANKS
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream

MOST_STARTS = 8
FIRST_HALF = 0.5
"""Of all sends: a place that steps behind it have to bear out."""
MOST_LOOPS = 4
MOST_EXPLAINED = 0.4
"""Share of all sends that are of whole loops."""
TYPICAL = 8
"""How many times longer than the typical pause between two sends one must be, to be tried."""


def starts(ring: Ring, *, share: float = 1.0, most: int = MOST_STARTS) -> Iterator[Positions]:
    """Where all connections go on behind one of the longest pauses, the earliest first. share: of
    all sends those among which it is looked for, from the first one on; most: pauses."""
    streams = [stream for edge in ring.edges for stream in edge.streams]
    times = sorted(
        (*send.message.time, i, number)
        for i, stream in enumerate(streams)
        for number, send in stream.sends.items()
    )
    if len(times) < 2:
        return
    pauses = sorted(b[0] - a[0] for a, b in pairwise(times))
    least = max(1, TYPICAL * pauses[len(pauses) // 2])
    longest = sorted(
        (n for n in range(1, int(share * len(times))) if times[n][0] - times[n - 1][0] >= least),
        key=lambda n: times[n - 1][0] - times[n][0],
    )
    for n in sorted(longest[:most]):
        at = {i: stream.stop for i, stream in enumerate(streams)}
        for _, _, i, number in times[n:]:
            at[i] = min(at[i], number)
        rest = iter(at[i] for i in range(len(streams)))
        yield tuple(tuple(next(rest) for _ in edge.streams) for edge in ring.edges)


def aligned(ring: Ring) -> Iterator[Positions]:
    """Where loops begin on all connections at about one time, the earliest first."""
    if len(ring.edges) != 2 or len(ring.edges[0].streams) != len(ring.edges[1].streams):
        return
    found = loops(ring.edges[0].streams, ring.edges[1].streams, ring.ranks)
    if found is None or found.ranks != ring.ranks:
        return
    begins = [
        list(zip(edge.streams, of, strict=True))
        for edge, of in zip(ring.edges, (found.arriving, found.leaving), strict=True)
    ]
    lead = min((pair for row in begins for pair in row if pair[1]), key=_opening, default=None)
    if lead is None:
        return
    for number in lead[1][:MOST_LOOPS]:
        at = _when(lead[0], number)
        yield tuple(tuple(_nearest(stream, of, at) for stream, of in row) for row in begins)


def _nearest(stream: Stream, of: Sequence[int], at: tuple[int, int]) -> int:
    """The send of them that was seen at about that time."""
    return min(of, key=lambda number: _apart(_when(stream, number), at), default=stream.stop)


def _opening(pair: tuple[Stream, tuple[int, ...]]) -> tuple[int, int]:
    return _when(pair[0], pair[1][0])


def _when(stream: Stream, number: int) -> tuple[int, int]:
    send = stream.sends.get(number)
    return send.message.time if send is not None else (0, 0)


def _apart(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    return abs(one[0] - two[0]), abs(one[1] - two[1])


def skipped(ring: Ring, start: Positions) -> int:
    """Sends seen before the start."""
    return sum(
        number < n
        for edge, at in zip(ring.edges, start, strict=True)
        for stream, n in zip(edge.streams, at, strict=True)
        for number in stream.sends
    )


@dataclass(frozen=True, slots=True)
class Loops:
    """Where a ring's loops begin by what is forwarded."""

    ranks: int
    arriving: tuple[tuple[int, ...], ...]
    """[connection into a rank] numbers of the first sends of loops, ascending."""
    leaving: tuple[tuple[int, ...], ...]
    """The same of those out of it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The sends of a connection, by number from the first one seen."""

    stream: Stream
    told: NDArray[np.int8]
    """1: sent on, or come in before; -1: not; 0: empty, or nothing tells."""
    slices: NDArray[np.int8]
    """Sends of a chunk by its protocol; 0: not told."""
    late: int
    """1 for what goes out, one ring step later."""


def loops(one: Sequence[Stream], two: Sequence[Stream], least: int) -> Loops | None:
    """`two` send on what `one` brought, connection by connection: of an all-reduce of R ranks R - 2
    chunks that came in whole go out again one step later, and nothing else. None where no number
    of ranks, of at least `least`, explains most of what was sent."""
    into = [_row(a, marks_of(b), 0) for a, b in zip(one, two, strict=False)]
    out = [_row(b, marks_of(a), 1) for a, b in zip(one, two, strict=False)]
    best: tuple[float, int] = (0.0, 0)
    for ranks in range(max(3, least), MOST_RANKS + 1):
        best = max(best, (sum(_share(row, ranks) for row in (*into, *out)), ranks))
    share, ranks = best
    if share < MOST_EXPLAINED * len((*into, *out)):
        return None
    return Loops(
        ranks,
        tuple(tuple(row.stream.first + n for n, _ in _chain(row, ranks)) for row in into),
        tuple(tuple(row.stream.first + n for n, _ in _chain(row, ranks)) for row in out),
    )


def _row(stream: Stream, others: Collection[int], late: int) -> _Row:
    told = np.zeros(stream.stop - stream.first, np.int8)
    slices = np.zeros(stream.stop - stream.first, np.int8)
    for number, send in stream.sends.items():
        at = number - stream.first
        if (own := mark(send)) is not None:
            told[at] = 1 if own in others else -1
        if send.protocol is not None and send.wire_bytes:
            slices[at] = sends_per_chunk(CollectiveKind.ALL_REDUCE, send.protocol)
    return _Row(stream, told, slices, late)


def _fits(row: _Row, ranks: int, slices: int) -> NDArray[np.bool_]:
    """[send] a loop may begin here."""
    wide = 2 * (ranks - 1) * slices
    first = (ranks - 1 + row.late) * slices
    stop = first + (ranks - 2) * slices
    if len(row.told) < wide:
        return np.zeros(0, np.bool_)
    yes, no = (_counted(row.told == value) for value in (1, -1))
    other = _counted((row.slices > 0) & (row.slices != slices))
    at = np.arange(len(row.told) - wide + 1)
    whole = yes[at + stop] - yes[at + first]
    bad = no[at + stop] - no[at + first] + yes[at + wide] - yes[at] - whole
    bad += other[at + wide] - other[at]
    fits: NDArray[np.bool_] = (bad == 0) & (whole > 0) & (no[at + first] - no[at] > 0)
    return fits


def _counted(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[n] how many of the first n."""
    return np.concatenate([[0], np.cumsum(which)])


def _chain(row: _Row, ranks: int) -> list[tuple[int, int]]:
    """(first send, sends) of loops that do not overlap, from the first on."""
    found: list[tuple[int, int]] = []
    end = 0
    fits = [(n, s) for s in (1, 2) for n in np.flatnonzero(_fits(row, ranks, s)).tolist()]
    for at, slices in sorted(fits):
        if at >= end:
            wide = 2 * (ranks - 1) * slices
            found.append((at, wide))
            end = at + wide
    return found


def _share(row: _Row, ranks: int) -> float:
    """Of all sends, those in whole loops."""
    return sum(wide for _, wide in _chain(row, ranks)) / max(1, len(row.told))
