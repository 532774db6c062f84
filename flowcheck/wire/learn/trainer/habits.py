"""What a DDP trainer's start-up has said so far, and what each collective adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire import ddp
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer import parts
from flowcheck.wire.learn.trainer.content import SLACK_BYTES, content_of
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.terms import Kind

COUNT_BYTES = 8
ELEMENT_BYTES = (4, 2, 8, 1)
COMPRESSED_BYTES = 2
"""Of an element in a bucket under torch's fp16_compress_hook and bf16_compress_hook."""
COUNT, SHAPES, WEIGHTS = "parameter count", "parameter shapes", "initial weights"
ORDER, SIZES, BUCKET = "bucket order", "bucket sizes", "gradient bucket"
PART = "part of the gradient"
"""As large as parameters next to each other: a bucket, if a map of used parameters follows."""
USED = "used parameters"
BUFFERS = "buffers"
OWN = "stated model"
"""Licence of what a trainer without DistributedDataParallel sends."""
GRADIENTS = (BUCKET, USED)
"""What every iteration under the plan consists of."""


@dataclass(frozen=True, slots=True)
class Types:
    """Which parameters have elements of which size, where there are several."""

    shapes: ddp.Shapes
    each: tuple[int, ...]
    """[parameter] bytes of an element."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What the start-up said so far."""

    stage: Stage = Stage.NOTHING
    types: Types | None = None
    """Told beforehand, by all of the stream."""
    parameters: int = 0
    shapes: tuple[ddp.Shapes, ...] = ()
    each: tuple[int, ...] = ()
    """[parameter] bytes of an element, from the size of the weights; (): not told."""
    reduced: tuple[int, ...] = ()
    """[parameter] the same of its gradient in a bucket, from the first bucket; (): not told."""
    weights_bytes: int = 0
    """Of the first broadcast of weights, buffers and line slack included."""
    sent: int = 0
    """Start-up broadcasts of weights and buffers so far, where `types` are told."""
    order: tuple[int, ...] = ()
    bucket_count: int = 0
    buckets: ddp.Buckets = ()
    next_bucket: int = 0
    parts: tuple[Cut, ...] = ()
    """What iteration 0 reduced so far, of the last parameters first."""
    stops: frozenset[int] = frozenset()
    """Where the parameters that it did not reduce yet may end; empty: nowhere but at the end."""
    static: bool = False
    """A map of used parameters came before the first gradient: static_graph=True."""
    mapped: bool = False
    """A map follows the buckets of every iteration: find_unused_parameters=True."""
    own: str = ""
    """How a trainer without DDP lays gradients into all-reduces; empty: there is a DDP."""
    own_others: tuple[str, ...] = ()
    """Other ways of it that fit the sizes."""

    @property
    def elements(self) -> int:
        return self.shapes[0].elements if self.shapes else 0

    @property
    def element_bytes(self) -> int:
        """Of all parameters alike; 0: not told."""
        return self.each[0] if self.each else 0

    @property
    def state_bytes(self) -> int:
        """Of all parameters; 0: not told."""
        return self.bytes_of(range(len(self.each)), self.each)

    @property
    def compressed(self) -> bool:
        """Gradients are reduced in another type than the parameters have."""
        return bool(self.reduced) and self.reduced != self.each

    @property
    def reductions(self) -> tuple[tuple[int, ...], ...]:
        """What `reduced` may be: as the parameters are, or compressed."""
        if self.reduced or not self.each:
            return (self.reduced,) if self.reduced else ()
        return tuple(dict.fromkeys((self.each, (COMPRESSED_BYTES,) * len(self.each))))

    @property
    def pieces(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(parameters, their bytes) of each start-up broadcast of weights."""
        counts = self.shapes[0].counts if self.each else ()
        sizes = [count * each for count, each in zip(counts, self.each, strict=False)]
        return ddp.weight_broadcasts(sizes, self.each)

    @property
    def first_buckets(self) -> ddp.Buckets:
        """Iteration 0: a bucket of each dtype, the last one that came first."""
        groups = dict.fromkeys(self.each)
        every = range(self.parameters)
        return tuple(tuple(i for i in every if self.each[i] == g) for g in reversed(groups))

    @property
    def reduces(self) -> int:
        """All-reduces of an iteration under the plan, the map of used parameters included."""
        return len(self.buckets) + self.mapped

    @property
    def next_is_map(self) -> bool:
        return self.mapped and self.next_bucket == len(self.buckets)

    @property
    def sizes(self) -> tuple[int, ...]:
        """[parameter] bytes, of one dtype all; () where there are several."""
        alike = len(set(self.each)) == 1
        return tuple(self.bytes_of((i,), self.each) for i in range(self.parameters)) * alike

    def bucket_bytes(self, bucket: int) -> int:
        """Bytes of one gradient bucket of the learned plan."""
        return self.bytes_of(self.buckets[bucket], self.reduced or self.each)

    def bytes_of(self, parameters: Sequence[int], each: Sequence[int]) -> int:
        """Of `parameters` together; each: [parameter] bytes of an element."""
        counts = self.shapes[0].counts if parameters else ()
        return sum(counts[i] * each[i] for i in parameters)


def after(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """What is known once `cut` is read too."""
    stage, op = habits.stage, cut.op
    if op.meaning == BUCKET and habits.each and not habits.reduced:
        habits = _reduced(habits, op)
    if stage is Stage.COUNTED and op.kind is not Kind.BROADCAST:
        # The trainer's own: the sizes of objects it gathers look like a count.
        habits, stage = Habits(types=habits.types), Stage.NOTHING
    if stage is Stage.NOTHING:
        content = content_of(cut, ring) if op.meaning == COUNT else None
        count = None if content is None else ddp.parse_parameter_count(content)
        return habits if count is None else replace(habits, stage=Stage.COUNTED, parameters=count)
    if stage is Stage.COUNTED:
        content = content_of(cut, ring) if op.kind is Kind.BROADCAST else None
        values = None if content is None else ddp.parse_shape_values(content)
        shapes = () if values is None else ddp.parse_shapes(values, habits.parameters)
        if shapes and habits.types is not None:
            return _typed(habits, habits.types)
        told = replace(habits, stage=Stage.SHAPED, shapes=shapes)
        return told if shapes else Habits(types=habits.types)
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


def _weighed(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """Weights are broadcast until the first all-reduce. Of the cuts of the shapes one that the
    first broadcast holds without anything left over is the likelier."""
    op = cut.op
    if op.kind is Kind.ALL_REDUCE:
        begun = replace(habits, stage=Stage.STEPPED, static=op.meaning == USED)
        return _stepped(begun, cut, ring) if op.meaning in (PART, BUCKET) else begun
    if op.kind is not Kind.BROADCAST or habits.each:
        sent = habits.sent + (op.meaning == WEIGHTS)
        return replace(habits, sent=sent)
    slack = SLACK_BYTES[op.protocol]
    fits = [
        (cut.cost, fit.buffer_bytes > 0, i, fit.element_bytes)
        for i, cut in enumerate(habits.shapes)
        for fit in ddp.weights_fits(cut.elements, op.work_bytes, slack_bytes=slack)[:1]
    ]
    if not fits:
        return habits
    _, _, best, size = min(fits)
    shapes = (habits.shapes[best], *habits.shapes[:best], *habits.shapes[best + 1 :])
    each = (size,) * habits.parameters
    return replace(habits, shapes=shapes, each=each, weights_bytes=op.work_bytes)


def _typed(habits: Habits, types: Types) -> Habits:
    """Weights of several dtypes are broadcast."""
    told = replace(habits, stage=Stage.SHAPED, shapes=(types.shapes,), each=types.each)
    return replace(told, weights_bytes=told.state_bytes)


def _reduced(habits: Habits, op: Op) -> Habits:
    """The first bucket holds all parameters of its dtype."""
    own = habits.first_buckets[0]
    fits = (r for r in habits.reductions if habits.bytes_of(own, r) == op.work_bytes)
    return replace(habits, reduced=next(fits, habits.each))


def _stepped(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """Iteration 0 goes on. With find_unused_parameters its buckets are those of every iteration;
    the map that follows says so."""
    op, sizes = cut.op, habits.sizes
    if op.meaning == USED and not habits.static:
        plan = parts.plan_of(habits.parts, ring, sizes) if 0 in habits.stops else ()
        if not plan:
            return replace(habits, parts=(), stops=frozenset())
        return replace(habits, stage=Stage.PLANNED, buckets=plan, next_bucket=0, mapped=True)
    done = habits.next_bucket + (op.meaning == BUCKET)
    habits = replace(habits, next_bucket=done % max(1, len(habits.first_buckets)))
    if on := parts.before(habits.stops, cut, ring, sizes):
        return replace(habits, parts=(*habits.parts, cut), stops=on)
    # What was taken for a part before may have been the trainer's own.
    begun = parts.before(frozenset({len(sizes)}), cut, ring, sizes)
    return replace(habits, parts=(cut,), stops=begun) if begun else habits


def _ordered(habits: Habits, content: NDArray[np.uint8] | None) -> Habits:
    if content is None:
        alone = habits.parameters == 1
        order, count = ((0,), 1) if alone else ((), 0)
        return replace(habits, stage=Stage.ORDERED, order=order, bucket_count=count)
    found = ddp.parse_bucket_indices(content, habits.parameters)
    if found is None:
        return habits
    return replace(habits, stage=Stage.ORDERED, order=found[0], bucket_count=found[1])


def _planned(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    content = content_of(cut, ring) if cut.op.meaning == SIZES else None
    sizes: tuple[int, ...] | None = None
    if habits.bucket_count == 1:
        sizes = (habits.parameters,)
    elif content is not None and habits.bucket_count:
        sizes = ddp.parse_bucket_sizes(content, habits.bucket_count, habits.parameters)
    if sizes is None or not habits.order:
        return replace(habits, stage=Stage.UNPLANNED)
    plan = ddp.buckets_of(habits.order, sizes)
    return replace(habits, stage=Stage.PLANNED, buckets=plan, next_bucket=0)
