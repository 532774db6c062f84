"""Rings over nodes of several GPUs, and long ones: who writes on each channel, as one link tells.

The start-up counts the ranks, all GPUs of all nodes. One link is laid out by the program with its
writers left open; the sizes of its all-reduces then tell them, channel by channel, or the ranks
that clear-to-send messages name do. All links have to bear that out (`predicted.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.align.aligner import Aligner, Way, cuts_of
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.flows.groups import Group, Link
from flowcheck.wire.learn.flows.nodes import gaps, likeliest_first
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.search.writers import Writers
from flowcheck.wire.programs.ddp import ddp


def rings_over_nodes(
    group: Group,
    path: Sequence[Link],
    counted: Sequence[int],
    known: Known,
) -> Iterator[list[Ring]]:
    """Rings of these ranks that the group may be, those that are as likely together, the likeliest
    first; empty: the program does not foretell what its busiest link carried. counted: ranks by
    the start-up."""
    # To rank 0 come no broadcasts: the link that carried most shows all.
    lead = max(group.links, key=lambda link: sum(len(s.sends) for s in group.links[link]))
    for ranks in likeliest_first(group, path, counted):
        if ranks <= max(group.tags.values(), default=0):
            continue
        ring = _open(group, lead, ranks, known.rules)
        more = len(group.links) > 1
        ways = Aligner(ring, known.purse, goes_on=known.goes_on, extras=more).followed(ddp)
        guesses = sorted(_guesses(group, path, lead, ring, ways, known.logged), key=_penalty)
        yield from (list(alike) for _, alike in groupby(guesses, key=_penalty))


def _guesses(
    group: Group,
    path: Sequence[Link],
    lead: Link,
    ring: Ring,
    ways: Sequence[Way],
    logged: Sequence[RingOrder],
) -> list[Ring]:
    """Whom each way in which the lead may be laid out has writing, for each size of nodes."""
    found: list[Ring] = []
    for way in ways:
        cuts = cuts_of(ring, way)
        for gpus in gaps(group, path, ring.ranks):
            told = Writers(group, path, cuts, lead, gpus, logged).ring(ring.rules)
            if told is not None and told not in found:
                found.append(told)
    return found


def _penalty(ring: Ring) -> int:
    return ring.penalty


def _open(group: Group, lead: Link, ranks: int, rules: tuple[NcclEra, ...]) -> Ring:
    """One link, on which any rank may write."""
    return Ring(
        ranks=ranks,
        edges=(Edge(sender=0, streams=group.links[lead]),),
        channels=max(map(len, group.links.values())),
        extra_sends=0,
        rules=rules,
        penalty=group.penalty,
        order=group.order,
        sounding=True,
    )
