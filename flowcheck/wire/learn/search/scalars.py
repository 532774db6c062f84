"""Parameters of one number: where they stand, by what is stated, by the buckets, by the weights.

DDP's start-up tells how many there are and not where. The plan's buckets hold whole parameters, so
their sizes on the wire rule most places out; a bucket leaves places within it open. Of those the
one by which the first weights and gradients of each parameter are most alike is the likeliest,
which is a guess and told as one. A stated model says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.collective_evidence import (
    STANDS_BY_BEFORE,
    STANDS_BY_MODEL,
    STANDS_BY_NUMBERS,
)
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.ddp_startup.parameter_shapes import ParsedShapes, with_scalars_at
from flowcheck.wire.ddp_startup.scalar_parameters import (
    Likely,
    ScalarPlaces,
    places_in_buckets,
    places_in_runs,
)
from flowcheck.wire.learn.cuts.cut import Cut, Purse, cut_again
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.tighten import tightened
from flowcheck.wire.learn.trainer.content import content_of, used_of
from flowcheck.wire.learn.trainer.grammar import WEIGHTS, Habits, Trainer
from flowcheck.wire.learn.trainer.habits import BUCKET, GRADIENTS, Placed
from flowcheck.wire.learn.trainer.iteration import begun_at, named, planned_at
from flowcheck.wire.learn.trainer.parts import resized, slack_bytes
from flowcheck.wire.learn.trainer.stages import Stage
from flowcheck.wire.training_job.learned_job import LearnedJob, Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement

MOST_CUTS = 16
"""Of the list of sizes and strides, and places, that are compared or kept."""
SURE_NATS = 20.0
"""By how much likelier than the next one a way is that a job is followed by. Of 429 made-up models
(layers of several kinds and sizes, scalars of six values among them, first weights and gradients of
torch) whose sizes left 2 to 600,600 ways, the likeliest was wrong in 171: in all with less than 5.3
nats, of the 180 with 7 and more in none."""
MORE_REDUCES = 8
"""All-reduces of the trainer's own that may come between the first buckets of the plan."""
EDGE_ELEMENTS = 4096
"""Of the begin and of the end of a parameter that are looked at: only these a place moves."""
NUMBERS = {8: "<f8", 4: "<f4", 2: "<f2"}
"""By bytes of an element. Of two bytes both types rise with their bits, which is enough."""
FLOOR, TINY = 1e-6, float(np.finfo(np.float64).tiny)
"""Spread, as a share of that of all, below which numbers are one number."""


def with_scalars_placed(
    known: Communicator, stated: OperatorStatement | None, earlier: LearnedJob | None, purse: Purse
) -> Communicator:
    """The communicator with its parameters of one number where they stand, as far as that is told;
    as it is where it has none, or nothing tells anything. earlier: another life of the job."""
    habits = known.habits
    if not habits.shapes or not habits.each or habits.own or habits.types is not None:
        return known
    own = _cut_of(habits, stated.parameters if stated is not None else ())
    if own is not None:
        again = _again(known, Placed((own,), 1, STANDS_BY_MODEL()), purse)
        if again is not None:
            return again
    placed = _placed(known)
    own = _cut_of(habits, earlier.parameters if earlier is not None else ())
    if own is not None:
        others = placed.cuts if placed is not None else habits.shapes
        ways = placed.ways if placed is not None else len(habits.shapes)
        cuts = (own, *(cut for cut in others if cut.shapes != own.shapes))[:MOST_CUTS]
        by = STANDS_BY_BEFORE() if ways > 1 else None
        again = _again(known, Placed(cuts, ways, by), purse)
        if again is not None:
            return again
    return known if placed is None else _again(known, placed, purse) or known


def _cut_of(habits: Habits, parameters: Sequence[Parameter]) -> ParsedShapes | None:
    """These parameters, where they may be those whose list was sent, which may be cut otherwise."""
    own = ParsedShapes(tuple((p.sizes, p.strides) for p in parameters), habits.shapes[0].cost)
    alike = len(parameters) == habits.parameters and own.sent == habits.shapes[0].sent
    alone = len(habits.shapes) == 1 and own.shapes == habits.shapes[0].shapes
    return own if alike and not alone else None


def _again(known: Communicator, placed: Placed, purse: Purse) -> Communicator | None:
    """Read with the parameters so; None where that explains less."""
    trainer = Trainer(placed=placed)
    cuts = cut_again(known.ring, trainer, purse)
    habits = trainer.habits(cuts.ring, cuts.found)
    cuts = replace(cuts, found=named(cuts.found, habits, cuts.ring))
    if cuts.unread > known.cuts.unread or habits.shapes != placed.cuts:
        return None
    if _gradients(cuts.found) < _gradients(known.cuts.found):
        return None
    return replace(known, cuts=tightened(cuts), habits=habits)


def _gradients(cuts: Sequence[Cut]) -> int:
    return sum(cut.op.meaning in GRADIENTS for cut in cuts)


def _placed(known: Communicator) -> Placed | None:
    """Where they may stand, by all that was reduced; None where there are none, no bucket was seen,
    or no place fits."""
    habits = known.habits
    cuts = _ways_to_cut(habits)
    if len(cuts) == 1 and len(cuts[0].shapes) == habits.parameters:
        return None
    numbers = [own for own in (_weights(known), _first_gradients(known)) if own is not None]
    found: list[ParsedShapes] = []
    ways, margins = 0, list[float]()
    for cut in cuts:
        likely = Likeness(numbers, cut.counts) if numbers else None
        scalars = habits.parameters - len(cut.shapes)
        for each in habits.reductions:
            places = _places(known, cut.counts, scalars, each[0], likely)
            if places is None or not places.ways:
                continue
            ways += places.ways
            margins.append(places.margin if likely is not None else 0.0)
            spread = (with_scalars_at(cut.shapes, own) for own in places.found)
            found += [ParsedShapes(shapes, cut.cost) for shapes in spread]
            break
    unlike = {cut.counts for cut in found}
    if not found or (len(unlike) == 1 and not found[0].scalars):
        return None
    if ways == 1:
        return Placed(tuple(found), 1)
    # Of several lists of shapes none is held against another: they are of other numbers.
    sure = len(margins) == 1 and margins[0] >= SURE_NATS
    by = STANDS_BY_NUMBERS() if any(margins) else None
    return Placed(tuple(found[:MOST_CUTS]), ways, by, sure)


def _ways_to_cut(habits: Habits) -> list[ParsedShapes]:
    """The parameters that have dimensions, in each way to cut the list of the start-up into them,
    the one with the fewest scalars first."""
    values = np.frombuffer(habits.shapes[0].sent, "<i8").tolist()
    dense: dict[tuple[ddp_messages.Shape, ...], int] = {}
    least = habits.shapes[0].scalars
    while least <= habits.parameters and len(dense) < MOST_CUTS:
        cuts = ddp_messages.parse_shapes(
            values,
            habits.parameters,
            most=MOST_CUTS,
            elements=habits.elements,
            least_scalars=least,
            most_cost=min(dense.values(), default=None),
        )
        if not cuts:
            break
        for cut in cuts:
            dense.setdefault(cut.dense, cut.cost)
        least = cuts[0].scalars + 1
    cheapest = min(dense.values(), default=0)
    return [ParsedShapes(shapes, cost) for shapes, cost in dense.items() if cost == cheapest]


def _places(
    known: Communicator, counts: Sequence[int], scalars: int, size: int, likely: Likely | None
) -> ScalarPlaces | None:
    """By the sizes of buckets of elements of `size` bytes; None where none was seen."""
    habits, cuts, ring = known.habits, known.cuts.found, known.ring
    if habits.stage is Stage.PLANNED and not habits.mapped:
        later = reduces_of(cuts[planned_at(cuts) :])[: 2 * len(habits.buckets) + MORE_REDUCES]

        @cache
        def in_plan(elements: int) -> bool:
            return any(_is_of(cut, elements, size, ring) for cut in later)

        if len(later) < len(habits.buckets):
            return None
        return places_in_buckets(
            counts, scalars, habits.buckets, lambda _, elements: in_plan(elements), likely
        )
    # With find_unused_parameters no plan is sent: buckets end where parameters do.
    reduces = reduces_of(cuts[begun_at(cuts) :])
    maps = (i for i, cut in enumerate(reduces) if used_of(cut, habits.parameters, ring))
    parts = reduces[: next(maps, 0)][::-1]

    @cache
    def in_part(run: int, elements: int) -> bool:
        return _is_of(parts[run], elements, size, ring)

    largest = [(c.op.work_bytes + slack_bytes(ring, c.op.protocol)) // size for c in parts]
    return places_in_runs(counts, scalars, largest, in_part, likely) if parts else None


def reduces_of(cuts: Sequence[Cut]) -> list[Cut]:
    """The all-reduces among `cuts`."""
    return [cut for cut in cuts if cut.op.kind is CollectiveKind.ALL_REDUCE]


def _is_of(cut: Cut, elements: int, size: int, ring: Ring) -> bool:
    """On the wire it is as large as that many elements of `size` bytes."""
    slack = slack_bytes(ring, cut.op.protocol)
    if abs(cut.op.work_bytes - elements * size) >= slack:
        return False
    plain = replace(cut, op=replace(cut.op, type_bytes=0))
    return resized(plain, elements * size, ring, 0) is not None


def _weights(known: Communicator) -> NDArray[np.generic] | None:
    """[element] of all parameters, in registration order; None where they were not seen whole, or
    are of no type of numbers that is known."""
    habits = known.habits
    sent = [cut for cut in known.cuts.found if cut.op.meaning == WEIGHTS]
    parts = [content_of(cut, known.ring) for cut in sent]
    dtype = NUMBERS.get(habits.element_bytes)
    whole = [part for part in parts if part is not None]
    if dtype is None or len(whole) < len(parts):
        return None
    size = habits.state_bytes
    flat = np.concatenate(whole) if len(whole) != 1 else whole[0]
    return flat[:size].view(dtype) if len(flat) >= size else None


def _first_gradients(known: Communicator) -> NDArray[np.generic] | None:
    """The same of the first iteration's gradients, which one bucket holds in registration order."""
    habits, cuts = known.habits, known.cuts.found
    begun = cuts[begun_at(cuts) :]
    first = next((cut for cut in begun if cut.op.meaning == BUCKET), None)
    if first is None or habits.mapped or not habits.reduced:
        return None
    content, dtype = content_of(first, known.ring), NUMBERS.get(habits.reduced[0])
    size = habits.bytes_of(range(habits.parameters), habits.reduced)
    if content is None or dtype is None or len(content) < size:
        return None
    return content[:size].view(dtype)


class Likeness:
    """How alike numbers are within each parameter, for each place of scalars before it: a layer
    begins with weights of one spread, or with one number, and so are its gradients."""

    def __init__(self, numbers: Sequence[NDArray[np.generic]], counts: Sequence[int]) -> None:
        """numbers: several times [element] in registration order; counts: [parameter with
        dimensions] elements."""
        self._numbers, self._counts = numbers, counts
        self._starts = [0, *accumulate(counts)]
        self._floors = [FLOOR * _spread(own, 0, len(own)) + TINY for own in numbers]
        self._known: dict[tuple[int, int], float] = {}

    def __call__(self, parameter: int, scalars: int) -> float:
        if (parameter, scalars) not in self._known:
            start = self._starts[parameter] + scalars
            stop = start + self._counts[parameter]
            spreads = (
                _spread(own, start, stop) + floor
                for own, floor in zip(self._numbers, self._floors, strict=True)
            )
            seen = min(self._counts[parameter], 2 * EDGE_ELEMENTS)
            self._known[parameter, scalars] = -seen * float(np.log(list(spreads)).sum()) / 2
        return self._known[parameter, scalars]


def _spread(numbers: NDArray[np.generic], start: int, stop: int) -> float:
    """Variance of those at the begin and at the end of [start, stop)."""
    middle = max(start, min(start + EDGE_ELEMENTS, stop))
    edges = numbers[start:middle], numbers[max(middle, stop - EDGE_ELEMENTS) : stop]
    both = np.nan_to_num(np.concatenate(edges).astype(np.float64), posinf=0.0, neginf=0.0)
    return float(both.var()) if len(both) else 0.0
