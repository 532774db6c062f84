"""Rings as NCCL's log has them, with the ranks that clear-to-send messages name as writers.

Over nodes of several GPUs they are all that tells where a run is joined; where its start was seen
the log only decides what sizes leave open (search/writers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog.connections import PLACES_BY_LOG
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.flows.groups import Group, Link, path_of
from flowcheck.wire.learn.flows.rings import Edge, Ring


def logged_rings(
    group: Group,
    rules: tuple[NcclEra, ...],
    orders: Sequence[RingOrder],
    most_gpus: int | None = None,
) -> Iterator[Ring]:
    """Those rings of the log whose writers are the ranks named on every connection. most_gpus: of a
    node; None: as many as there may be."""
    path = path_of(group)
    if path is None:
        return
    for order in orders:
        ranks = order.ranks or len(order.channels[0])
        for gpus in range(1, min(most_gpus or ranks, ranks // 2) + 1):
            edges = None if ranks % gpus else _edges(group, path, order, ranks, gpus)
            if edges is not None:
                yield Ring(
                    ranks=ranks,
                    edges=edges,
                    channels=max(len(streams) for streams in group.links.values()),
                    extra_sends=0,
                    rules=rules,
                    penalty=group.penalty,
                    order=group.order,
                    closed=path[-1][1] == path[0][0],
                    gpus=gpus,
                    borne_out=True,
                    by_gpu=(PLACES_BY_LOG(),),
                )


def _edges(
    group: Group, path: Sequence[Link], order: RingOrder, ranks: int, gpus: int
) -> tuple[Edge, ...] | None:
    """None where a rank is named that the log has writing elsewhere."""
    found = []
    first: list[int] | None = None
    for place, link in enumerate(path):
        streams = group.links.get(link)
        if streams is None:
            continue
        named = [
            None
            if stream.tag is None
            else order.index_of(stream.tag, channel=channel, ranks=ranks, gpus=gpus)
            for channel, stream in enumerate(streams)
        ]
        senders = tuple(index for index in named if index is not None)
        begins = [(index - place * gpus) % ranks for index in senders]
        if len(senders) < len(streams) or (first or begins)[: len(begins)] != begins:
            return None
        first = first or begins
        several = len(set(senders)) > 1
        found.append(Edge(sender=senders[0], streams=streams, senders=senders if several else ()))
    return tuple(found) or None
