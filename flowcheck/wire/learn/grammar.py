"""What a DDP trainer will send next, from what it has sent so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire import ddp
from flowcheck.wire.learn.candidates import Op, totals_of
from flowcheck.wire.learn.cut import Cut, State
from flowcheck.wire.learn.match import apply
from flowcheck.wire.learn.place import paint
from flowcheck.wire.learn.rings import Ring
from flowcheck.wire.terms import LL128_GROUP_DATA_BYTES, Kind, Protocol

COUNT_BYTES = 8
ELEMENT_BYTES = (4, 2, 8, 1)
SLACK_BYTES = {Protocol.LL: 7, Protocol.LL128: LL128_GROUP_DATA_BYTES - 1, Protocol.SIMPLE: 0}
COUNT, SHAPES, WEIGHTS = "parameter count", "parameter shapes", "initial weights"
ORDER, SIZES, BUCKET = "bucket order", "bucket sizes", "gradient bucket"
BUFFERS = "buffers"


class Stage(Enum):
    """How far the start-up has come."""

    NOTHING = 0
    COUNTED = 1
    SHAPED = 2
    STEPPED = 3
    ORDERED = 4
    PLANNED = 5
    UNPLANNED = 6
    """The bucket plan was sent but not seen whole."""
    OFF = 7
    """Something else than DDP, or its start-up was not seen whole."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What the start-up said so far."""

    stage: Stage = Stage.NOTHING
    parameters: int = 0
    shapes: tuple[ddp.Shapes, ...] = ()
    element_bytes: int = 0
    """Of the parameters, from the size of the weights; 0: not told."""
    weights_bytes: int = 0
    """Of the first broadcast of weights, buffers and line slack included."""
    order: tuple[int, ...] = ()
    bucket_count: int = 0
    buckets: ddp.Buckets = ()
    next_bucket: int = 0

    @property
    def elements(self) -> int:
        return self.shapes[0].elements if self.shapes else 0

    def bucket_bytes(self, bucket: int) -> int:
        """Bytes of one gradient bucket of the learned plan."""
        counts = self.shapes[0].counts
        return sum(counts[i] for i in self.buckets[bucket]) * self.element_bytes


_OPEN_BROADCASTS = {
    Stage.COUNTED: SHAPES,
    Stage.SHAPED: WEIGHTS,
    Stage.STEPPED: BUFFERS,
    Stage.ORDERED: SIZES,
    Stage.PLANNED: BUFFERS,
    Stage.UNPLANNED: BUFFERS,
}
"""Broadcasts whose size nothing but the wire tells."""


class Trainer:
    """The expectations of one search; remembers what each prefix of cuts told."""

    def __init__(self) -> None:
        self._told: list[tuple[Cut | None, Habits]] = [(None, Habits())]

    def habits(self, ring: Ring, path: Sequence[Cut]) -> Habits:
        """What the collectives in `path` told."""
        known = min(len(path) + 1, len(self._told))
        while known > 1 and self._told[known - 1][0] is not path[known - 2]:
            known -= 1
        del self._told[known:]
        for cut in path[known - 1 :]:
            self._told.append((cut, _after(self._told[-1][1], cut, ring)))
        return self._told[-1][1]

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> list[Op]:
        """Collectives that would be in keeping with `path`, most likely first."""
        habits = self.habits(ring, path)
        return [
            op
            for protocol in ring.protocols_at(state.positions)
            for op in self._ops(ring, habits, state, protocol)
        ]

    def _ops(self, ring: Ring, habits: Habits, state: State, protocol: Protocol) -> list[Op]:
        from_start = not any(n for at in state.positions for n in at)
        expected = [(*told, False, False) for told in _expected(habits, from_start)]
        named = _OPEN_BROADCASTS.get(habits.stage)
        if named is not None and not (named == SIZES and habits.bucket_count):
            totals = totals_of(ring, state.positions, state.channels, Kind.BROADCAST, protocol)
            if named == SHAPES and protocol is Protocol.LL128:
                totals = _shapes_ends(ring, habits, state, tuple(totals))
            # Content tells whether the shapes are all there.
            expected += [
                (Kind.BROADCAST, total, named, named == BUFFERS, named != SHAPES)
                for total in totals
            ]
        return [
            Op(
                kind=kind,
                work_bytes=size,
                protocol=protocol,
                licensed="DDP",
                meaning=meaning,
                open_size=open_size,
                from_wire=from_wire,
            )
            for kind, size, meaning, open_size, from_wire in expected
            if size > 0
        ]

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        """The content, where it was seen, is what the name says."""
        if not cut.op.meaning or cut.op.meaning in (WEIGHTS, BUCKET, BUFFERS):
            return True
        before = self.habits(ring, path)
        content = _content(cut, ring)
        return content is None or _after(before, cut, ring).stage not in (before.stage, Stage.OFF)


def _shapes_ends(ring: Ring, habits: Habits, state: State, totals: Sequence[int]) -> Iterator[int]:
    """Bytes of the shapes in LL128 groups, which say little of their size: by their content."""
    for total in totals:
        op = Op(kind=Kind.BROADCAST, work_bytes=total, protocol=Protocol.LL128)
        for _, cut in islice(apply(ring, state, op), 1):
            if (content := _content(cut, ring)) is not None:
                yield from ddp.shapes_ends(content, habits.parameters, SLACK_BYTES[op.protocol])


def _expected(habits: Habits, from_start: bool) -> list[tuple[Kind, int, str]]:
    if habits.stage is Stage.NOTHING and from_start:
        return [(Kind.ALL_GATHER, COUNT_BYTES, COUNT)]
    if habits.stage is Stage.SHAPED:
        sizes = [habits.elements * e for e in ELEMENT_BYTES]
        if habits.element_bytes:
            size = habits.elements * habits.element_bytes
            return [(Kind.ALL_REDUCE, size, BUCKET)]
        return [(Kind.BROADCAST, size, WEIGHTS) for size in sizes]
    if habits.stage is Stage.STEPPED:
        size = habits.elements * habits.element_bytes
        order = (Kind.BROADCAST, 4 * (habits.parameters + 1), ORDER)
        return [order, (Kind.ALL_REDUCE, size, BUCKET)]
    if habits.stage is Stage.ORDERED and habits.bucket_count:
        return [(Kind.BROADCAST, 4 * habits.bucket_count, SIZES)]
    if habits.stage is Stage.PLANNED and habits.element_bytes:
        return [(Kind.ALL_REDUCE, habits.bucket_bytes(habits.next_bucket), BUCKET)]
    return []


def _content(cut: Cut, ring: Ring) -> NDArray[np.uint8] | None:
    """The result; of the count, any rank's block; None where bytes are missing."""
    canvas, _, _ = paint(cut, ring)
    if cut.op.kind is not Kind.ALL_GATHER:
        whole = canvas.covered.all() and not canvas.conflicts and not canvas.torn
        return canvas.result if whole else None
    size = cut.op.work_bytes
    blocks = [
        canvas.result[i * size : (i + 1) * size]
        for i in range(ring.ranks)
        if canvas.covered[i * size : (i + 1) * size].all()
    ]
    same = blocks and all((block == blocks[0]).all() for block in blocks)
    return blocks[0] if same else None


def _after(habits: Habits, cut: Cut, ring: Ring) -> Habits:
    """What is known once `cut` is read too."""
    stage, op = habits.stage, cut.op
    off = replace(habits, stage=Stage.OFF)
    if stage is Stage.NOTHING:
        content = _content(cut, ring) if op.meaning == COUNT else None
        count = None if content is None else ddp.parse_parameter_count(content)
        return off if count is None else replace(habits, stage=Stage.COUNTED, parameters=count)
    if stage is Stage.COUNTED:
        content = _content(cut, ring) if op.kind is Kind.BROADCAST else None
        values = None if content is None else ddp.parse_shape_values(content)
        shapes = () if values is None else ddp.parse_shapes(values, habits.parameters)
        return replace(habits, stage=Stage.SHAPED, shapes=shapes) if shapes else off
    if stage is Stage.SHAPED:
        return _weighed(habits, op)
    if stage is Stage.STEPPED and op.meaning == ORDER:
        return _ordered(habits, _content(cut, ring))
    if stage is Stage.ORDERED:
        return _planned(habits, cut, ring)
    if stage is Stage.PLANNED and op.meaning == BUCKET:
        return replace(habits, next_bucket=(habits.next_bucket + 1) % len(habits.buckets))
    return habits


def _weighed(habits: Habits, op: Op) -> Habits:
    """Weights are broadcast until the first all-reduce. Of the cuts of the shapes one that the
    first broadcast holds without anything left over is the likelier."""
    if op.kind is Kind.ALL_REDUCE:
        return replace(habits, stage=Stage.STEPPED)
    if op.kind is not Kind.BROADCAST or habits.element_bytes:
        return habits
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
    return replace(habits, shapes=shapes, element_bytes=size, weights_bytes=op.work_bytes)


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
    content = _content(cut, ring) if cut.op.meaning == SIZES else None
    sizes: tuple[int, ...] | None = None
    if habits.bucket_count == 1:
        sizes = (habits.parameters,)
    elif content is not None and habits.bucket_count:
        sizes = ddp.parse_bucket_sizes(content, habits.bucket_count, habits.parameters)
    if sizes is None or not habits.order:
        return replace(habits, stage=Stage.UNPLANNED)
    plan = ddp.buckets_of(habits.order, sizes)
    return replace(habits, stage=Stage.PLANNED, buckets=plan, next_bucket=0)
