"""From what a trainer was seen to do to the job it will go on doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from flowcheck.findings.catalog.job_learning import (
    ADDED_STEP_OPEN,
    ELEMENT_BYTES_OPEN,
    NO_ALL_REDUCE,
    NO_BUCKET_PLAN,
    NO_COMPLETION,
    NO_WHOLE_ITERATION,
    ONE_ITERATION,
    RELEASE_OPEN,
    START_UP_NOT_SEEN,
    UNKNOWN_ITERATION_0,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.p2p import Completion, lacking
from flowcheck.wire.learn.jobs.again import repeats
from flowcheck.wire.learn.jobs.basis import assumed, evidence
from flowcheck.wire.learn.jobs.begun import Begun, begun
from flowcheck.wire.learn.jobs.causes import cause, forbidding
from flowcheck.wire.learn.jobs.edges import edge_of, edges_of
from flowcheck.wire.learn.jobs.lacking_start import plan_open
from flowcheck.wire.learn.jobs.one import first_is_each, only_one
from flowcheck.wire.learn.jobs.settled import release_open, turns_open, unsettled
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.trainer.habits import BUCKET, GRADIENTS, Habits
from flowcheck.wire.learn.trainer.iteration import begun_at, foretold, iteration, planned_at
from flowcheck.wire.learn.trainer.rest_of_iteration import rest_of_iteration
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.learned_job import Communicator as Recorded

NOT_YET = (
    START_UP_NOT_SEEN,
    NO_ALL_REDUCE,
    NO_BUCKET_PLAN,
    NO_WHOLE_ITERATION,
    ONE_ITERATION,
    ELEMENT_BYTES_OPEN,
    UNKNOWN_ITERATION_0,
)
"""More of the stream, or a longer search, may still tell; other reasons are the trainer's doing."""


@dataclass(slots=True)
class Plan:
    """The pieces a job is made of."""

    parameters: tuple[learned_job.Parameter, ...]
    begun: Begun
    first: list[learned_job.CollectiveOp] = field(default_factory=list)
    each: list[learned_job.CollectiveOp] = field(default_factory=list)
    start: Cut | None = None
    came: int | None = None
    """Buckets of the first iteration under the plan that came whole; None: all."""


def learn_job(
    communicators: Sequence[Communicator],
    found: Sequence[Found],
    *,
    ended: bool,
    before: learned_job.LearnedJob | None = None,
) -> tuple[learned_job.LearnedJob | None, tuple[Finding, ...]]:
    """The job, or why there is none yet. `ended`: nothing more will come, so what was seen of
    the first iteration after the bucket plan is all there is. before: the job whose next
    incarnation this may be: iteration 0 is enough then."""
    for communicator, collected in zip(communicators, found, strict=True):
        if communicator.habits.shapes and communicator.habits.each:
            if not collected.added_told:
                return None, (ADDED_STEP_OPEN(),)
            job, why_not = _of(communicator, collected, ended, before)
            tell = forbidding if job is not None else cause
            told = tell(communicator.habits, communicator.cuts.found, communicator.ring)
            return (None, (told,)) if told else (job, why_not)
    for communicator in communicators:
        if told := _of_no_one_type(communicator):
            return None, (told,)
    reduces = any(
        c.op.kind is CollectiveKind.ALL_REDUCE for x in communicators for c in x.cuts.found
    )
    return None, ((START_UP_NOT_SEEN if reduces else NO_ALL_REDUCE)(),)


def _of_no_one_type(communicator: Communicator) -> Finding | None:
    """Why a start-up is refused whose first broadcast of weights holds its parameters in no type
    that all of them may have; None: it is none, or nothing tells."""
    habits = communicator.habits
    if not habits.shapes or habits.each or not communicator.cuts.found:
        return None
    # Sizes are compared with those of parameters in one type: of the smallest, as none is sent.
    typed = replace(habits, each=(1,) * habits.parameters)
    return cause(typed, communicator.cuts.found, communicator.ring)


def _of(
    communicator: Communicator, collected: Found, ended: bool, before: learned_job.LearnedJob | None
) -> tuple[learned_job.LearnedJob | None, tuple[Finding, ...]]:
    habits, cuts = communicator.habits, communicator.cuts.found
    if why := turns_open(communicator):
        return None, (why,)
    begin = begun_at(cuts)
    if before is not None and begin < len(cuts) and repeats(communicator, collected, before, begin):
        if release_open(communicator):
            return None, (RELEASE_OPEN(),)
        return assembled(communicator, collected, _as_before(before, cuts[begin], habits)), ()
    plan_at = planned_at(cuts)
    if habits.stage is not Stage.PLANNED or plan_at <= begin:
        if why := plan_open(communicator):
            return None, (why,)
        return None, (only_one(communicator) if ended else NO_BUCKET_PLAN(),)
    whole = ended or foretold(cuts, begin, plan_at, habits.reduces)
    each = iteration(cuts, plan_at, habits.reduces, whole)
    if not each and ended and first_is_each(habits, cuts):
        each = list(range(begin, plan_at))
    rest: list[Op] = []
    if not each and not collected.completions:
        each, rest = rest_of_iteration(cuts, begin, plan_at, habits) or ([], [])
    if not each:
        return None, (NO_WHOLE_ITERATION(),)
    if why := unsettled(communicator, collected, each):
        return None, (why,)
    parameters = _parameters(habits)
    ring, completions = communicator.ring, collected.completions
    start = begun(habits, cuts[begin:plan_at], ring, parameters)
    if start is None:
        return None, (UNKNOWN_ITERATION_0(),)
    plan = Plan(parameters, start, start=cuts[begin])
    meanings = GRADIENTS if start.mapped else (BUCKET,)
    for part, chosen in ((plan.first, range(begin, plan_at)), (plan.each, each)):
        bucket = 0
        count = len(start.first_buckets if part is plan.first else start.buckets)
        for i in chosen:
            gradient = (
                cuts[i].op.kind is CollectiveKind.ALL_REDUCE and cuts[i].op.meaning in meanings
            )
            part.append(ring_op(cuts[i].op, gradient, bucket % count))
            if gradient and i in completions:
                part.append(_p2p_op(completions[i], bucket % count))
            elif gradient and completions and any(lacking(cuts[i], ring, e) for e in ring.edges):
                return None, (NO_COMPLETION(),)
            bucket += gradient
    came = sum(op.role is learned_job.Role.BUCKET for op in plan.each)
    plan.each += [ring_op(op, True, came + ahead) for ahead, op in enumerate(rest)]
    plan.came = came if rest else None
    return assembled(communicator, collected, plan), ()


def _as_before(before: learned_job.LearnedJob, start: Cut, habits: Habits) -> Plan:
    first, each = list(before.first), list(before.each)
    known = Begun(
        before.first_buckets,
        before.buckets,
        before.has_usage_map,
        before.unused_parameters,
        before.gradient_element_bytes,
        plan_unseen=not habits.buckets,
    )
    return Plan(before.parameters, known, first, each, start)


def _sizes(plan: Plan) -> list[int]:
    """[all-reduce of an iteration] bytes, metrics and their like left out."""
    told = (op for op in plan.each if op.role is learned_job.Role.BUCKET)
    return [op.work_bytes for op in told if op.kind is not None]


def _parameters(habits: Habits) -> tuple[learned_job.Parameter, ...]:
    """In the types of the stated model where these told the parameters' sizes."""
    stated = (habits.types.stated if habits.types is not None else ()) or (None,) * len(habits.each)
    return tuple(
        learned_job.Parameter(
            sizes=sizes, strides=strides, element_bytes=element_bytes, dtype=dtype
        )
        for (sizes, strides), element_bytes, dtype in zip(
            habits.shapes[0].shapes, habits.each, stated, strict=True
        )
    )


def ring_op(op: Op, gradient: bool, bucket: int) -> learned_job.CollectiveOp:
    """A collective as a job has it."""
    return learned_job.CollectiveOp(
        communicator=0,
        protocol=op.protocol,
        role=learned_job.Role.BUCKET if gradient else learned_job.Role.IGNORED,
        bucket=bucket if gradient else 0,
        kind=op.kind,
        work_bytes=op.work_bytes,
        element_bytes=op.element_bytes,
        root=op.root,
        algorithm=op.algorithm,
    )


def _p2p_op(sent: Completion, bucket: int) -> learned_job.CollectiveOp:
    """The sends of one parcel; each carries one run of the tensor, or a run for each range."""
    messages: list[learned_job.PointToPoint] = []
    left = [list(r) for r in sent.ranges]
    for size in sent.parcel.layout:
        start, stop = left[0] if left else (0, 0)
        messages.append(learned_job.PointToPoint(channel=0, start_byte=start, data_bytes=size))
        if left:
            left[0][0] = start + size
        if left and left[0][0] >= stop:
            left.pop(0)
    return learned_job.CollectiveOp(
        communicator=1,
        protocol=Protocol.SIMPLE,
        role=learned_job.Role.BUCKET,
        bucket=bucket,
        kind=None,
        messages=tuple(messages),
    )


def assembled(communicator: Communicator, collected: Found, plan: Plan) -> learned_job.LearnedJob:
    """The job of a plan."""
    completions = collected.completions
    ring, start = communicator.ring, plan.start
    assert start is not None
    edges = edges_of(communicator, start)
    communicators = [
        Recorded(
            ranks=ring.ranks,
            channels=ring.channels,
            extra_sends=ring.extra_sends,
            gpus=ring.gpus,
            found=ring.found,
            heads=ring.nvls.heads,
            nvls_channels=ring.nvls.channels,
            nvls_chunk_bytes=ring.nvls.chunk_bytes,
        )
    ]
    if completions:
        parcel = completions[min(completions)].parcel
        communicators.append(Recorded(ranks=2, channels=1))
        edges.append(edge_of(1, 0, [parcel.stream], [parcel.number]))
    return learned_job.LearnedJob(
        era=communicator.cuts.state.rules[0],
        communicators=tuple(communicators),
        edges=tuple(edges),
        parameters=plan.parameters,
        first_buckets=plan.begun.first_buckets,
        buckets=plan.begun.buckets,
        first=tuple(plan.first),
        each=tuple(plan.each),
        has_usage_map=plan.begun.mapped,
        bucket_plan_unseen=plan.begun.plan_unseen,
        unused_parameters=plan.begun.never_used,
        gradient_element_bytes=plan.begun.gradient_element_bytes,
        evidence=evidence(communicator, plan.parameters, plan.begun, completions, plan.came),
        assumed=assumed(communicator, collected, plan.each, _sizes(plan)),
    )
