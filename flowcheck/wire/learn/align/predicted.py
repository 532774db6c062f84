"""A communicator whose trainer's program foretells all that was seen of it."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.learn.align.aligner import Aligner, Way
from flowcheck.wire.learn.align.ring_told import rings_told
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.match import settled
from flowcheck.wire.learn.cuts.purse import Purse
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_as
from flowcheck.wire.programs.ddp import ddp


def predicted(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    purse: Purse | None = None,
    *,
    goes_on: bool = False,
) -> Communicator | None:
    """The communicator of these connections, where a program foretells all that they carried.
    purse: counts what is laid over them; goes_on: more comes, and is read then."""
    cuts = _foretold(streams, grants, rules, purse, goes_on)
    return None if cuts is None else read_as(cuts, (), None, in_order=True)


def _foretold(
    streams: Sequence[Stream],
    grants: Sequence[Grants],
    rules: tuple[NcclEra, ...],
    purse: Purse | None,
    goes_on: bool,
) -> Cuts | None:
    """All that these connections carried, by the program of DistributedDataParallel; None: it
    foretells something else, or nothing tells the ring, or more than one way."""
    for alike in rings_told(streams, grants, rules):
        found = [
            (ring, way)
            for ring in alike
            for way in Aligner(ring, purse, goes_on=goes_on).followed(ddp)
        ]
        if found:
            return _only(found)
    return None


def _only(found: Sequence[tuple[Ring, Way]]) -> Cuts | None:
    """The only ring that fits, and the first of ways that are alike but for NCCL's release."""
    # An added ring step shows once an all-reduce is whole.
    told = [(ring, way) for ring, way in found if not ring.extra_sends or _reduces(way)]
    if not told or any(ring is not told[0][0] for ring, _ in told):
        return None
    ring, way = told[0]
    if ring.extra_sends or len({_sizes(way) for _, way in told}) > 1:
        return None  # What bears out the added step the search asks.
    if ring.found and not any(cut.op.tree for cut in way.cuts):
        return None  # Trees were guessed, and none was seen.
    return _cuts(ring, way)


def _reduces(way: Way) -> bool:
    """It has an all-reduce that was seen whole."""
    return any(cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost for cut in way.cuts)


def _sizes(way: Way) -> tuple[tuple[int, str], ...]:
    return tuple((cut.op.work_bytes, cut.op.meaning) for cut in way.cuts)


def _cuts(ring: Ring, way: Way) -> Cuts:
    rules = way.state.rules
    cuts = tuple(settled(ring, cut, rules) for cut in way.cuts)
    return Cuts(ring, cuts, way.state, 0, 0.0)
