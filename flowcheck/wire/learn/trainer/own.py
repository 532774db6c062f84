"""Trainers that sum gradients by themselves, without DistributedDataParallel.

No start-up message tells their parameters, so the model is stated; how gradients are laid into
tensors is read from the sizes: one by one (torch.distributed.all_reduce of every gradient), or in
flat buffers that are cut between parameters, in registration order (torch._utils.
_flatten_dense_tensors of a list) or from the last parameter to the first (Megatron-LM,
megatron/core/distributed/param_and_grad_buffer.py: parameters in reverse order).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import msgspec

from flowcheck.findings.catalog.job_learning import (
    EACH_ALONE,
    EACH_ALONE_ANY_ORDER,
    IN_REGISTRATION_ORDER,
    REVERSED,
    SOME_TOGETHER,
    STATED_ORDER,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut, State
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.grammar import Trainer
from flowcheck.wire.learn.trainer.habits import BUCKET, OWN, WEIGHTS, Habits
from flowcheck.wire.learn.trainer.parts import Gradients, plan_of, slack_bytes
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.training_job.learned_job import Parameter, as_reduced
from flowcheck.wire.training_job.operator_statements import OperatorStatement

USUAL_BUCKET_ELEMENTS = 500_000_000
"""reduce_bucket_size of DeepSpeed where its settings have none (deepspeed/runtime/zero/config.py,
DeepSpeedZeroConfig)."""
MOST_BEFORE = 32
"""All-reduces looked at for the first one of an iteration; those before are the trainer's own."""


class OwnLoop(Trainer):
    """Expects the weights of the stated model first: each parameter's, or all of them at once.
    parameters: (): nobody sends weights. A part of a first sum may be as large as they are."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__()
        self._sizes = [parameter.nbytes for parameter in parameters]

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Iterator[Op]:
        if len(path) < 2 * len(self._sizes) and all(_broadcast(cut) for cut in path):
            sent = sum(cut.op.meaning == WEIGHTS for cut in path)
            due = self._sizes[sent : sent + 1] + [sum(self._sizes)] * (not sent)
            for protocol in ring.protocols_at(state.positions):
                for size in dict.fromkeys(due):
                    yield Op(
                        kind=CollectiveKind.BROADCAST,
                        work_bytes=size,
                        protocol=protocol,
                        licensed=OWN,
                        meaning=WEIGHTS,
                    )
        yield from super().__call__(ring, path, state)


def _broadcast(cut: Cut) -> bool:
    return cut.op.kind is CollectiveKind.BROADCAST


@dataclass(frozen=True, slots=True)
class Loop:
    """How a trainer lays gradients into all-reduces."""

    buckets: ddp_messages.Buckets
    """Parameters of each, in their order in the tensor."""
    how: Finding
    others: tuple[Finding, ...] = ()
    """Other orders that fit the sizes as well."""


def in_stated_order(how: Finding) -> bool:
    """It is the layout in the order that is stated."""
    stated = STATED_ORDER()
    return how in (stated, EACH_ALONE(stated))


def own_loop(
    cuts: Sequence[Cut], ring: Ring, stated: OperatorStatement
) -> tuple[Loop, tuple[Cut, ...]] | None:
    """The layout, and `cuts` with its all-reduces named; None where they are no sums of such
    gradients, or so small that sizes on the wire leave it open which of them are."""
    reduced = as_reduced(stated.parameters, stated.gradient_element_bytes)
    stated = msgspec.structs.replace(stated, parameters=reduced)
    reduces = [i for i, cut in enumerate(cuts) if cut.op.kind is CollectiveKind.ALL_REDUCE]
    found: dict[tuple[int, ...], tuple[int, Loop]] = {}
    stop = min(len(reduces), MOST_BEFORE)
    at = 0
    while at < stop:
        for iteration in _iterations([cuts[i] for i in reduces[at:]], ring, stated.parameters):
            if (loop := _loop(iteration, ring, stated)) is not None:
                # What else could be one would begin within this one.
                stop = min(stop, at + len(iteration)) if not found else stop
                found.setdefault(tuple(map(len, loop.buckets)), (at, loop))
        at += 1
    ways = list(found.values())
    if len(ways) > 1 and stated.steps_masters and stated.bucket_elements is None:
        usual = msgspec.structs.replace(stated, bucket_elements=USUAL_BUCKET_ELEMENTS)
        ways = [way for way in ways if _as_stated(way[1].buckets, usual)]
    if len(ways) > 1:
        ways = _each_alone(ways, len(stated.parameters))
    if len(ways) != 1:
        return None
    at, loop = ways[0]
    return loop, named(cuts, reduces[at:], ring, stated.parameters, loop)


def _each_alone(ways: Sequence[tuple[int, Loop]], parameters: int) -> list[tuple[int, Loop]]:
    """The way in which every sum is one gradient, and every gradient one sum, if one is: sums of a
    few bytes are as large on the wire as such a gradient and its neighbour, and then one of the
    sums would be none of gradients."""
    alone = [way for way in ways if len(way[1].buckets) == parameters]
    if len(alone) != 1:
        return []
    ((at, loop),) = alone
    others = (SOME_TOGETHER(way.how) for _, way in ways if way is not loop)
    return [(at, replace(loop, others=(*loop.others, *dict.fromkeys(others))))]


def habits_of(
    loop: Loop, parameters: Sequence[Parameter], gradient_element_bytes: int = 0
) -> Habits:
    """What the stated model and its layout say, in place of a start-up. gradient_element_bytes: as
    of OperatorStatement."""
    each = tuple(parameter.element_bytes for parameter in parameters)
    reduced = tuple(gradient_element_bytes or own for own in each)
    shapes = ddp_messages.ParsedShapes(tuple((p.sizes, p.strides) for p in parameters), 0)
    return Habits(
        stage=Stage.PLANNED,
        parameters=len(parameters),
        shapes=(shapes,),
        each=each,
        reduced=reduced,
        weights_bytes=sum(parameter.nbytes for parameter in parameters),
        buckets=loop.buckets,
        own=loop.how,
        own_others=loop.others,
    )


def _iterations(
    reduces: Sequence[Cut], ring: Ring, parameters: Sequence[Parameter]
) -> Iterator[Sequence[Cut]]:
    """The first all-reduces, as many as may hold all gradients."""
    total, held, slack = sum(parameter.nbytes for parameter in parameters), 0, 0
    for count, cut in enumerate(reduces[: len(parameters)], 1):
        held += cut.op.work_bytes
        slack += slack_bytes(ring, cut.op.protocol)
        if abs(held - total) < slack:
            yield reduces[:count]
        elif held > total:
            return


def _loop(iteration: Sequence[Cut], ring: Ring, stated: OperatorStatement) -> Loop | None:
    """The layout by which these all-reduces are all gradients."""
    every = range(len(stated.parameters))
    orders = {IN_REGISTRATION_ORDER(): tuple(every), REVERSED(): tuple(reversed(every))}
    if stated.order:
        orders = {STATED_ORDER(): stated.order}
    found: dict[ddp_messages.Buckets, Finding] = {}
    for how, order in orders.items():
        buckets = _in_order(iteration, ring, stated.parameters, order)
        if buckets is not None and _as_stated(buckets, stated):
            found.setdefault(buckets, how)
    if not found and len(iteration) == len(every) and not stated.order:
        own = _by_sizes(iteration, ring, stated.parameters)
        return None if own is None else Loop(own, EACH_ALONE_ANY_ORDER())
    if not found:
        return None
    (buckets, how), *others = found.items()
    alone = len(buckets) == len(every)
    told = EACH_ALONE(how) if alone else how
    return Loop(buckets, told, tuple(other for _, other in others))


def _as_stated(buckets: ddp_messages.Buckets, stated: OperatorStatement) -> bool:
    """Each bucket holds as many gradients as the stated size of one lets it, in this order
    (deepspeed/runtime/zero/stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads)."""
    most = stated.bucket_elements
    if most is None:
        return True
    counts = [[stated.parameters[i].elements for i in bucket] for bucket in buckets]
    fits = all(sum(own) <= most or len(own) == 1 for own in counts)
    return fits and all(sum(own) + behind[0] > most for own, behind in pairwise(counts))


def _in_order(
    iteration: Sequence[Cut], ring: Ring, parameters: Sequence[Parameter], order: Sequence[int]
) -> ddp_messages.Buckets | None:
    """Buckets of parameters next to each other in an order; None if no cut of it fits."""
    # `plan_of` begins with the last ones.
    behind = order[::-1]
    counts = [parameters[i].elements for i in behind]
    each = [parameters[i].element_bytes for i in behind]
    plan = plan_of(iteration, ring, Gradients.of(counts, each, each, [None] * len(behind)))
    ways = tuple(tuple(behind[k] for k in reversed(bucket)) for bucket in plan)
    return ways or None


def _by_sizes(
    iteration: Sequence[Cut], ring: Ring, parameters: Sequence[Parameter]
) -> ddp_messages.Buckets | None:
    """One gradient each, told apart by size alone; None where two are of one."""
    left = list(range(len(parameters)))
    buckets: list[tuple[int, ...]] = []
    for cut in iteration:
        fits = [i for i in left if as_bucket(cut, (parameters[i],), ring) is not None]
        if len(fits) != 1:
            return None
        left.remove(fits[0])
        buckets.append((fits[0],))
    return tuple(buckets)


def named(
    cuts: Sequence[Cut],
    reduces: Sequence[int],
    ring: Ring,
    parameters: Sequence[Parameter],
    loop: Loop,
) -> tuple[Cut, ...]:
    """`cuts`, of which every all-reduce at `reduces` that is the next bucket is named so; what
    comes between is the trainer's own. parameters: as their gradients are summed."""
    named, due = list(cuts), 0
    for i in reduces:
        own = [parameters[p] for p in loop.buckets[due]]
        bucket = as_bucket(cuts[i], own, ring)
        if bucket is not None:
            named[i], due = bucket, (due + 1) % len(loop.buckets)
    return tuple(named)


def weights_sent(cuts: Sequence[Cut], ring: Ring, parameters: Sequence[Parameter]) -> bool:
    """Whether broadcasts that follow each other may be the model's weights: each parameter's, or
    all of them at once."""
    sizes = [parameter.nbytes for parameter in parameters]
    sent = [cut for cut in cuts if _broadcast(cut)]
    ways = ([sum(sizes)], sizes)
    return any(
        len(sent) >= at + len(way) and all(map(partial(_is_of, ring), sent[at:], way))
        for at in range(len(sent))
        for way in ways
    )


def _is_of(ring: Ring, cut: Cut, size: int) -> bool:
    return cut.reread(replace(cut.op, work_bytes=size), ring) is not None


def as_bucket(cut: Cut, parameters: Sequence[Parameter], ring: Ring) -> Cut | None:
    """`cut` as the sum of these gradients; None if that would be another one on the wire."""
    size = sum(parameter.nbytes for parameter in parameters)
    types = {parameter.element_bytes for parameter in parameters}
    if not size or len(types) != 1:
        return None
    op = replace(cut.op, work_bytes=size, type_bytes=types.pop(), licensed=OWN, meaning=BUCKET)
    return cut.reread(op, ring)
