"""What nothing tells of the trees that an all-reduce went by."""

from __future__ import annotations

from flowcheck.findings.catalog.connections import TREE_CONNECTIONS_OPEN, TREES_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.double_binary_tree import is_second
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.communicators import Communicator


def trees_open(cut: Cut, communicator: Communicator) -> Finding | None:
    """Why the channels of a tree may be each other; None: they are told."""
    ring = communicator.ring
    used = sum(any(schedule[c] for schedule in cut.schedules) for c in range(ring.width))
    for rival in communicator.rivals:
        other = rival.ring
        ways = {
            tuple(is_second(c, of.found) for c in range(used))
            for of in (ring, other)
            if of.found and (of.ranks, of.gpus) == (ring.ranks, ring.gpus)
        }
        if len(ways) > 1:
            return TREES_OPEN(channels=ring.found, others=other.found)
        if len(ways) == 1 and other.found and _shared_out(other) != _shared_out(ring):
            return TREE_CONNECTIONS_OPEN()
    return None


def _shared_out(ring: Ring) -> set[tuple[object, ...]]:
    """Which connections are of which trees."""
    return {
        (edge.sender // ring.gpus, edge.receiver is None, edge.trees, *map(id, edge.streams))
        for edge in ring.edges
    }
