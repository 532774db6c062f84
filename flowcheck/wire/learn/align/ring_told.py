"""Which ring the connections of a port are, where hosts, the ranks that clear-to-send messages name
and the count of ranks in a start-up say the same. Trees may run beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.nodes_told import (
    Guess,
    rings_over_nodes,
    rings_with_nvls,
    rings_with_trees_over_nodes,
    rings_with_trees_over_ports,
    rings_with_trees_over_two_nodes,
)
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group, alone, groupings, path_of
from flowcheck.wire.learn.flows.nodes import plain
from flowcheck.wire.learn.flows.nvls import may_be_of_nvls
from flowcheck.wire.learn.flows.rings import Ring, rings
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import rings_with_trees
from flowcheck.wire.learn.search.started import ranks_started


def rings_told(
    streams: Sequence[Stream], grants: Sequence[Grants], known: Known
) -> Iterator[list[Guess]]:
    """The rings that these may be, those that are as likely by hosts and ranks named together, the
    likeliest first; empty: these tell none."""
    if not streams or not all(_whole(stream) for stream in streams):
        return
    yield from _of_rings_and_trees(streams, grants, known)
    yield from rings_with_trees_over_two_nodes(streams, known)
    yield from rings_with_trees_over_ports(streams, known)
    if may_be_of_nvls(streams, grants):
        yield from rings_with_nvls(streams, known)


def _of_rings_and_trees(
    streams: Sequence[Stream], grants: Sequence[Grants], known: Known
) -> Iterator[list[Guess]]:
    """The same but for NVLS trees."""
    paired = {stream.peer for stream in streams}
    unseen = [grant for grant in grants if grant.flow.key not in paired]
    group = alone(streams, unseen)
    if group.links and path_of(group) is not None:
        yield from _rings_of(group, known)
        return
    beside = sorted(rings_with_trees(streams, known.rules), key=_penalty)
    yield from ([*map(Guess, alike)] for _, alike in groupby(beside, key=_penalty))
    if not beside:
        yield from rings_with_trees_over_nodes(streams, known)
    for groups in groupings(streams, unseen):
        if len(groups) == 1 and path_of(groups[0]) is not None:
            yield from _rings_of(groups[0], known)


def _rings_of(group: Group, known: Known) -> Iterator[list[Guess]]:
    """Those of connections from one host to the next."""
    path = path_of(group) or []
    streams = [stream for of in group.links.values() for stream in of]
    counted = ranks_counted(streams)
    if not counted:
        return
    if plain(group, path, counted):
        guesses = list(rings(group, known.rules, ranks_started(streams)))
        least = min(map(_penalty, guesses), default=0)
        yield [Guess(ring) for ring in guesses if _penalty(ring) == least]
    yield from rings_over_nodes(group, path, counted, known)


def _penalty(ring: Ring) -> int:
    """That a trainer adds a ring step is no likelier or unlikelier: both have to be asked."""
    return ring.penalty - ring.extra_sends


def _whole(stream: Stream) -> bool:
    """It was seen from its start on, and nothing of it was lost."""
    return stream.from_start and bool(stream.turns)
