"""What each collective adds to what a DDP trainer's start-up has said."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.content import SLACK_BYTES, content_of
from flowcheck.wire.learn.trainer.habits import (
    BUCKET,
    COUNT,
    ELEMENT_BYTES,
    GRADIENTS,
    ORDER,
    PART,
    SIZES,
    USED,
    WEIGHTS,
    Habits,
    Types,
)
from flowcheck.wire.learn.trainer.parts import before
from flowcheck.wire.learn.trainer.plans import Plan, plan_among
from flowcheck.wire.learn.trainer.stages import Stage


def after(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """What is known once `cut` is read too."""
    stage, op = habits.stage, cut.op
    if op.meaning == BUCKET and habits.each and not habits.reduced:
        habits = _reduced(habits, op)
    if stage is Stage.COUNTED and op.kind is not CollectiveKind.BROADCAST:
        # The trainer's own: the sizes of objects it gathers look like a count.
        habits, stage = habits.fresh, Stage.NOTHING
    if stage is Stage.NOTHING:
        content = content_of(cut, ring) if op.meaning == COUNT else None
        count = None if content is None else ddp_messages.parse_parameter_count(content)
        return habits if count is None else replace(habits, stage=Stage.COUNTED, parameters=count)
    if stage is Stage.COUNTED:
        shapes = _shapes(
            habits, content_of(cut, ring) if op.kind is CollectiveKind.BROADCAST else None
        )
        if shapes and habits.types is not None:
            return _typed(habits, habits.types)
        told = replace(habits, stage=Stage.SHAPED, shapes=shapes)
        return told if shapes else habits.fresh
    if stage is Stage.SHAPED:
        return _weighed(habits, cut, ring)
    if stage is Stage.STEPPED and op.meaning in (PART, *GRADIENTS):
        return _stepped(habits, cut, ring)
    if stage is Stage.STEPPED and op.meaning == ORDER:
        return _ordered(habits, content_of(cut, ring))
    if stage is Stage.ORDERED:
        return _planned(habits, cut, ring)
    if stage is Stage.PLANNED and op.meaning in GRADIENTS:
        return replace(habits, next_bucket=(habits.next_bucket + 1) % habits.reduces)
    return habits


def _shapes(
    habits: Habits, content: NDArray[np.uint8] | None
) -> tuple[ddp_messages.ParsedShapes, ...]:
    """What the list of sizes and strides says of the parameters; () where it is no such list. What
    was told beforehand is believed where it is the list that was sent."""
    if content is None:
        return ()
    known = habits.known_cuts
    alike = known and len(known[0].shapes) == habits.parameters
    if alike and known[0].sent == content.tobytes():
        return known
    values = ddp_messages.parse_shape_values(content)
    return () if values is None else ddp_messages.parse_shapes(values, habits.parameters)


def _weighed(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """Weights are broadcast until the first all-reduce. Of the cuts of the shapes one that the
    first broadcast holds without anything left over is the likelier."""
    op = cut.op
    if op.kind is CollectiveKind.ALL_REDUCE:
        begun = replace(habits, stage=Stage.STEPPED, static=op.meaning == USED)
        return _stepped(begun, cut, ring) if op.meaning in (PART, BUCKET) else begun
    if op.kind is not CollectiveKind.BROADCAST or habits.each:
        sent = habits.sent + (op.meaning == WEIGHTS)
        return replace(habits, sent=sent)
    slack = SLACK_BYTES[op.protocol]
    fits = [
        (cut.cost, fit.buffer_bytes > 0, i, fit.element_bytes)
        for i, cut in enumerate(habits.shapes)
        for fit in ddp_messages.weights_fits(cut.elements, op.work_bytes, slack_bytes=slack)[:1]
    ]
    if all(buffers for _, buffers, _, _ in fits) and (several := _several(habits, op.work_bytes)):
        return several
    if not fits:
        return habits
    _, _, best, size = min(fits)
    shapes = (habits.shapes[best], *habits.shapes[:best], *habits.shapes[best + 1 :])
    each = (size,) * habits.parameters
    return replace(habits, shapes=shapes, each=each, weights_bytes=op.work_bytes)


def _several(habits: Habits, size: int) -> Habits | None:
    """What a broadcast of `size` bytes tells if it is the first of several of weights; None: it is
    not. torch closes one with the tensor that fills 250 MiB."""
    for cut, element_bytes in product(habits.shapes, ELEMENT_BYTES):
        if habits.first_piece(cut, element_bytes) == size:
            shapes = (cut, *(other for other in habits.shapes if other is not cut))
            each = (element_bytes,) * habits.parameters
            told = replace(habits, shapes=shapes, each=each, sent=1)
            return replace(told, weights_bytes=told.state_bytes)
    return None


def _typed(habits: Habits, types: Types) -> Habits:
    """Weights of several dtypes are broadcast."""
    told = replace(habits, stage=Stage.SHAPED, shapes=habits.known_cuts, each=types.each)
    return replace(told, weights_bytes=told.state_bytes)


def _reduced(habits: Habits, op: Op) -> Habits:
    """The first bucket holds all parameters of its dtype."""
    own = habits.first_buckets[0]
    fits = (r for r in habits.reductions if habits.bytes_of(own, r) == op.work_bytes)
    return replace(habits, reduced=next(fits, habits.each))


def _stepped(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """Iteration 0 goes on. With find_unused_parameters its buckets are those of every iteration;
    the map that follows says so."""
    op, ways = cut.op, habits.gradients
    if op.meaning == USED and not habits.static:
        whole = [
            gradients
            for gradients, stops in zip(ways, habits.stops, strict=False)
            if (0,) * len(gradients.groups) in stops
        ]
        plan = plan_among(habits.parts, ring, whole, habits.told_plan) if whole else Plan()
        if not plan.buckets:
            return replace(habits, parts=(), stops=(), plan_ways=plan.ways or habits.plan_ways)
        told = replace(habits, buckets=plan.buckets, reduced=plan.each, next_bucket=0, mapped=True)
        return replace(told, stage=Stage.PLANNED, plan_by=plan.by, plan_ways=())
    done = habits.next_bucket + (op.meaning == BUCKET)
    habits = replace(habits, next_bucket=done % max(1, len(habits.first_buckets)))
    on = tuple(
        before(stops, cut, ring, gradients)
        for stops, gradients in zip(habits.stops, ways, strict=False)
    )
    if any(on):
        return replace(habits, parts=(*habits.parts, cut), stops=on)
    # What was taken for a part before may have been the trainer's own.
    begun = tuple(before(frozenset({each.whole}), cut, ring, each) for each in ways)
    return replace(habits, parts=(cut,), stops=begun) if any(begun) else habits


def _ordered(habits: Habits, content: NDArray[np.uint8] | None) -> Habits:
    if content is None:
        alone = habits.parameters == 1
        order, count = ((0,), 1) if alone else ((), 0)
        return replace(habits, stage=Stage.ORDERED, order=order, bucket_count=count)
    found = ddp_messages.parse_bucket_indices(content, habits.parameters)
    if found is None:
        return habits
    return replace(habits, stage=Stage.ORDERED, order=found[0], bucket_count=found[1])


def _planned(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    content = content_of(cut, ring) if cut.op.meaning == SIZES else None
    sizes: tuple[int, ...] | None = None
    if habits.bucket_count == 1:
        sizes = (habits.parameters,)
    elif content is not None and habits.bucket_count:
        sizes = ddp_messages.parse_bucket_sizes(content, habits.bucket_count, habits.parameters)
    if sizes is None or not habits.order:
        return replace(habits, stage=Stage.UNPLANNED)
    plan = ddp_messages.buckets_of(habits.order, sizes)
    return replace(habits, stage=Stage.PLANNED, buckets=plan, next_bucket=0)
