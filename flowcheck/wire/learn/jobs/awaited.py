"""Which messages must have come before another reading can tell more of a DDP job.

What a start-up has said foretells how many messages follow on each connection: the rest of the
weights, the first buckets and the plan; then the plan's buckets. Until then a reading tells the
same again. A collective of another protocol, or one that nobody could foresee, moves that place; a
reading that comes too early says anew what is awaited.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import BUCKET, GRADIENTS, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.iteration import begun_at, planned_at
from flowcheck.wire.learn.trainer.rest_of_iteration import buckets_that_tell
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import MAP_BYTES

INDEX_BYTES = 4
"""Of a number in the bucket plan, which lists each parameter and how many there are of buckets, and
then the size of each bucket, of which there is one at least (torch/csrc/distributed/c10d/
reducer.cpp, sync_bucket_indices)."""
WEIGHTS_AWAITED_BYTES = 1 << 27
"""Weights that are awaited by themselves, so that they are put together before the job is told. A
choice: it takes half a second for each 500 MB, and the reading more that it costs a tenth of
one."""
Ahead = list[tuple[CollectiveKind, int]]
"""(kind, bytes) of collectives, in the order in which they come."""


def awaited(communicators: Sequence[Communicator]) -> Awaited | None:
    """Of the first communicator in which a trainer has started; None: nothing foretells it."""
    for communicator in communicators:
        if communicator.habits.each and not communicator.cuts.unread:
            return _of(communicator)
    return None


def _of(communicator: Communicator) -> Awaited | None:
    ring, state = communicator.ring, communicator.cuts.state
    weights = _large_weights_ahead(communicator)
    ahead = _ahead(communicator) if weights is None else weights
    if ahead is None:
        return None
    ops = [
        Op(kind=kind, work_bytes=size, protocol=_protocol(communicator, kind))
        for kind, size in ahead
    ]
    laid = [schedules_of(op, state.rules[0], ring) for op in ops]
    flows: list[tuple[FlowKey, int]] = []
    for number, edge in enumerate(ring.edges):
        for place, stream in enumerate(edge.streams):
            channel = state.channels[number][place]
            if channel is None or len(stream.queue_pairs) > 1:
                continue
            more = sum(len(schedules[number][channel]) for schedules in laid)
            due = state.positions[number][place] + more
            if due > stream.stop:
                flows.append((stream.key, due))
    return Awaited(flows=tuple(flows)) if flows else None


def _large_weights_ahead(communicator: Communicator) -> Ahead | None:
    """Broadcasts that are to come until all weights of a large model are there, behind what was
    seen or is on its way; None: they are there, or are not that large."""
    habits = communicator.habits
    if habits.stage is not Stage.SHAPED or habits.state_bytes < WEIGHTS_AWAITED_BYTES:
        return None
    sent = [cut for cut in communicator.cuts.found if cut.op.meaning == WEIGHTS]
    if len(sent) >= len(habits.pieces) and not any(cut.lost for cut in sent):
        return None
    return _weights_ahead(habits, len(sent))


def _weights_ahead(habits: Habits, sent: int) -> Ahead:
    return [(CollectiveKind.BROADCAST, size) for _, size in habits.pieces[sent:]]


def _ahead(communicator: Communicator) -> Ahead | None:
    """What is still to come until a reading tells more, where it is not seen whole yet."""
    habits, cuts = communicator.habits, communicator.cuts.found
    reduce, broadcast = CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST
    plan = [(broadcast, INDEX_BYTES * (habits.parameters + 1)), (broadcast, INDEX_BYTES)]
    if habits.stage is Stage.SHAPED:
        sent = sum(cut.op.meaning == WEIGHTS for cut in cuts)
        return [*_weights_ahead(habits, sent), *_first(habits, 0), *plan]
    if habits.stage is Stage.STEPPED and not habits.static:
        return [*_first(habits, sum(cut.op.meaning == BUCKET for cut in cuts)), *plan]
    if habits.stage is Stage.ORDERED:
        return plan[1:]
    if habits.stage is Stage.PLANNED:
        seen = sum(cut.op.meaning in GRADIENTS for cut in cuts[planned_at(cuts) :])
        sizes = [habits.bucket_bytes(bucket) for bucket in range(len(habits.buckets))]
        if not habits.mapped:
            first = range(begun_at(cuts), planned_at(cuts))
            gradients = [cuts[i].op for i in first if cuts[i].op.meaning in GRADIENTS]
            sizes = sizes[: buckets_that_tell(habits, (op.work_bytes for op in gradients))]
        sizes += [MAP_BYTES * habits.parameters] * habits.mapped
        return [(reduce, size) for size in sizes[seen:]]
    return None


def _first(habits: Habits, done: int) -> Ahead:
    """Iteration 0's buckets that are to come, as large as their parameters."""
    left = habits.first_buckets[done:]
    return [(CollectiveKind.ALL_REDUCE, habits.bytes_of(own, habits.each)) for own in left]


def _protocol(communicator: Communicator, kind: CollectiveKind) -> Protocol:
    """Of the largest collective of a kind so far, which the next large one will have."""
    ops = [cut.op for cut in communicator.cuts.found if cut.op.kind is kind]
    largest = max(ops, key=lambda op: op.work_bytes, default=None)
    return largest.protocol if largest else communicator.ring.edges[0].streams[0].protocol
