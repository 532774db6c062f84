"""Communicators that a script made beside a trainer's: its sums, laid out.

Nothing in them tells how many ranks there are. Where connections run between the same hosts as the
trainer's ring, these are its ranks in its order; where they run round in a circle of hosts, it is
one rank each. Whatever is not explained so as sums alone is for the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.flows.groups import alone, path_of
from flowcheck.wire.learn.flows.rings import Edge, Ring, rings
from flowcheck.wire.learn.flows.rows import Row, parts, rows
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_as
from flowcheck.wire.learn.search.together import in_step
from flowcheck.wire.learn.trainer.aligner import Aligner, Way, cuts_of
from flowcheck.wire.programs.script import sums

MOST_WAYS_APART = 8
"""Ways in which a row is parted."""
LEAST_LINKS = 2
"""Both directions, as one alone may be of anything."""


def sums_beside(
    streams: Sequence[Stream], trainers: Sequence[Ring], rules: tuple[NcclEra, ...]
) -> tuple[list[Communicator], list[Stream]]:
    """(communicators of sums alone among these connections, the connections of others). trainers:
    rings that programs foretell."""
    found: list[Communicator] = []
    left: list[Stream] = []
    for row in rows(streams):
        ways = ((row,), *islice(parts(row), MOST_WAYS_APART))
        own = next(filter(None, (_all_of(way, trainers, rules) for way in ways)), None)
        if own is None:
            left += row
        else:
            found += map(told_sums, own)
    return found, left


def _all_of(
    way: Sequence[Row], trainers: Sequence[Ring], rules: tuple[NcclEra, ...]
) -> list[Cuts] | None:
    """Each of these rows as sums; None: not every one of them is."""
    found: list[Cuts] = []
    for row in way:
        cuts = _sums(row, trainers, rules)
        if cuts is None:
            return None
        found.append(cuts)
    # What begins together is rather of channels of one.
    return None if len(way) > 1 and in_step(list(map(told_sums, found))) else found


def told_sums(cuts: Cuts) -> Communicator:
    """The communicator that these sums are all of."""

    def again(ring: Ring) -> Cuts:
        ways = Aligner(ring).followed(sums)
        return (_fewest(ring, ways) if ways else None) or cuts

    return read_as(cuts, (), None, in_order=True, read_again=again)


def _sums(row: Row, trainers: Sequence[Ring], rules: tuple[NcclEra, ...]) -> Cuts | None:
    """The row as sums, in the only way there is; None: it is something else, or may be."""
    if len({(s.key.source, s.key.destination) for s in row}) < LEAST_LINKS:
        return None
    if not all(s.from_start and len(s.sends) == s.stop and s.turns for s in row):
        return None
    for ring in _rings(row, trainers, rules):
        if ways := Aligner(ring).followed(sums):
            return _fewest(ring, ways)
    return None


def _fewest(ring: Ring, ways: Sequence[Way]) -> Cuts | None:
    """The way of the fewest sums; None: there is more than one such."""
    fewest = min(len(way.cuts) for way in ways)
    left = [way for way in ways if len(way.cuts) == fewest]
    return cuts_of(ring, left[0]) if len({_places(way) for way in left}) == 1 else None


def _rings(row: Row, trainers: Sequence[Ring], rules: tuple[NcclEra, ...]) -> Iterator[Ring]:
    """The ring that the row is, by the trainers' or by its hosts."""
    group = alone(row, ())
    for ring in trainers:
        links = {
            (edge.streams[0].key.source, edge.streams[0].key.destination): edge
            for edge in ring.around
        }
        if ring.gpus == 1 and set(group.links) == set(links):
            told = tuple(
                Edge(sender=edge.sender, streams=group.links[link]) for link, edge in links.items()
            )
            yield Ring(
                ranks=ring.ranks,
                edges=told,
                channels=max(map(len, group.links.values())),
                extra_sends=ring.extra_sends,
                rules=ring.rules,
                penalty=0,
                closed=ring.closed,
                order=group.order,
            )
            return
    path = path_of(group)
    if path is not None and path[-1][1] == path[0][0]:
        guesses = [r for r in rings(group, rules, {len(path)}) if not r.extra_sends]
        yield from sorted(guesses, key=lambda ring: ring.penalty)[:1]


def _places(way: Way) -> tuple[object, ...]:
    """Where its sums begin; how much of a last line each fills is asked later."""
    return tuple((cut.starts, cut.op.protocol, cut.op.algorithm) for cut in way.cuts)
