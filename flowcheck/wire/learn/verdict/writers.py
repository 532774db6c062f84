"""Who wrote the sends of a collective, where the sizes of several ranks or channels are alike."""

from __future__ import annotations

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.verdict.trees import trees_open

LOG_TELLS = "NCCL's log of rank 0 tells (nccl_log in the job file, or analyze --nccl-log)"
WRITERS_OPEN = (
    "{} on channel {}: the chunks of every all-reduce on it are as "
    f"large on the wire as each other; {LOG_TELLS}"
)
FIRST_GPU = "which GPU of a node comes first"
PLACE = "where in the ring a mirrored rank stands"
SENDERS_OPEN = f"the ring index of the senders: sizes fit another as well; {LOG_TELLS}"


def writers_open(cut: Cut, communicator: Communicator) -> str:
    """Why nothing tells where the chunks of an all-reduce lie; empty: it is told, or no matter."""
    if cut.op.kind is not CollectiveKind.ALL_REDUCE:
        return ""
    if cut.op.tree and (told := trees_open(cut, communicator)):
        return told
    if _senders_open(communicator):
        return SENDERS_OPEN
    if cut.op.tree:
        return ""  # Which GPU of a node comes first in the ring is no matter.
    turns = _turns(cut, communicator)
    open_ = FIRST_GPU if communicator.ring.gpus > 1 else PLACE
    return WRITERS_OPEN.format(open_, ", ".join(map(str, turns))) if turns else ""


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
            tuple((n, s.wire_bytes) for n, s in sorted(stream.sends.items()))
            for stream, name in zip(edge.streams, names, strict=True)
            if name is not None and schedule[name]
        ]
        if len(set(histories)) < len(histories):
            return True
    return False
