"""One ring of which links between the mirrored ones are unseen: mirrors at ranks that are not
neighbours.

Hosts then hang together nowhere, and each mirror point reads as a communicator of its own, whole
and without a contradiction. That they are one shows in what they carry: all of a ring's links but
one pass on the same results. Two jobs have different gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

import numpy as np

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut, Cuts, Purse
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.cuts.purse import PURSE
from flowcheck.wire.learn.flows.groups import Link, alone
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.search.communicators import HINT, Communicator, read_guesses
from flowcheck.wire.learn.search.evidence import ENOUGH_BYTES
from flowcheck.wire.learn.search.scores import contradicted

MOST_GUESSES = 64
"""Places of two parts in one ring that are tried."""
GUESS_PURSE = (200, 4)
"""Steps of the search for one of them, and for each send: what was read already fits at once."""
Item = TypeVar("Item")


def joined(found: Sequence[Communicator], purse: Purse | None) -> list[Communicator]:
    """The communicators, those that are parts of one ring as one."""
    told: list[Communicator] = []
    for communicator in found:
        for i, other in enumerate(told):
            one = _one_of(other, communicator, purse)
            if one is not None:
                told[i] = one
                break
        else:
            told.append(communicator)
    return told


def forwards(cuts: Cuts, own: Sequence[int]) -> bool:
    """Some edges, by their indices, and the others passed on the same results of a sum, as far as
    both were seen: enough of it that it is no chance."""
    others = [i for i in range(len(cuts.ring.edges)) if i not in own]
    reduces = (cut for cut in cuts.found if cut.op.kind is CollectiveKind.ALL_REDUCE)
    return any(_equal_bytes(cut, cuts.ring, own, others) >= ENOUGH_BYTES for cut in reduces)


def _one_of(one: Communicator, two: Communicator, purse: Purse | None) -> Communicator | None:
    """Both as one communicator; None where they may be two."""
    if not _alike(one, two):
        return None
    mine = {id(stream) for edge in one.ring.edges for stream in edge.streams}
    streams = [s for of in (one, two) for edge in of.ring.edges for s in edge.streams]
    sends, budget = sum(len(s.sends) for s in streams), purse.budget if purse else None

    def fits(ring: Ring) -> bool:
        read = read_guesses([ring], Purse.of(GUESS_PURSE, sends, budget))
        if read is None or read.cuts.unread or contradicted(read.cuts):
            return False
        own = [i for i, edge in enumerate(read.ring.edges) if id(edge.streams[0]) in mine]
        return forwards(read.cuts, own)

    turns = _turns(one)
    ring = next(filter(fits, _rings(one.ring, two.ring, turns)), None)
    if ring is None:
        return None
    # Where they lie to each other is told; in the ring all may lie elsewhere as well.
    others = [_turned(ring, turn) for turn in range(1, ring.ranks)] if turns else []
    return read_guesses([ring, *filter(fits, others)], Purse.of(PURSE, sends, budget))


def _alike(one: Communicator, two: Communicator) -> bool:
    """They may be parts of one ring: as many ranks and channels, other links, the same sums."""
    rings = one.ring, two.ring
    shapes = {(r.ranks, r.gpus, r.channels, r.extra_sends, r.found) for r in rings}
    if len(shapes) > 1 or rings[0].ranks < len(rings[0].edges) + len(rings[1].edges):
        return False
    links = [_links(ring) for ring in rings]
    if None in links or rings[0].branches or rings[0].gathers or rings[1].gathers:
        return False
    if set(links[0] or ()) & set(links[1] or ()) or one.cuts.unread or two.cuts.unread:
        return False
    sums = [
        [c.op.work_bytes for c in of.cuts.found if c.op.kind is CollectiveKind.ALL_REDUCE]
        for of in (one, two)
    ]
    both = min(map(len, sums))
    return both > 0 and sums[0][:both] == sums[1][:both]


def _links(ring: Ring) -> dict[Link, Edge] | None:
    """The edges by the addresses they lead between; None where an edge has several, or the writers
    on its channels differ."""
    found: dict[Link, Edge] = {}
    for edge in ring.edges:
        ends = {(s.key.source, s.key.destination) for s in edge.streams}
        if len(ends) > 1 or edge.senders or edge.receiver is not None:
            return None
        found[ends.pop()] = edge
    return found if len(found) == len(ring.edges) else None


def _turns(one: Communicator) -> list[int]:
    """Ring indices by which it may lie elsewhere, by all that it carried."""
    edges = one.ring.edges
    found = [
        (rival.ring.edges[0].sender - edges[0].sender) % one.ring.ranks
        for rival in one.rivals
        if rival.ring.ranks == one.ring.ranks and len(rival.ring.edges) == len(edges)
    ]
    return [turn for turn in dict.fromkeys(found) if turn]


def _turned(ring: Ring, turn: int) -> Ring:
    """All of it so many ring indices on."""
    edges = (replace(edge, sender=(edge.sender + turn) % ring.ranks) for edge in ring.edges)
    return _hinted(replace(ring, edges=tuple(edges)))


def _hinted(ring: Ring) -> Ring:
    """With the penalty of clear-to-send messages that name other ranks as writers."""
    named = [(edge.streams[0].tag, edge.sender) for edge in ring.edges]
    return replace(ring, penalty=HINT * sum(tag not in (None, sender) for tag, sender in named))


def _rings(one: Ring, two: Ring, turns: Sequence[int]) -> list[Ring]:
    """Both as one ring, the likeliest first: the first one where it was read or may as well lie,
    the second one anywhere else."""
    first, second = _links(one) or {}, _links(two) or {}
    streams = [s for of in (first, second) for edge in of.values() for s in edge.streams]
    group, ranks = alone(streams, ()), one.ranks
    rules = tuple(rule for rule in one.rules if rule in two.rules)
    found = []
    for turn, shift in product((0, *turns), range(ranks) if rules else ()):
        own = {link: (edge.sender + turn) % ranks for link, edge in first.items()}
        others = {link: (edge.sender + shift) % ranks for link, edge in second.items()}
        if set(own.values()) & set(others.values()):
            continue
        senders = own | others
        ordered = sorted(senders, key=lambda link: senders[link])
        edges = tuple(Edge(sender=senders[link], streams=group.links[link]) for link in ordered)
        ring = replace(one, edges=edges, rules=rules, closed=False, order=group.order)
        found.append(_hinted(ring))
    return sorted(found, key=lambda ring: ring.penalty)[:MOST_GUESSES]


def _equal_bytes(cut: Cut, ring: Ring, own: Sequence[int], others: Sequence[int]) -> int:
    """Of the result, not zero, that two sets of edges both passed on and that are the same."""
    one, two = (
        paint(_part(cut, of), replace(ring, edges=_at(ring.edges, of)))[0] for of in (own, others)
    )
    both = one.covered & two.covered & (one.result == two.result)
    return int(np.count_nonzero(one.result[both]))


def _part(cut: Cut, edges: Sequence[int]) -> Cut:
    """What it is on these edges."""
    return replace(
        cut,
        starts=_at(cut.starts, edges),
        channels=_at(cut.channels, edges),
        schedules=_at(cut.schedules, edges),
    )


def _at(of: Sequence[Item], places: Sequence[int]) -> tuple[Item, ...]:
    return tuple(of[i] for i in places)
