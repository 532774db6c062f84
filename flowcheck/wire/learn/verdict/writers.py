"""Who wrote the sends of a collective, where the sizes of several ranks or channels are alike."""

from __future__ import annotations

from flowcheck.findings.catalog.connections import (
    FIRST_GPU_OPEN,
    HEAD_CHANNELS_OPEN,
    NODES_OPEN,
    RING_PLACE_OPEN,
    SENDERS_OPEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.verdict.trees import trees_open


def writers_open(cut: Cut, communicator: Communicator) -> Finding | None:
    """Why nothing tells where the chunks of an all-reduce lie; None: it is told, or no matter."""
    if cut.op.kind is not CollectiveKind.ALL_REDUCE:
        return None
    if cut.op.tree and (told := trees_open(cut, communicator)):
        return told
    if _senders_open(communicator):
        return SENDERS_OPEN()
    if cut.op.algorithm is Algorithm.NVLS_TREE and communicator.ring.heads_open:
        return HEAD_CHANNELS_OPEN()
    if cut.op.tree:
        return None  # Which GPU of a node comes first in the ring is no matter.
    if communicator.ring.nodes_open:
        return NODES_OPEN()
    turns = _turns(cut, communicator)
    entry = FIRST_GPU_OPEN if communicator.ring.gpus > 1 else RING_PLACE_OPEN
    return entry(turns) if turns else None


def _senders_open(communicator: Communicator) -> bool:
    """Another ring index explains every size as well: chunks may be each other."""
    ring = communicator.ring
    return any(
        rival.ring.ranks == ring.ranks
        and [e.writers for e in rival.ring.edges] != [e.writers for e in ring.edges]
        for rival in communicator.rivals
    )


def _turns(cut: Cut, communicator: Communicator) -> list[int]:
    """Channels on which it carries something and nothing tells who writes."""
    turns = communicator.ring.turns
    return sorted(c for c in turns if any(schedule[c] for schedule in cut.schedules))


def channels_open(cut: Cut, communicator: Communicator) -> bool:
    """Two connections of an edge that carry something here had the same sizes all along, so
    that nothing tells which channel is which."""
    for edge, names, schedule in zip(
        communicator.ring.edges, cut.channels, cut.schedules, strict=True
    ):
        histories = [
            stream.columns.history
            for stream, name in zip(edge.streams, names, strict=True)
            if name is not None and schedule[name]
        ]
        if len(set(histories)) < len(histories):
            return True
    return False
