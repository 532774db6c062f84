"""What speaks for several rows of connections being several communicators, or one."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.flows.rows import Row
from flowcheck.wire.learn.search.communicators import Communicator

IN_STEP = 0.9
"""Share of the all-reduces of two communicators that no chance lets begin together."""
SHORT_BYTES = 2048
"""On the wire: one number of each rank, in any protocol."""


def share_hosts(made: Sequence[Row]) -> bool:
    """Two rows touch one address: they are no ports of one communicator."""
    ends = [{end for s in row for end in (s.key.source, s.key.destination)} for row in made]
    return any(a & b for i, a in enumerate(ends) for b in ends[:i])


def own_links(made: Sequence[Row]) -> bool:
    """No two rows lead between the same addresses: they may be one ring, seen at ports of ranks
    that are no neighbours."""
    links = [{(s.key.source, s.key.destination) for s in row} for row in made]
    return len(links) > 1 and not any(a & b for i, a in enumerate(links) for b in links[:i])


def start_up_apart(made: Sequence[Row]) -> bool:
    """Every row begins with a send as short as the first one of DDP's start-up, as no further
    channel of a communicator does."""
    first = [[s.sends[0] for s in row if s.from_start and 0 in s.sends] for row in made]
    return all(any(send.wire_bytes <= SHORT_BYTES for send in own) for own in first)


def each_starts(found: Sequence[Communicator]) -> bool:
    """Trainers tell their parameters in each of them: none is a port of another's host."""
    return all(communicator.habits.shapes for communicator in found)


def in_step(found: Sequence[Communicator]) -> bool:
    """Nearly every all-reduce of one of them began while another one made one: they are rather
    channels of one communicator, unless a trainer's plan says how large its tensors are."""
    spans = [_spans(communicator) for communicator in found if not communicator.habits.shapes]
    for i, own in enumerate(spans):
        for others in spans[:i]:
            fewer, more = sorted((own, others), key=len)
            beside = sum(any(a <= begin <= b for a, b in more) for begin, _ in fewer)
            if fewer and beside >= IN_STEP * len(fewer):
                return True
    return False


def _spans(communicator: Communicator) -> list[tuple[int, int]]:
    """(first, last time) of every all-reduce."""
    found = []
    for cut in communicator.cuts.found:
        if cut.op.kind is CollectiveKind.ALL_REDUCE:
            seen = cut.times(communicator.ring)
            found += [(min(seen), max(seen))] if seen else []
    return found


def tells(communicator: Communicator) -> bool:
    """Both directions were seen, and something in it is no single broadcast: few sizes on one
    connection alone may be anything."""
    reduces = any(
        cut.op.licensed or cut.op.kind is not CollectiveKind.BROADCAST
        for cut in communicator.cuts.found
    )
    return reduces and len(communicator.ring.edges) > 1
