"""What a DDP trainer will send next, from what it has sent so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.cuts.candidates import (
    Op,
    by_each_algorithm,
    by_trees,
    of_other_roots,
    totals_of,
)
from flowcheck.wire.learn.cuts.cut import Cut, State
from flowcheck.wire.learn.cuts.echo import amid_cut_off, echoes
from flowcheck.wire.learn.cuts.match import apply
from flowcheck.wire.learn.cuts.totals import totals_of_room, tree_totals
from flowcheck.wire.learn.flows.rings import Ring, earliest
from flowcheck.wire.learn.trainer.content import SLACK_BYTES, content_of, used_of
from flowcheck.wire.learn.trainer.habits import (
    BUCKET,
    BUFFERS,
    COUNT,
    COUNT_BYTES,
    ELEMENT_BYTES,
    ORDER,
    PART,
    SHAPES,
    SIZES,
    USED,
    WEIGHTS,
    Habits,
    Placed,
    Types,
)
from flowcheck.wire.learn.trainer.parts import slack_bytes
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.learn.trainer.told import after
from flowcheck.wire.learn.trainer.widths import narrower
from flowcheck.wire.training_job.learned_job import MAP_BYTES

__all__ = [
    "BUCKET",
    "ELEMENT_BYTES",
    "ORDER",
    "SIZES",
    "WEIGHTS",
    "Habits",
    "Trainer",
    "Types",
]

_OPEN_BROADCASTS = {
    Stage.COUNTED: SHAPES,
    Stage.SHAPED: WEIGHTS,
    Stage.STEPPED: BUFFERS,
    Stage.ORDERED: SIZES,
    Stage.PLANNED: BUFFERS,
    Stage.UNPLANNED: BUFFERS,
}
"""Broadcasts whose size nothing but the wire tells."""

MOST_UNLICENSED = 4
"""Sizes tried of a collective that DDP itself does not make, of each kind."""


class Trainer:
    """The expectations of one search; remembers what each prefix of cuts told."""

    def __init__(
        self,
        types: Types | None = None,
        placed: Placed | None = None,
        plan: ddp_messages.Buckets = (),
    ) -> None:
        begin = Habits(types=types, placed=placed, told_plan=plan)
        self._told: list[tuple[Cut | None, Habits]] = [(None, begin)]

    def habits(self, ring: Ring, path: Sequence[Cut]) -> Habits:
        """What the collectives in `path` told."""
        known = min(len(path) + 1, len(self._told))
        while known > 1 and self._told[known - 1][0] is not path[known - 2]:
            known -= 1
        del self._told[known:]
        for cut in path[known - 1 :]:
            self._told.append((cut, after(self._told[-1][1], cut, ring)))
        return self._told[-1][1]

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Iterator[Op]:
        """Collectives that would be in keeping with `path`, most likely first. One without a
        licence is the sender's own affair, and only what was seen whole is taken for it."""
        habits = self.habits(ring, path)
        for protocol in ring.protocols_at(state.positions):
            for op in self._ops(ring, habits, state, protocol):
                yield from by_each_algorithm(op, ring)

    def _ops(self, ring: Ring, habits: Habits, state: State, protocol: Protocol) -> Iterator[Op]:
        for kind, size, meaning in _expected(habits):
            if kind is CollectiveKind.ALL_GATHER_V and protocol is not Protocol.SIMPLE:
                continue  # the same sends as those of an all-gather
            op = _licensed(kind, size, meaning, protocol)
            if meaning == COUNT and any(n for at in state.positions for n in at):
                op = replace(op, licensed="")  # behind what is the trainer's own
            if size > 0:
                typed = _type_bytes(habits, size) if meaning == BUCKET else 0
                yield replace(op, type_bytes=typed)
        if habits.stage in (Stage.SHAPED, Stage.STEPPED) and not _weights_left(habits):
            yield from _parts(ring, habits, state, protocol)
        named = _OPEN_BROADCASTS.get(habits.stage)
        if named is None or (named == SIZES and habits.bucket_count):
            return
        if habits.each and named in (WEIGHTS, BUFFERS) and not _weights_left(habits):
            yield from _of_all_ranks(ring, state, protocol)
            trees = by_trees(ring, state.positions, state.channels, protocol)
            yield from islice(trees, MOST_UNLICENSED)
        first = (
            earliest(ring, state.positions, trees=False)
            if habits.each and named == BUFFERS
            else None
        )
        if first is not None and ring.edges[first[0]].sender == ring.ranks - 1:
            roots = of_other_roots(ring, state.positions, state.channels, protocol)
            yield from islice(roots, MOST_UNLICENSED)
        totals = totals_of(
            ring, state.positions, state.channels, CollectiveKind.BROADCAST, protocol
        )
        if named == SHAPES and protocol is Protocol.LL128:
            totals = _shapes_ends(ring, habits, state, tuple(totals))
        if named in (WEIGHTS, BUFFERS) and protocol is Protocol.LL128:
            # Lines of many channels may be some of fewer just as well.
            plain = tuple(totals)
            rooms = (totals_of_room(ring, CollectiveKind.BROADCAST, total) for total in plain)
            totals = chain(plain, chain.from_iterable(rooms))
        for total in totals:
            # Content tells whether the shapes are all there.
            op = _licensed(CollectiveKind.BROADCAST, total, named, protocol)
            yield replace(op, open_size=named == BUFFERS, from_wire=named != SHAPES)

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        """The content, where it was seen, is what the name or the kind says."""
        if ring.sounding and cut.op.kind is CollectiveKind.ALL_REDUCE:
            return True
        if echoes(cut, ring) or (ring.branches and amid_cut_off(cut, ring)):
            return False
        if not cut.op.meaning or cut.op.meaning in (WEIGHTS, PART, BUFFERS):
            return True
        before = self.habits(ring, path)
        if cut.op.meaning == BUCKET and before.stage is Stage.PLANNED:
            # What is as large as another bucket of the plan is none where that one is not due.
            due = not before.next_is_map and before.bucket_bytes(before.next_bucket)
            return cut.op.work_bytes == due
        if cut.op.meaning == BUCKET:
            first = _first_buckets(before) if before.each and not before.reduced else ()
            sizes = (size for _, size, _ in first if size < cut.op.work_bytes)
            return not any(narrower(cut, size, ring) for size in sizes)
        if cut.op.meaning in (COUNT, SHAPES) and (path or before.stage is Stage.COUNTED):
            # Behind collectives of the trainer's own only content tells that DDP begins.
            told = Stage.COUNTED if cut.op.meaning == COUNT else Stage.SHAPED
            return after(before, cut, ring).stage is told
        if cut.op.meaning == USED:
            # Where the plan puts it some of it may be lost; before, only its content tells it.
            lost = before.stage is Stage.PLANNED and content_of(cut, ring) is None
            return lost or used_of(cut, before.parameters, ring) is not None
        content = content_of(cut, ring)
        return content is None or after(before, cut, ring).stage is not before.stage


def _licensed(kind: CollectiveKind, size: int, meaning: str, protocol: Protocol) -> Op:
    return Op(kind=kind, work_bytes=size, protocol=protocol, licensed="DDP", meaning=meaning)


def _of_all_ranks(ring: Ring, state: State, protocol: Protocol) -> Iterator[Op]:
    """Collectives in which every rank sends, by the sizes on several edges: before one is taken
    for broadcasts, which leave what the other edges carry without a reading."""
    if len(ring.edges) < 2:
        return
    for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER):
        totals = totals_of(ring, state.positions, state.channels, kind, protocol)
        for total in islice(totals, MOST_UNLICENSED):
            yield Op(kind=kind, work_bytes=total, protocol=protocol)


def _parts(ring: Ring, habits: Habits, state: State, protocol: Protocol) -> Iterator[Op]:
    """Buckets of iteration 0 with find_unused_parameters: as many of the last parameters of a dtype
    that were not reduced yet as give the size on the wire, or of all."""
    slack, at = slack_bytes(ring, protocol), (state.positions, state.channels)
    totals = [
        *totals_of(ring, *at, CollectiveKind.ALL_REDUCE, protocol),
        *tree_totals(ring, *at, protocol),
    ]
    on_wire = [range(total - slack + 1, total + 1) for total in totals]
    most = max((total[-1] for total in on_wire), default=0)
    tried: set[tuple[int, int]] = set()
    for way, gradients in enumerate(habits.gradients):
        stops = sorted(habits.stops[way] - {(0,) * len(gradients.groups)}) if habits.stops else []
        for left in (*stops, gradients.whole):
            for run in gradients.runs(left, most):
                size = (run.size, run.type_bytes)
                if size not in tried and any(run.size in total for total in on_wire):
                    tried.add(size)
                    op = _licensed(CollectiveKind.ALL_REDUCE, run.size, PART, protocol)
                    yield replace(op, type_bytes=run.type_bytes)


def _shapes_ends(ring: Ring, habits: Habits, state: State, totals: Sequence[int]) -> Iterator[int]:
    """Bytes of the shapes in LL128 groups, which say little of their size: by their content, of
    which the stated model's is one that needs no guess."""
    known = habits.known_cuts[0].sent if habits.known_cuts else None
    for total in totals:
        op = Op(kind=CollectiveKind.BROADCAST, work_bytes=total, protocol=Protocol.LL128)
        for _, cut in islice(apply(ring, state, op), 1):
            content = content_of(cut, ring)
            if known is not None and content is not None:
                yield from [len(known)] if content[: len(known)].tobytes() == known else []
            elif content is not None:
                yield from ddp_messages.shapes_ends(
                    content, habits.parameters, SLACK_BYTES[op.protocol]
                )


def _expected(habits: Habits) -> list[tuple[CollectiveKind, int, str]]:
    if habits.stage in (Stage.NOTHING, Stage.COUNTED):
        return [
            (CollectiveKind.ALL_GATHER, COUNT_BYTES, COUNT),
            (CollectiveKind.ALL_GATHER_V, COUNT_BYTES, COUNT),
        ]
    used = (CollectiveKind.ALL_REDUCE, MAP_BYTES * habits.parameters, USED)
    if habits.stage is Stage.SHAPED:
        sizes = [habits.elements * e for e in ELEMENT_BYTES]
        if _weights_left(habits):
            return [(CollectiveKind.BROADCAST, habits.pieces[habits.sent][1], WEIGHTS)]
        if habits.each:
            return [used, *_first_buckets(habits)]
        sizes += [habits.first_piece(cut, e) for cut in habits.shapes for e in ELEMENT_BYTES]
        return [(CollectiveKind.BROADCAST, size, WEIGHTS) for size in dict.fromkeys(sizes)]
    if habits.stage is Stage.STEPPED:
        order = (CollectiveKind.BROADCAST, 4 * (habits.parameters + 1), ORDER)
        return [order, used, *_first_buckets(habits)]
    if habits.stage is Stage.ORDERED and habits.bucket_count:
        return [(CollectiveKind.BROADCAST, 4 * habits.bucket_count, SIZES)]
    if habits.stage is Stage.PLANNED and habits.next_is_map:
        return [used]
    if habits.stage is Stage.PLANNED and habits.each:
        return [(CollectiveKind.ALL_REDUCE, habits.bucket_bytes(habits.next_bucket), BUCKET)]
    return []


def _weights_left(habits: Habits) -> bool:
    """A broadcast of weights is to come whose size is known: they are of several dtypes, or more
    than one holds."""
    known = habits.types is not None or habits.sent > 0
    return known and habits.stage is Stage.SHAPED and habits.sent < len(habits.pieces)


def _first_buckets(habits: Habits) -> list[tuple[CollectiveKind, int, str]]:
    """The bucket of all gradients of a dtype, in each type that it may have."""
    own = habits.first_buckets[habits.next_bucket] if habits.each else ()
    sizes = [habits.bytes_of(own, each) for each in habits.reductions]
    return [(CollectiveKind.ALL_REDUCE, size, BUCKET) for size in sizes]


def _type_bytes(habits: Habits, size: int) -> int:
    """Of an element of the bucket that is due."""
    if habits.stage is not Stage.PLANNED:
        own = habits.first_buckets[habits.next_bucket]
        return size // sum(habits.shapes[0].counts[i] for i in own)
    return habits.bucket_type_bytes(habits.next_bucket)
