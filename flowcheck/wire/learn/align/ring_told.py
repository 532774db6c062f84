"""Which ring the connections of a port are, where hosts, the ranks that clear-to-send messages name
and the count of ranks in a start-up say the same. Trees may run beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.flows.branches import rings_with_trees
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import alone, path_of
from flowcheck.wire.learn.flows.nodes import plain
from flowcheck.wire.learn.flows.rings import Ring, rings
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.started import ranks_started


def rings_told(
    streams: Sequence[Stream], grants: Sequence[Grants], rules: tuple[NcclEra, ...]
) -> Iterator[list[Ring]]:
    """The rings that these may be, those that are as likely by hosts and ranks named together, the
    likeliest first; empty: these tell none, or another form than one GPU a node and one port."""
    if not streams or not all(_whole(stream) for stream in streams):
        return
    paired = {stream.peer for stream in streams}
    group = alone(streams, [grant for grant in grants if grant.flow.key not in paired])
    path = path_of(group) if group.links else None
    if path is None:
        beside = sorted(rings_with_trees(streams, rules), key=_penalty)
        yield from (list(alike) for _, alike in groupby(beside, key=_penalty))
        return
    counted = ranks_counted(streams)
    if not counted or not plain(group, path, counted):
        return
    guesses = list(rings(group, rules, ranks_started(streams)))
    least = min(map(_penalty, guesses), default=0)
    yield [ring for ring in guesses if _penalty(ring) == least]


def _penalty(ring: Ring) -> int:
    """That a trainer adds a ring step is no likelier or unlikelier: both have to be asked."""
    return ring.penalty - ring.extra_sends


def _whole(stream: Stream) -> bool:
    """It was seen from its start on, and nothing of it was lost."""
    return stream.from_start and len(stream.sends) == stream.stop and bool(stream.turns)
