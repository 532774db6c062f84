"""A communicator whose trainer's program foretells all that was seen of it."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.align.aligner import Way, followed
from flowcheck.wire.align.ring_told import rings_told
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.match import settled
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.roles import Grants
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator, read_as
from flowcheck.wire.programs.ddp import ddp


def predicted(
    streams: Sequence[Stream], grants: Sequence[Grants], rules: tuple[NcclEra, ...]
) -> Communicator | None:
    """The communicator of these connections, where a program foretells all that they carried."""
    cuts = _foretold(streams, grants, rules)
    return None if cuts is None else read_as(cuts, (), None, in_order=True)


def _foretold(
    streams: Sequence[Stream], grants: Sequence[Grants], rules: tuple[NcclEra, ...]
) -> Cuts | None:
    """All that these connections carried, by the program of DistributedDataParallel; None: it
    foretells something else, or nothing tells the ring, or more than one way."""
    found = [
        (ring, way) for ring in rings_told(streams, grants, rules) for way in followed(ring, ddp)
    ]
    if not found or len({_sizes(way) for _, way in found}) > 1:
        return None
    ring, way = found[0]
    if any(other is not ring for other, _ in found):
        return None
    return _cuts(ring, way)


def _sizes(way: Way) -> tuple[tuple[int, str], ...]:
    return tuple((cut.op.work_bytes, cut.op.meaning) for cut in way.cuts)


def _cuts(ring: Ring, way: Way) -> Cuts:
    rules = way.state.rules
    cuts = tuple(settled(ring, cut, rules) for cut in way.cuts)
    return Cuts(ring, cuts, way.state, 0, 0.0)
