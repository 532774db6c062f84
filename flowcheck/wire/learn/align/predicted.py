"""Communicators whose trainer's program foretells all that was seen of them.

One program's connections may lie among others': a script's metrics, a tensor-parallel layer,
another job. The rows that connections were made in say which may be its own; that the program
foretells every one of their messages, from the count of parameters to gradients, bears it out. What
is left is of others: sums of a script's own, or for the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from flowcheck.findings.catalog.collective_evidence import SIZE_CUT_OFF
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.left_over import sums_beside
from flowcheck.wire.learn.align.nodes_told import Guess
from flowcheck.wire.learn.align.ring_told import rings_told
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.match import beyond_end
from flowcheck.wire.learn.flows.groups import alone, path_of
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.rows import Row, parts, rows, unpaired, used_together
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_as
from flowcheck.wire.learn.search.started import counts_seen
from flowcheck.wire.learn.search.together import own_links
from flowcheck.wire.learn.trainer.aligner import Aligner, Way, cuts_of
from flowcheck.wire.programs.ddp import BUCKET, PART, ddp

MOST_WAYS_APART = 12
"""Ways in which a row is parted, of connections of several communicators of the same ranks."""

LEAST_LINKS = 2
"""Of a communicator among others: what one link alone carries may be part of a larger one."""

MOST_BESIDE = 0.8
"""Share of another communicator's sends, between the same hosts, that fall into collectives of the
trainer's. Channels of one have all there but few at their edges."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """What programs foretell."""

    communicators: tuple[Communicator, ...]
    left: tuple[Stream, ...]
    """Connections of others."""


def predicted(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    known: Known,
) -> Foretold | None:
    """The communicators of which a program foretells all that their connections carried; None: it
    foretells none."""
    cuts = _foretold(streams, grants, known)
    if cuts is not None:
        return Foretold((_communicator(cuts),), ())

    def asked(row: Row) -> Cuts | None:
        if _links(row) < LEAST_LINKS:
            return None
        cuts = _foretold(row, unpaired(row, streams, grants), known)
        return cuts if cuts is not None and _trains(cuts) else None

    found = _apart(streams, asked)
    own = {id(stream) for cuts in found for edge in cuts.ring.edges for stream in edge.streams}
    left = tuple(stream for stream in streams if id(stream) not in own)
    # What starts up there, or runs one way only, may be of the same one.
    if not found or counts_seen(left) or any(_links(row) < LEAST_LINKS for row in rows(left)):
        return None
    if any(may_be_channels(cuts, left) for cuts in found) or may_be_trees(found, left):
        return None
    if left and any(cuts.ring.branches for cuts in found):
        return None  # Whose trees they are the search tells.
    trainers = list(map(_communicator, found))
    beside, others = sums_beside(left, [one.ring for one in trainers], known.rules)
    return Foretold((*trainers, *beside), tuple(others))


def _apart(streams: Sequence[Stream], told: Callable[[Row], Cuts | None]) -> list[Cuts]:
    """Of connections of several communicators those that a program foretells."""
    made = rows(streams)
    if own_links([row for row in made if not _closed(row)]):
        return []  # They may be one ring, seen at ranks that are no neighbours.
    known: dict[frozenset[int], Cuts | None] = {}

    def asked(row: Row) -> Cuts | None:
        name = frozenset(map(id, row))
        if name not in known:
            known[name] = None if len(row) == len(streams) else told(row)
        return known[name]

    found: list[Cuts] = []
    for row in made:
        found += _most(((row,), *islice(parts(row), MOST_WAYS_APART)), asked)
    return found or _most(islice(used_together(streams), MOST_WAYS_APART), asked)


def _most(ways: Iterable[Sequence[Row]], asked: Callable[[Row], Cuts | None]) -> list[Cuts]:
    """By the way of parting connections in which a program foretells most of them: channels that
    carried no byte of its collectives may be left out and none of it contradicts that."""
    best: list[Cuts] = []
    for way in ways:
        found = [cuts for row in way if (cuts := asked(row)) is not None]
        if _connections(found) > _connections(best):
            best = found
        if _connections(best) == sum(map(len, way)):
            break
    return best


def _closed(row: Row) -> bool:
    """It runs round a circle of hosts, which is all of a ring."""
    path = path_of(alone(row, ()))
    return path is not None and path[-1][1] == path[0][0]


def _links(row: Row) -> int:
    return len({(stream.key.source, stream.key.destination) for stream in row})


def _connections(found: Sequence[Cuts]) -> int:
    return sum(len(edge.streams) for cuts in found for edge in cuts.ring.edges)


def _trains(cuts: Cuts) -> bool:
    """Gradients were reduced behind the start-up, which no other connections show by chance."""
    return any(cut.op.meaning in (BUCKET, PART) and not cut.lost for cut in cuts.found)


def may_be_channels(cuts: Cuts, left: Sequence[Stream]) -> bool:
    """Some of these connections may be channels of the same communicator, left out: half of the
    bytes on half of the channels would be a model of a smaller type. They are of others if all of
    them was seen, and it was mostly sent while this one was silent, or if they lead elsewhere from
    one of its hosts: those of other hosts may be other ports of these."""
    links = {(s.key.source, s.key.destination) for edge in cuts.ring.edges for s in edge.streams}
    spans = [(min(seen), max(seen)) for cut in cuts.found if (seen := cut.times(cuts.ring))]
    begins, ends = (np.sort(np.array(of, np.int64)) for of in zip(*spans, strict=True))
    hosts = {host for link in links for host in link}
    for stream in left:
        link = stream.key.source, stream.key.destination
        if not hosts & set(link):
            return True
        if link not in links:
            continue
        if not stream.from_start or len(stream.sends) < stream.stop:
            return True
        times = stream.columns.times_ns
        under_way = np.searchsorted(begins, times, "right") > np.searchsorted(ends, times, "left")
        if np.count_nonzero(under_way) > MOST_BESIDE * len(times):
            return True
    return False


def may_be_trees(found: Sequence[Cuts], left: Sequence[Stream]) -> bool:
    """Some of these connections run both ways between two hosts, as links of NCCL's trees do, and
    the trainer's do not: the search tells sums by trees by the trainer's ranks."""
    rings = {
        (s.key.source, s.key.destination)
        for cuts in found
        for edge in cuts.ring.edges
        for s in edge.streams
    }
    links = {(stream.key.source, stream.key.destination) for stream in left}
    return any((b, a) in links and not {(a, b), (b, a)} <= rings for a, b in links)


def _communicator(cuts: Cuts) -> Communicator:
    def again(ring: Ring) -> Cuts:
        ways = Aligner(ring).followed(ddp)
        return cuts_of(ring, ways[0]) if ways else cuts

    return read_as(cuts, (), None, in_order=True, read_again=again)


def _foretold(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    known: Known,
) -> Cuts | None:
    """All that these connections carried, by the program of DistributedDataParallel; None: it
    foretells something else, or nothing tells the ring, or more than one way."""
    for alike in rings_told(streams, grants, known):
        found = [
            (guess, way)
            for guess in alike
            for way in Aligner(guess.ring, known.purse, goes_on=known.goes_on).followed(ddp)
            if _all_are_the_rings(guess.ring, way)
        ]
        if found:
            return _only(found)
    return None


def _all_are_the_rings(ring: Ring, way: Way) -> bool:
    """Each connection taken for the ring's carried something round it, or by plain trees: others,
    of a head of NVLS trees, would have other channels."""
    if not ring.nvls.heads:
        return True
    used = {
        (number, place)
        for cut in way.cuts
        if cut.op.algorithm is not Algorithm.NVLS_TREE
        for number, (names, schedule) in enumerate(zip(cut.channels, cut.schedules, strict=True))
        for place, name in enumerate(names)
        if name is not None and schedule[name]
    }
    return all(
        (number, place) in used
        for number, edge in enumerate(ring.edges)
        if edge.receiver is None
        for place in range(len(edge.streams))
    )


def _only(found: Sequence[tuple[Guess, Way]]) -> Cuts | None:
    """The only ring that fits, and the first of ways that are alike but for NCCL's release."""
    # An added ring step shows once an all-reduce is whole.
    fits = [(guess, way) for guess, way in found if not guess.ring.extra_sends or way.reduces]
    if len({_sizes(way) for _, way in fits}) > 1:
        return _cut_off(fits)
    told = [(guess.ring, way) for guess, way in fits if guess.told_by in (None, way.meant)]
    if not told or any(ring is not told[0][0] for ring, _ in told):
        return None
    ring, way = told[0]
    if ring.extra_sends:
        return None  # What bears out the added step the search asks.
    if ring.branches and not any(cut.op.tree for cut in way.cuts):
        return None  # Trees were guessed, and none was seen.
    return cuts_of(ring, way)


def _cut_off(fits: Sequence[tuple[Guess, Way]]) -> Cuts | None:
    """Of ways in one ring that differ in nothing but the size of a last collective, amid which the
    capture ends, the first; None: they differ in more."""
    ring = fits[0][0].ring
    if any(guess.ring is not ring or way.before is None for guess, way in fits):
        return None
    if len({_sizes(way.before) for _, way in fits if way.before is not None}) > 1:
        return None
    lasts = [way.cut for _, way in fits if way.cut is not None]
    if any(not cut.lost or beyond_end(ring, cut) < cut.lost for cut in lasts):
        return None
    cuts = cuts_of(ring, fits[0][1])
    others = tuple(dict.fromkeys(cut.op.work_bytes for cut in lasts[1:]))
    last = replace(cuts.found[-1], doubt=SIZE_CUT_OFF(other_sizes_bytes=others))
    return replace(cuts, found=(*cuts.found[:-1], last))


def _sizes(way: Way) -> tuple[tuple[int, str], ...]:
    return tuple((cut.op.work_bytes, cut.op.meaning) for cut in way.cuts)
