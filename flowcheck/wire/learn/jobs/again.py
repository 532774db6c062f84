"""A job that comes back: what its incarnation before did says what this one will do.

An incarnation that is killed again before it sent its bucket plan, or that has one step left,
would otherwise tell too little to be followed.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.jobs.begun import never_used
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.training_job import learned_job


def repeats(
    communicator: Communicator, collected: Found, before: learned_job.LearnedJob, begin: int
) -> bool:
    """Nothing that was seen differs from how `before` began, and iteration 0 was seen whole.

    begin: index of the first all-reduce.
    """
    habits, ring = communicator.habits, communicator.ring
    if len(before.communicators) != 1 or collected.completions:
        return False
    known = before.communicators[0]
    if (known.ranks, known.channels, known.extra_sends) != (
        ring.ranks,
        ring.channels,
        ring.extra_sends,
    ):
        return False
    if (known.found, known.nvls) != (ring.found, ring.nvls):
        return False
    if before.era not in communicator.cuts.state.rules or _flows(before) != sum(
        len(edge.streams) for edge in ring.edges
    ):
        return False
    shapes = [((p.sizes, p.strides), p.element_bytes) for p in before.parameters]
    if shapes != list(zip(habits.shapes[0].shapes, habits.each, strict=True)):
        return False
    if [p.element_bytes for p in before.reduced] != list(habits.reduced):
        return False
    if not _plan_agrees(before, communicator):
        return False
    first = before.first[: 1 + max(i for i, op in enumerate(before.first) if _gradient(op))]
    stop = begin + len(first)
    seen = communicator.cuts.found[begin:stop]
    if len(before.first_iterations) > 1:
        never = never_used(seen, len(before.parameters), ring)
        if never != before.unused_parameters:
            return False
    return stop <= collected.counted and _same(seen, first)


def _flows(before: learned_job.LearnedJob) -> int:
    return sum(flow is not None for edge in before.edges for flow in edge.flows)


def _gradient(op: learned_job.CollectiveOp) -> bool:
    return op.role is learned_job.Role.BUCKET


def _plan_agrees(before: learned_job.LearnedJob, communicator: Communicator) -> bool:
    """As much of the bucket plan as was sent is the one of `before`."""
    habits = communicator.habits
    if habits.stage is Stage.STEPPED:
        return True
    if habits.stage is Stage.ORDERED:
        return habits.order == tuple(i for bucket in before.buckets for i in bucket)
    own = (*habits.buckets, (habits.parameters,)) if habits.mapped else habits.buckets
    return habits.stage is Stage.PLANNED and own == before.buckets


def _same(cuts: Sequence[Cut], ops: Sequence[learned_job.CollectiveOp]) -> bool:
    told = [(op.kind, op.work_bytes, op.protocol, op.element_bytes, op.algorithm) for op in ops]
    seen = (cut.op for cut in cuts)
    return told == [(o.kind, o.work_bytes, o.protocol, o.element_bytes, o.algorithm) for o in seen]
