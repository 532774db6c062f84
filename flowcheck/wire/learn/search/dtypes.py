"""Parameters of several dtypes: which have elements of which size, by all that was sent.

A bucket never holds two dtypes, the start-up broadcasts weights by dtype, and iteration 0 reduces
one bucket of each. What these sizes leave open is not told.

Sources: torch/csrc/distributed/c10d/reducer.cpp (compute_bucket_assignment_by_size),
torch/nn/parallel/distributed.py (_sync_module_states, _ddp_init_helper).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, round_up
from flowcheck.wire.ddp_startup.parameter_shapes import SCALAR, ParsedShapes, with_scalars_at
from flowcheck.wire.ddp_startup.scalar_parameters import places_in_buckets
from flowcheck.wire.learn.cuts.cut import Cut, Cuts
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.content import used_of
from flowcheck.wire.learn.trainer.grammar import BUCKET, ORDER, SIZES, WEIGHTS, Habits, Types
from flowcheck.wire.learn.trainer.habits import COMPRESSED_BYTES, Placed
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.training_job.learned_job import MAP_BYTES

TYPE_BYTES = (4, 2, 8)
"""Of the types that parameters with gradients have."""
MOST_PLACES, MOST_CUTS = 64, 16
"""Of parameters of one number, looked at and kept."""
MOST_WAYS = 4096
"""Of giving sizes to buckets; more are as good as none told."""


def told_types(cuts: Cuts, habits: Habits) -> tuple[Types | None, Placed | None]:
    """The only sizes of elements that explain broadcasts, iteration 0 and the plan's buckets, and
    where parameters of one number stand by them; None where all parameters may be alike, or where
    several ways, or none, explain them."""
    told, untried = _explaining(cuts, habits)
    # That scalars may stand elsewhere in their buckets is no doubt about the others' elements.
    if len(set(map(_each_of_dense, told))) != 1 or len(set(told[0].each)) == 1:
        return None, None
    shapes = tuple(types.shapes for types in told)
    if shapes[0].scalars:
        return told[0], Placed(shapes[:MOST_CUTS], len(told) + untried)
    return (told[0], None) if len(told) == 1 else (None, None)


def _each_of_dense(types: Types) -> tuple[int, ...]:
    pairs = zip(types.shapes.shapes, types.each, strict=True)
    return tuple(each for shape, each in pairs if shape != SCALAR)


def _explaining(cuts: Cuts, habits: Habits) -> tuple[list[Types], int]:
    """All that do, and how many more places of parameters of one number there are to try."""
    found = cuts.found
    if habits.stage is not Stage.PLANNED or habits.mapped or any(cut.lost for cut in found):
        return [], 0
    planned = next(i for i, cut in enumerate(found) if cut.op.meaning == SIZES)
    begin = next(
        (i for i, cut in enumerate(found) if cut.op.kind is CollectiveKind.ALL_REDUCE), planned
    )
    later = _reduces(found[planned:])[: len(habits.buckets)]
    alike = len(later) == len(habits.buckets) and all(c.op.meaning == BUCKET for c in later)
    if alike or len(later) < len(habits.buckets) or begin >= planned:
        return [], 0
    sent = [cut for cut in found[:begin] if cut.op.meaning == WEIGHTS]
    first = _reduces(found[begin:planned])
    if first and _opens_static_graph(first[0], habits, cuts.ring):
        first = first[1:]
    cuts_of, untried = _cuts_of(habits, later)
    # As for weights of one dtype: those without buffers behind them come first.
    for fits in (is_as_large, holds):
        told = {}
        for shapes in cuts_of:
            for each in _ways(replace(habits, shapes=(shapes,)), later):
                typed = replace(habits, shapes=(shapes,), each=each, reduced=())
                if _broadcast(typed, sent, fits) and _reduced(typed, first, later):
                    told[shapes.counts, each] = Types(shapes, each)
        if told:
            break
    return list(told.values()), untried


def _cuts_of(habits: Habits, later: Sequence[Cut]) -> tuple[Sequence[ParsedShapes], int]:
    """Ways to cut the shapes that need least believing, with parameters of one number where every
    bucket has a size which some type of elements gives it; and how many more of these there are.
    """
    least = min(shapes.cost for shapes in habits.shapes)
    alike = [shapes for shapes in habits.shapes if shapes.cost == least]
    if not alike[0].scalars:
        return alike, 0
    dense, scalars = alike[0].dense, alike[0].scalars

    def fits(bucket: int, elements: int) -> bool:
        return any(is_as_large(later[bucket], elements * size) for size in TYPE_BYTES)

    counts = ParsedShapes(dense, least).counts
    places = places_in_buckets(counts, scalars, habits.buckets, fits, most=MOST_PLACES)
    if places is None:
        return alike, 0
    spread = [ParsedShapes(with_scalars_at(dense, own), least) for own in places.found]
    return spread, places.ways - len(spread)


def _opens_static_graph(cut: Cut, habits: Habits, ring: Ring) -> bool:
    """The map of used parameters, which comes before the first gradients of a static graph."""
    size = MAP_BYTES * habits.parameters
    return is_as_large(cut, size) and used_of(cut, habits.parameters, ring) is not None


def _reduces(cuts: Sequence[Cut]) -> list[Cut]:
    return [
        cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE and cut.op.meaning != ORDER
    ]


def _ways(habits: Habits, later: Sequence[Cut]) -> Iterator[tuple[int, ...]]:
    """[parameter] bytes of an element, for every way to give each bucket one type; first those
    that its size on the wire allows, then, if all may be compressed, all."""
    counts = habits.shapes[0].counts
    elements = [sum(counts[i] for i in bucket) for bucket in habits.buckets]
    fits = [
        [size for size in TYPE_BYTES if is_as_large(cut, count * size)]
        for cut, count in zip(later, elements, strict=True)
    ]
    ways = [fits]
    if all(COMPRESSED_BYTES in sizes for sizes in fits):
        ways.append([list(TYPE_BYTES)] * len(fits))
    for choices in ways:
        if prod(map(len, choices)) > MOST_WAYS:
            continue
        for chosen in product(*choices):
            each = [0] * habits.parameters
            for bucket, size in zip(habits.buckets, chosen, strict=True):
                for index in bucket:
                    each[index] = size
            yield tuple(each)


def _broadcast(habits: Habits, sent: Sequence[Cut], fits: Callable[[Cut, int], bool]) -> bool:
    """The start-up broadcasts hold the weights."""
    pieces = [size for _, size in habits.pieces]
    return len(sent) >= len(pieces) and all(map(fits, sent, pieces))


def _reduced(habits: Habits, first: Sequence[Cut], later: Sequence[Cut]) -> bool:
    """The first buckets of iteration 0 and of the plan hold the gradients."""
    if len(first) < len(habits.first_buckets):
        return False
    return any(
        all(
            is_as_large(cut, habits.bytes_of(bucket, each))
            for cut, bucket in (
                *zip(first, habits.first_buckets, strict=False),
                *zip(later, habits.buckets, strict=True),
            )
        )
        for each in habits.reductions
    )


def holds(cut: Cut, size: int) -> bool:
    """It is as large as a tensor of `size` bytes, or larger by what follows: buffers."""
    grain = GRAIN_BYTES[cut.op.protocol]
    return round_up(cut.op.work_bytes, grain) >= round_up(size, grain)


def is_as_large(cut: Cut, size: int) -> bool:
    """On the wire it is as large as a tensor of `size` bytes."""
    grain = GRAIN_BYTES[cut.op.protocol]
    return round_up(cut.op.work_bytes, grain) == round_up(size, grain)
