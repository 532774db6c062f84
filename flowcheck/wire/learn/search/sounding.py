"""Rings whose size or writers hosts do not tell: nodes of several GPUs, and long ones.

The start-up counts the ranks. One link is read with the writers left open, which the sizes of its
all-reduces then tell, channel by channel; where several fit, the ranks that clear-to-send messages
name may. What is still open is said (`Ring.turns`): of those channels no result is believed.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import HASTY, Cuts, Purse, cut_stream
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group, Link, path_of
from flowcheck.wire.learn.flows.nodes import gaps, likeliest_first, plain
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.trees import Fork
from flowcheck.wire.learn.search.writers import Writers
from flowcheck.wire.learn.trainer.grammar import Trainer

MOST_LEADS = 2
"""Links read with their writers open."""


def sounded(
    group: Group,
    rules: tuple[NcclEra, ...],
    purse: Purse | None,
    logged: Sequence[RingOrder] = (),
    fork: Fork | None = None,
) -> list[Ring]:
    """Rings this group may be, likeliest first; none where all tells of a plain ring, or where the
    start was not seen. logged: as NCCL's log has them; fork: of which trees are beside it."""
    path = path_of(group)
    counted = ranks_counted(s for of in group.links.values() for s in of)
    if path is None or not counted or plain(group, path, counted):
        return []
    found: list[tuple[int, float, Cuts, Link]] = []
    for ranks in likeliest_first(group, path, counted):
        if ranks <= max(group.tags.values(), default=0) or (fork and ranks != fork.ranks):
            continue
        for link in leads(group)[:MOST_LEADS]:
            cuts = _read(lead_ring(group, link, ranks, rules, fork), purse)
            if Trainer().habits(cuts.ring, cuts.found).shapes:
                found.append((cuts.unread, cuts.cost, cuts, link))
            if not cuts.unread:
                break
        if found and not found[-1][0]:
            break
    if not found:
        return []
    *_, cuts, lead = min(found, key=lambda one: one[:2])
    told = (
        Writers(group, path, cuts, lead, gap, logged, fork is not None)
        for gap in gaps(group, path, cuts.ring.ranks)
    )
    return [ring for one in told if (ring := one.ring(rules)) is not None]


def leads(group: Group) -> list[Link]:
    """Links, the one that carried most first: to rank 0 come no broadcasts."""
    return sorted(group.links, key=lambda link: -sum(len(s.sends) for s in group.links[link]))


def lead_ring(
    group: Group, link: Link, ranks: int, rules: tuple[NcclEra, ...], fork: Fork | None
) -> Ring:
    """One link, on which any rank may write, and the trees beside it."""
    ring = Ring(
        ranks=ranks,
        edges=(Edge(sender=0, streams=group.links[link]),),
        channels=max(map(len, group.links.values())),
        extra_sends=0,
        rules=rules,
        penalty=group.penalty,
        order=group.order,
        sounding=True,
    )
    return ring if fork is None else fork.beside(ring, lead=link[0])


def _read(ring: Ring, purse: Purse | None) -> Cuts:
    return cut_stream(ring, Trainer(), effort=HASTY, purse=purse)
