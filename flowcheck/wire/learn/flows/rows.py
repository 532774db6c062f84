"""Which connections of a port were made together: those of one communicator, as far as hosts and
queue pair numbers tell.

A rank makes the connections of a communicator's rings one after the other, so that the numbers of
their queue pairs at its own end follow each other, and all of them lead from one rank before it
and to one behind it. Neither is certain where threads make queue pairs at once: a row is a guess
at which the search starts, and the sizes on the wire decide (cuts/cut.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np

from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import NOT_SEEN, Stream

UNEVEN_COST = 0.5
"""For a row in which one direction has more connections than the other, which happens where some
only broadcast; a row more costs 1."""
MOST_PARTS = 4
MOST_CUTS = 4
"""Communicators of the same ranks that are looked for in one row, and places it is cut at."""

Row = tuple[Stream, ...]


def rows(streams: Sequence[Stream]) -> list[Row]:
    """Streams by the rows they are of at the mirrored ports; rows of two ports that share a stream
    are one. Order: by when each was first used."""
    found: list[set[int]] = []
    for host, own in _hosts(streams):
        for row in _rows_of(host, own):
            ends = {id(stream) for stream in row}
            joined = ends.union(*(other for other in found if other & ends))
            found = [*(other for other in found if not other & ends), joined]
    made = [tuple(s for s in streams if id(s) in row) for row in found]
    return sorted(made, key=lambda row: min(s.flow.first_ns for s in row))


def parts(row: Row) -> Iterator[tuple[Row, ...]]:
    """Ways to part a row into communicators of the same ranks, the likeliest first: a rank makes
    all connections of one direction, then all of the other; as many channels in each; a later one
    begins where a connection is used before all behind it."""
    host = _hosts(row)[0][0]
    ordered = sorted(row, key=lambda s: _place(s, host))
    runs = [tuple(run) for _, run in groupby(ordered, key=lambda s: s.key.destination == host)]
    if len(runs) % 2 == 0 and 2 < len(runs) <= 2 * MOST_PARTS:
        yield tuple((*a, *b) for a, b in zip(runs[::2], runs[1::2], strict=True))
    into = [s for s in ordered if s.key.destination == host]
    out = [s for s in ordered if s.key.destination != host]
    for count in range(2, MOST_PARTS + 1):
        if (len(into) % count, len(out) % count) == (0, 0):
            a, b = len(into) // count, len(out) // count
            yield tuple(
                (*into[i * a : (i + 1) * a], *out[i * b : (i + 1) * b]) for i in range(count)
            )
    cuts = 0
    for at in range(1, len(ordered)):
        begins = min(s.flow.first_ns for s in ordered[at:])
        if begins in {s.flow.first_ns for s in ordered[at : at + 2]} and cuts < MOST_CUTS:
            cuts += 1
            yield tuple(ordered[:at]), tuple(ordered[at:])


def unpaired(row: Row, streams: Sequence[Stream], grants: Sequence[Grants]) -> list[Grants]:
    """Clear-to-send messages of connections whose data was not mirrored, and which can be of this
    row of these connections: they run between the same hosts, or there is no other row."""
    paired = {stream.peer for stream in streams}
    left = [grant for grant in grants if grant.flow.key not in paired]
    if len(row) == len(streams):
        return left
    ends = [{s.key.source, s.key.destination} for s in row]
    return [g for g in left if {g.flow.key.source, g.flow.key.destination} in ends]


def used_together(streams: Sequence[Stream]) -> Iterator[list[Row]]:
    """Streams in two groups or more, by how often a send of one was followed by one of another: a
    rank sends on what it received, on all channels at once."""
    share = {
        (a, b): count / min(len(streams[a].sends), len(streams[b].sends))
        for (a, b), count in _followed(streams).items()
    }
    group = list(range(len(streams)))
    steps: list[list[int]] = []
    for a, b in sorted(share, key=lambda pair: -share[pair]):
        if group[a] != group[b]:
            steps.append(list(group))
            group = [group[a] if of == group[b] else of for of in group]
    for names_then in steps[::-1][: MOST_PARTS - 1]:
        kept = [
            tuple(s for s, n in zip(streams, names_then, strict=True) if n == name)
            for name in dict.fromkeys(names_then)
        ]
        yield sorted(kept, key=lambda row: min(s.flow.first_ns for s in row))


def _followed(streams: Sequence[Stream]) -> dict[tuple[int, int], int]:
    """{two streams: how often a send of one was followed by one of the other}, those that did so
    first before others."""
    if not streams:
        return {}
    tables = [stream.columns for stream in streams]
    seen = [table.wire_bytes != NOT_SEEN for table in tables]
    names = np.repeat(np.arange(len(streams)), [np.count_nonzero(own) for own in seen])
    times, orders = (
        np.concatenate([column(table)[own] for table, own in zip(tables, seen, strict=True)])
        for column in (attrgetter("times_ns"), attrgetter("orders"))
    )
    by_time = names[np.lexsort((names, orders, times))]
    one, two = by_time[:-1], by_time[1:]
    other = one != two
    pairs = np.minimum(one, two)[other] * len(streams) + np.maximum(one, two)[other]
    found, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    order = np.argsort(first)
    return {
        divmod(pair, len(streams)): count
        for pair, count in zip(found[order].tolist(), counts[order].tolist(), strict=True)
    }


def _hosts(streams: Sequence[Stream]) -> list[tuple[str, list[Stream]]]:
    """The fewest addresses that all streams touch, busiest first: those of the mirrored ports. Of
    each the streams that touch it. Of two that touch as many of those left, the one that touches
    more in all: so rows of ports that follow each other in a ring are found to be one."""
    every = Counter(end for s in streams for end in (s.key.source, s.key.destination))
    left = list(streams)
    found: list[tuple[str, list[Stream]]] = []
    while left:
        touched = Counter(end for s in left for end in (s.key.source, s.key.destination))
        host = max(touched, key=lambda end: (touched[end], every[end], end))
        found.append((host, [s for s in streams if host in (s.key.source, s.key.destination)]))
        left = [s for s in left if host not in (s.key.source, s.key.destination)]
    return found


def _place(stream: Stream, host: str) -> tuple[str, int]:
    """What streams at a host are ordered by: the number its end of the queue pair has, or where
    that was not mirrored, the other end and its number."""
    if stream.key.destination == host:
        return "", stream.key.dest_qp
    if stream.peer is not None:
        return "", stream.peer.dest_qp
    return stream.key.destination, stream.key.dest_qp


def _rows_of(host: str, streams: Sequence[Stream]) -> list[Row]:
    """The fewest rows, each with one rank before and one behind it."""
    ordered = sorted(streams, key=lambda s: _place(s, host))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for stop in range(1, len(ordered) + 1):
        ways = []
        before, behind = set[str](), set[str]()
        into = out = 0
        for start in range(stop - 1, -1, -1):
            stream = ordered[start]
            if stream.key.destination == host:
                before.add(stream.key.source)
                into += 1
            else:
                behind.add(stream.key.destination)
                out += 1
            if len(before) > 1 or len(behind) > 1:
                break
            ways.append((best[start][0] + 1 + UNEVEN_COST * (into != out), start))
        best.append(min(ways))
    found: list[Row] = []
    stop = len(ordered)
    while stop:
        start = best[stop][1]
        found.append(tuple(ordered[start:stop]))
        stop = start
    return found[::-1]
