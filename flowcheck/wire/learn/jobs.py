"""From what a trainer was seen to do to the job it will go on doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowcheck.wire import ddp, job
from flowcheck.wire.learn.causes import cause, forbidding
from flowcheck.wire.learn.collect import Found
from flowcheck.wire.learn.cut import Cut
from flowcheck.wire.learn.grammar import BUCKET, ORDER, SIZES, Habits, Stage
from flowcheck.wire.learn.iteration import ALL_ALIKE, BY_ORDER, disputed, iteration
from flowcheck.wire.learn.p2p import Completion, lacking
from flowcheck.wire.learn.releases import releases_open
from flowcheck.wire.learn.search import Communicator
from flowcheck.wire.terms import Kind, Protocol

NO_START = "DDP's start-up messages were not seen: parameters and their order are unknown"
NO_REDUCES = "no all-reduce was seen: nothing here trains data-parallel yet"
NO_PLAN = "the trainer's bucket plan was not seen yet"
NO_ITERATION = "no whole iteration after the bucket plan was seen yet"
NO_FIRST = "iteration 0 is no set of buckets this release knows"
NO_COMPLETION = "some all-reduces lack the point-to-point send that completes others"
NO_ADDED = "whether the trainer adds a ring step: nothing but sizes tells"
NO_RELEASE = (
    "no clear-to-send was mirrored and the sizes fit the partition of several NCCL releases: "
    "mirror the other direction too"
)
LATER_OPEN = "where later iterations begin: what came between them may be read otherwise"
BUFFERS_KEPT = (
    "what every forward broadcasts are buffers, like BatchNorm's running statistics: they are no "
    "part of the replica, a restored state has those of its template"
)
SAME_TYPE = (
    "gradients are of the parameters' type: a communication hook that sends the other type of 2 "
    "bytes would not show"
)
NO_COUNT = "sends were lost before the first iterations: where these begin is not sure"


@dataclass(slots=True)
class _Plan:
    """The pieces a job is made of."""

    parameters: tuple[job.Parameter, ...]
    first_buckets: ddp.Buckets
    first: list[job.Op] = field(default_factory=list)
    each: list[job.Op] = field(default_factory=list)
    start: Cut | None = None


def learn_job(
    communicators: Sequence[Communicator], found: Sequence[Found], *, ended: bool
) -> tuple[job.Job | None, tuple[str, ...]]:
    """The job, or why there is none yet. `ended`: nothing more will come, so what was seen of
    the first iteration after the bucket plan is all there is."""
    for communicator, collected in zip(communicators, found, strict=True):
        if communicator.habits.shapes and communicator.habits.element_bytes:
            if not collected.added_told:
                return None, (NO_ADDED,)
            job, why_not = _of(communicator, collected, ended)
            tell = forbidding if job is not None else cause
            told = tell(communicator.habits, communicator.cuts.found, communicator.ring)
            return (None, (told,)) if told else (job, why_not)
    reduces = any(c.op.kind is Kind.ALL_REDUCE for x in communicators for c in x.cuts.found)
    return None, (NO_START,) if reduces else (NO_REDUCES,)


def _of(
    communicator: Communicator, collected: Found, ended: bool
) -> tuple[job.Job | None, tuple[str, ...]]:
    habits, cuts = communicator.habits, communicator.cuts.found
    completions = collected.completions
    if habits.stage is not Stage.PLANNED:
        return None, (NO_PLAN,)
    begin = next((i for i, cut in enumerate(cuts) if cut.op.kind is Kind.ALL_REDUCE), None)
    sizes_at = next((i for i, cut in enumerate(cuts) if cut.op.meaning == SIZES), None)
    if begin is None or sizes_at is None or sizes_at < begin:
        return None, (NO_PLAN,)
    plan_at = sizes_at + 1
    each = iteration(cuts, plan_at, len(habits.buckets), ended)
    if not each:
        return None, (NO_ITERATION,)
    if each[-1] >= collected.counted:
        return None, (NO_COUNT,)
    if any(releases_open(cut, communicator) for cut in {c.op: c for c in cuts}.values()):
        return None, (NO_RELEASE,)
    parameters = _parameters(habits)
    totals = [c.op.work_bytes for c in cuts[begin:plan_at] if c.op.meaning == BUCKET]
    first_buckets = _first_buckets(parameters, totals)
    if first_buckets is None:
        return None, (NO_FIRST,)
    plan = _Plan(parameters, first_buckets, start=cuts[begin])
    ring = communicator.ring
    for part, chosen in ((plan.first, range(begin, plan_at)), (plan.each, each)):
        bucket = 0
        for i in chosen:
            gradient = cuts[i].op.kind is Kind.ALL_REDUCE and cuts[i].op.meaning == BUCKET
            part.append(_ring_op(cuts[i], gradient, bucket))
            if gradient and i in completions:
                part.append(_p2p_op(completions[i], bucket))
            elif gradient and completions and any(lacking(cuts[i], ring, e) for e in ring.edges):
                return None, (NO_COMPLETION,)
            bucket += gradient
    return _assembled(communicator, collected, plan), ()


def _parameters(habits: Habits) -> tuple[job.Parameter, ...]:
    return tuple(
        job.Parameter(sizes=sizes, strides=strides, element_bytes=habits.element_bytes)
        for sizes, strides in habits.shapes[0].shapes
    )


def _first_buckets(
    parameters: Sequence[job.Parameter], totals: Sequence[int]
) -> ddp.Buckets | None:
    """Iteration 0's buckets, by the rule of torch that gives the sizes seen."""
    for buckets in (ddp.first_buckets(parameters), ddp.unused_buckets(parameters)):
        sizes = [sum(parameters[i].nbytes for i in bucket) for bucket in buckets]
        if sizes == list(totals):
            return buckets
    return None


def _ring_op(cut: Cut, gradient: bool, bucket: int) -> job.Op:
    return job.Op(
        communicator=0,
        protocol=cut.op.protocol,
        role=job.Role.BUCKET if gradient else job.Role.IGNORED,
        bucket=bucket if gradient else 0,
        kind=cut.op.kind,
        work_bytes=cut.op.work_bytes,
        element_bytes=cut.op.element_bytes,
    )


def _p2p_op(sent: Completion, bucket: int) -> job.Op:
    """The sends of one parcel; each carries one run of the tensor, or a run for each range."""
    messages: list[job.PointToPoint] = []
    left = [list(r) for r in sent.ranges]
    for size in sent.parcel.layout:
        start, stop = left[0] if left else (0, 0)
        messages.append(job.PointToPoint(channel=0, start_byte=start, data_bytes=size))
        if left:
            left[0][0] = start + size
        if left and left[0][0] >= stop:
            left.pop(0)
    return job.Op(
        communicator=1,
        protocol=Protocol.SIMPLE,
        role=job.Role.BUCKET,
        bucket=bucket,
        kind=None,
        messages=tuple(messages),
    )


def _assembled(communicator: Communicator, collected: Found, plan: _Plan) -> job.Job:
    completions = collected.completions
    ring, habits, start = communicator.ring, communicator.habits, plan.start
    assert start is not None
    edges: list[job.Edge] = []
    for edge, at, names in zip(
        ring.edges, start.starts, communicator.cuts.state.channels, strict=True
    ):
        place = {name: i for i, name in enumerate(names) if name is not None}
        edges.append(
            job.Edge(
                communicator=0,
                sender=edge.sender,
                flows=tuple(
                    edge.streams[place[c]].key if c in place else None for c in range(ring.channels)
                ),
                first_numbers=tuple(
                    at[place[c]] if c in place else 0 for c in range(ring.channels)
                ),
                flags_count=not any(
                    send.protocol is Protocol.SIMPLE
                    for stream in edge.streams
                    for send in stream.sends.values()
                ),
            )
        )
    communicators = [
        job.Communicator(ranks=ring.ranks, channels=ring.channels, extra_sends=ring.extra_sends)
    ]
    if completions:
        parcel = completions[min(completions)].parcel
        communicators.append(job.Communicator(ranks=2, channels=1))
        edges.append(
            job.Edge(
                communicator=1,
                sender=0,
                flows=(parcel.stream.key,),
                first_numbers=(parcel.number,),
            )
        )
    return job.Job(
        rule=communicator.cuts.state.rules[0],
        communicators=tuple(communicators),
        edges=tuple(edges),
        parameters=plan.parameters,
        first_buckets=plan.first_buckets,
        buckets=habits.buckets,
        first=tuple(plan.first),
        each=tuple(plan.each),
        evidence=_evidence(communicator, completions),
        assumed=_assumed(communicator, collected, plan),
    )


def _evidence(communicator: Communicator, completions: dict[int, Completion]) -> tuple[str, ...]:
    ring, habits = communicator.ring, communicator.habits
    told = [
        f"{habits.parameters} parameters of {habits.elements} elements: start-up messages",
        f"{habits.element_bytes} bytes an element: size of the initial weights",
        f"{len(habits.buckets)} buckets: the {ORDER} and {SIZES} broadcasts",
        f"{ring.ranks} ranks, {ring.channels} channels: every send has the size this gives",
    ]
    if completions:
        told.append("point-to-point sends complete the all-reduces: exactly the size missing")
    return tuple(told)


def _assumed(communicator: Communicator, collected: Found, plan: _Plan) -> tuple[str, ...]:
    completions = collected.completions
    habits, cuts = communicator.habits, communicator.cuts.found
    told: list[str] = []
    if any(op.kind is Kind.BROADCAST for op in plan.each):
        told.append(BUFFERS_KEPT)
    if habits.element_bytes == 2:
        told.append(SAME_TYPE)
    sizes = {habits.bucket_bytes(bucket) for bucket in range(len(habits.buckets))}
    if len(sizes) == 1:
        told.append(ALL_ALIKE)
    if disputed(cuts, len(habits.buckets)):
        told.append(BY_ORDER)
    if collected.counted < len(cuts):
        told.append(LATER_OPEN)
    alike = [s for s in habits.shapes[1:] if s.cost == habits.shapes[0].cost]
    if alike:
        told.append(f"where parameters begin: {len(alike)} other cuts of the shapes fit as well")
    if completions:
        told.append("the point-to-point sends hold the chunk that is missing")
    return tuple(told)
