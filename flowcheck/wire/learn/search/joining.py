"""Rings of which no connection was seen from its start: the capture begins amid the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, wire_bytes
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import HASTY, Cut, Cuts, Purse, State, cut_stream
from flowcheck.wire.learn.cuts.purse import share
from flowcheck.wire.learn.flows.counted import COUNT_BYTES
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search import quiet
from flowcheck.wire.learn.search.causal import at_once, in_causal_order, leaves_none
from flowcheck.wire.learn.search.fills import ended
from flowcheck.wire.learn.search.heads import headed
from flowcheck.wire.learn.search.resume import resumed
from flowcheck.wire.learn.search.scores import explains_all, score_of
from flowcheck.wire.learn.trainer.grammar import Trainer
from flowcheck.wire.learn.trainer.stages import Stage

FINALISTS = 3
"""Guesses whose content is compared, and that are worked on where none fits at once."""
DISORDER_COST = 10.0
"""For an all-reduce whose sends were seen in an order that no ring makes."""
SKIPPED_COST = 0.5
"""For a send before the place from which on all is read."""


CHECKS = (at_once, leaves_none)
"""What is asked of the times of a sum, the surest first."""


class Amid(Trainer):
    """A trainer of whom nothing is known: what its connections carry of one sum they carry at one
    time, and sizes alone would take a later one's sends as well. checks: of those that every sum
    must pass, how many are asked."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self._checks = CHECKS[:checks]

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Iterator[Op]:
        if self.habits(ring, path).stage is not Stage.NOTHING:
            yield from super().__call__(ring, path, state)

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        if cut.op.kind is CollectiveKind.ALL_REDUCE and not all(
            of(cut, ring) for of in self._checks
        ):
            return False
        return super().accepts(ring, path, cut)


def joined_amid(guesses: Sequence[Ring], purse: Purse | None) -> list[Cuts]:
    """Read from the first send seen of each connection, as if nothing had been lost before it, and
    from places where a collective likely begins; none where a start was seen. The
    likeliest is the last one, with what lies before its first place as far as that is told."""
    streams = [stream for edge in guesses[0].edges for stream in edge.streams] if guesses else []
    if not any(not stream.from_start for stream in streams) or any(map(_starts_up, streams)):
        return []
    found: list[Cuts] = []
    for ring in (
        _by_loops(guesses) or [ring for ring in guesses if not ring.extra_sends][:FINALISTS]
    ):
        found += _from_places(ring, purse)
        if any(explains_all(cuts) and not _disordered(cuts) for cuts in found):
            break
    found.sort(key=_score, reverse=True)
    return [*found[:-1], headed(found[-1])] if explains_all(found[-1]) else found


def _starts_up(stream: Stream) -> bool:
    """It begins with a send as short as the first one of DDP's start-up; what a connection carries
    that is used for the first time amid a run is a part of a bucket or of the weights."""
    first = stream.sends.get(0) if stream.from_start else None
    if first is None:
        return False
    return first.wire_bytes == wire_bytes(first.protocol or stream.protocol, COUNT_BYTES)


def _score(cuts: Cuts) -> float:
    return score_of(cuts) + DISORDER_COST * _disordered(cuts)


def _disordered(cuts: Cuts) -> int:
    """Collectives whose connections carried sends of different ones, by their times."""
    return sum(
        not (at_once(cut, cuts.ring) and in_causal_order(cut, cuts.ring))
        for cut in cuts.found
        if cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost
    )


def _by_loops(guesses: Sequence[Ring]) -> list[Ring]:
    """Guesses of as many ranks as what they forward says."""
    edges = guesses[0].edges
    if len(edges) != 2 or len(guesses[0].edges[0].streams) != len(edges[1].streams):
        return []
    least = min(ring.ranks for ring in guesses)
    told = quiet.loops(edges[0].streams, edges[1].streams, least)
    fits = [ring for ring in guesses if told is not None and ring.ranks == told.ranks]
    return fits[:FINALISTS]


def _from_places(ring: Ring, purse: Purse | None) -> list[Cuts]:
    """Readings from every place where a collective may begin, until one of all-reduces alone leaves
    nothing to ask."""
    streams = tuple(tuple(stream.first for stream in edge.streams) for edge in ring.edges)
    found = []
    places = list(dict.fromkeys([streams, *quiet.starts(ring), *quiet.aligned(ring)]))
    ways = range(len(CHECKS), 0, -1)
    for start, checks in product(places, ways):
        with share(purse, len(ways) * len(places) + 1) as own:
            cuts = ended(cut_stream(ring, Amid(checks), effort=HASTY, start=start, purse=own))
        left = quiet.skipped(ring, start)
        cuts = replace(cuts, skipped=left, cost=cuts.cost + SKIPPED_COST * left)
        found.append(cuts)
        if explains_all(cuts) and not _disordered(cuts) and all(map(_whole_sum, cuts.found)):
            return found
    state = State(streams, tuple(tuple(None for _ in e.streams) for e in ring.edges), ring.rules)
    left = sum(len(stream.sends) for edge in ring.edges for stream in edge.streams)
    return [*found, resumed(Cuts(ring, (), state, left, 0.0), purse)]


def _whole_sum(cut: Cut) -> bool:
    return cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost
