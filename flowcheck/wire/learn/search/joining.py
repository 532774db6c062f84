"""Rings of which no connection was seen from its start: the capture begins amid the job.

The program of what a script sends again and again is laid over what they carried, begun at a place
where a collective likely begins. Where it foretells nothing the general search is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, wire_bytes
from flowcheck.wire.learn.cuts.candidates import Positions
from flowcheck.wire.learn.cuts.cut import Cuts, Purse
from flowcheck.wire.learn.flows.counted import COUNT_BYTES
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search import quiet
from flowcheck.wire.learn.search.causal import at_once, in_causal_order, leaves_none
from flowcheck.wire.learn.search.fills import ended
from flowcheck.wire.learn.search.heads import headed
from flowcheck.wire.learn.search.scores import explains_all
from flowcheck.wire.learn.trainer.aligner import Aligner, SumCheck, cuts_of
from flowcheck.wire.programs.script import repeated

FINALISTS = 3
"""Guesses that are tried where none forwards as many chunks as its ranks would."""
SKIPPED_COST = 0.5
"""For a send before the place from which on all is read."""
CHECKS: tuple[SumCheck, ...] = (at_once, leaves_none)
"""What is asked of the times of a sum, the surest first: what its connections carry of it they
carry at one time, and sizes alone would take a later one's sends as well."""


def joined_amid(guesses: Sequence[Ring], purse: Purse | None) -> Cuts | None:
    """All that was sent from a place on where a collective begins on every connection, with what
    lies before it as far as that is told; None where a start was seen, or where no place fits."""
    streams = [stream for edge in guesses[0].edges for stream in edge.streams] if guesses else []
    if not any(not stream.from_start for stream in streams) or any(map(_starts_up, streams)):
        return None
    plain = [ring for ring in guesses if not ring.extra_sends][:FINALISTS]
    for ring in _by_loops(guesses) or plain:
        first = tuple(tuple(stream.first for stream in edge.streams) for edge in ring.edges)
        # Behind a pause is surer than where what is forwarded begins anew.
        for start in dict.fromkeys([first, *quiet.starts(ring), *quiet.aligned(ring)]):
            if cuts := _read_from(ring, start, purse):
                left = quiet.skipped(ring, start)
                return headed(replace(cuts, skipped=left, cost=SKIPPED_COST * left))
    return None


def _read_from(ring: Ring, start: Positions, purse: Purse | None) -> Cuts | None:
    """What explains everything from a place on: of whose times most is asked."""
    for count in range(len(CHECKS), 0, -1):
        ways = Aligner(ring, purse, amid=CHECKS[:count]).followed(repeated, start)
        cuts = ended(cuts_of(ring, ways[0])) if ways else None
        if cuts is not None and explains_all(cuts) and _ordered(cuts):
            return cuts
    return None


def _ordered(cuts: Cuts) -> bool:
    """No connection carried sends of another all-reduce beside the others' of one, by their
    times."""
    return all(
        at_once(cut, cuts.ring) and in_causal_order(cut, cuts.ring)
        for cut in cuts.found
        if cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost
    )


def _starts_up(stream: Stream) -> bool:
    """It begins with a send as short as the first one of DDP's start-up; what a connection carries
    that is used for the first time amid a run is a part of a bucket or of the weights."""
    first = stream.sends.get(0) if stream.from_start else None
    if first is None:
        return False
    return first.wire_bytes == wire_bytes(first.protocol or stream.protocol, COUNT_BYTES)


def _by_loops(guesses: Sequence[Ring]) -> list[Ring]:
    """Guesses of as many ranks as what they forward says."""
    edges = guesses[0].edges
    if len(edges) != 2 or len(guesses[0].edges[0].streams) != len(edges[1].streams):
        return []
    least = min(ring.ranks for ring in guesses)
    told = quiet.loops(edges[0].streams, edges[1].streams, least)
    fits = [ring for ring in guesses if told is not None and ring.ranks == told.ranks]
    return fits[:FINALISTS]
