"""Which connections are of no job that could be learned: nothing of them need be kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowcheck.wire.learn.flows.rings import seen_whole
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import may_branch
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import LearnedJob

ENOUGH = 3
"""Collectives read of a communicator before it is known not to begin as DDP does."""


def others(
    communicators: Sequence[Communicator],
    p2p: Sequence[Stream],
    before: LearnedJob | None = None,
    *,
    begins_unseen: bool = False,
) -> tuple[FlowKey, ...]:
    """Data and clear-to-send flows of communicators that were read whole from their start and did
    not begin as DDP does, and of point-to-point connections between hosts of which no ring leads
    from one to the other: what completes an all-reduce runs beside it. None before a job was seen
    to begin, or given: until then nothing is known not to be it. before: a job already followed;
    begins_unseen: it sends no weights. The first sums of its next life look like any other's until
    an iteration is whole, so that of no communicator it is known not to be that life.
    """
    jobs = [c for c in communicators if c.habits.shapes]
    if not jobs and before is None:
        return ()
    found: list[Stream] = []
    for communicator in () if begins_unseen else communicators:
        if communicator.habits.stage is Stage.NOTHING and _whole(communicator):
            own = _streams(communicator)
            found += [s for s in own if not any(may_branch(s, c.ring) for c in jobs)]
    links = {_link(s.key) for c in communicators for s in _streams(c)}
    if before is not None:
        links |= {_link(key) for edge in before.edges for key in edge.flows if key is not None}
    found += [stream for stream in p2p if _link(stream.key) not in links]
    return tuple(_keys(found))


def _whole(communicator: Communicator) -> bool:
    cuts = communicator.cuts
    sure = not any(cut.lost or cut.doubt for cut in cuts.found)
    return seen_whole(communicator.ring) and sure and not cuts.unread and len(cuts.found) >= ENOUGH


def _streams(communicator: Communicator) -> Iterator[Stream]:
    return (stream for edge in communicator.ring.edges for stream in edge.streams)


def _link(key: FlowKey) -> tuple[str, str]:
    return key.source, key.destination


def _keys(streams: Iterable[Stream]) -> Iterator[FlowKey]:
    for stream in streams:
        yield from stream.queue_pairs or (stream.key,)
        if stream.peer is not None:
            yield stream.peer
