"""Splits the list of sizes and strides that DDP sends at start-up into parameters.

Rank 0 sends, for every parameter, its sizes and then its strides, without saying how many
dimensions it has; scalars leave no trace (`scalars` says where they may stand). Several cuts can
fit, so all are found, best first.

Source: torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from itertools import accumulate, count, pairwise
from math import prod
from struct import pack
from typing import NamedTuple

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""(sizes, strides), both in elements."""

SCALAR: Shape = ((), ())
MOST_DIMENSIONS = 8
"""Dimensions of a parameter. More are legal in torch and unknown in models. A choice: more leaves
more readings open."""
_MOST_SCALARS = 4
"""Scalar parameters of a model of few parameters; see `_most_scalars`. A choice: more leaves more
readings open."""
_PERMUTED, _ODD = 4, 16
"""Costs of a cut that has a dense but permuted, or an unusually strided, parameter."""
_COST = 1 << 56
"""Rank of a cut: its cost in these, plus its elements."""
_MOST_EXPANDED = 200_000
"""Steps of the search; a list that still has no cut then is as good as unreadable. A choice that
bounds time."""


@dataclass(frozen=True)
class ParsedShapes:
    """One way to cut the list."""

    shapes: tuple[Shape, ...]
    cost: int
    """0: every parameter is contiguous. The order among equals is only a guess."""

    @cached_property
    def sent(self) -> bytes:
        """The list itself, as int64."""
        values = [value for sizes, strides in self.shapes for value in (*sizes, *strides)]
        return pack(f"<{len(values)}q", *values)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of each parameter; cuts that differ elsewhere only move no byte."""
        return tuple(prod(sizes) for sizes, _ in self.shapes)

    @cached_property
    def elements(self) -> int:
        return sum(self.counts)

    @property
    def dense(self) -> tuple[Shape, ...]:
        """Those with dimensions."""
        return tuple(shape for shape in self.shapes if shape != SCALAR)

    @property
    def scalars(self) -> int:
        """How many have none."""
        return len(self.shapes) - len(self.dense)


def parse_shapes(
    values: Sequence[int],
    parameters: int,
    *,
    most: int = 16,
    elements: int | None = None,
    least_scalars: int = 0,
    most_cost: int | None = None,
) -> tuple[ParsedShapes, ...]:
    """The `most` best cuts of `values` into `parameters` dense parameters, best first. `elements`
    of all parameters, where known (an all-reduce of everything tells it), rules out almost every
    false cut; without it fewer elements come first among equals. A cut with scalars is offered
    only if none with fewer fits, of `least_scalars` or more, for each place where they may stand.
    `most_cost`: no cut of a higher cost is wanted.
    """
    numbers = tuple(map(int, values))
    return _parsed(numbers, parameters, most, elements, least_scalars, most_cost)


@lru_cache(maxsize=64)
def _parsed(
    numbers: tuple[int, ...],
    parameters: int,
    most: int,
    elements: int | None,
    least_scalars: int,
    most_cost: int | None,
) -> tuple[ParsedShapes, ...]:
    blocks, spans = _prepared(numbers, most_cost)
    possible: frozenset[int] | None = None
    for scalars in range(least_scalars, _most_scalars(parameters) + 1):
        if elements is not None and scalars == least_scalars + 1:  # mostly the first one fits
            possible = _dense_counts(blocks, elements - parameters)
        if possible is not None and parameters - scalars not in possible:
            continue
        found: list[ParsedShapes] = []
        ahead = _ahead(blocks, spans, parameters - scalars)
        due = None if elements is None else elements - scalars
        for parsed in _parses(numbers, blocks, ahead, parameters - scalars, due, most_cost):
            for spread in _with_scalars(parsed.shapes, scalars):
                found.append(ParsedShapes(spread, parsed.cost))
                if len(found) == most:
                    return tuple(found)
        if found:
            return tuple(found)
    return ()


def scalars_at_ends(values: Sequence[int], parameters: int) -> dict[int, int]:
    """{end: fewest scalars} for each `end` at which `values[:end]` can be cut into that many
    parameters, scalars among them. All ends cost one walk over the list."""
    blocks, most = _blocks(values), _most_scalars(parameters)
    # Bit n of a place: cuts of what is before it have n parameters.
    counts = [1] + [0] * len(values)
    for position, own in enumerate(blocks):
        if counts[position]:
            for dimensions, _ in own:
                counts[position + 2 * dimensions] |= counts[position] << 1
    wanted = (2 << parameters) - 1
    dense = {end: (here & wanted).bit_length() - 1 for end, here in enumerate(counts)}
    return {end: parameters - n for end, n in dense.items() if end and n >= parameters - most}


_Blocks = Sequence[Sequence[tuple[int, int]]]
"""[position] -> (dimensions, rank) of every parameter that can start there."""


@lru_cache(maxsize=8)
def _prepared(numbers: tuple[int, ...], most_cost: int | None) -> tuple[_Blocks, list[_Span]]:
    """`_blocks` of no higher cost, and `_spans`."""
    blocks = _blocks(numbers)
    if most_cost is not None:
        blocks = [[way for way in own if way[1] // _COST <= most_cost] for own in blocks]
    return blocks, _spans(blocks)


def with_scalars_at(dense: Sequence[Shape], places: Sequence[int]) -> tuple[Shape, ...]:
    """Parameters with dimensions in their order, and scalars at these places among all."""
    left, scalars = iter(dense), set(places)
    every = range(len(dense) + len(scalars))
    return tuple(SCALAR if place in scalars else next(left) for place in every)


def _most_scalars(parameters: int) -> int:
    """So many among that many: a list that lost its end looks like one with more of them."""
    return min(parameters, max(_MOST_SCALARS, parameters // 2))


def shape_cost(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """0 for a contiguous tensor, more for a permuted one, None if it has holes or overlaps.
    Strides of dimensions of size 1 address nothing; torch still sets them by its own rule."""
    if min(sizes) < 1 or min(strides) < 1:
        return None
    if list(strides) == _packed(sizes, range(len(sizes) - 1, -1, -1)):
        return 0
    wide = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1)
    dense = 1
    for stride, size in wide:
        if stride != dense:
            return None
        dense *= size
    # Stable by stride: the memory order in which torch would give just these strides.
    order = sorted(range(len(sizes)), key=lambda axis: (strides[axis], sizes[axis] > 1))
    usual = [_packed(sizes, order)]
    if len(sizes) in (4, 5):
        usual.append(_packed(sizes, [1, *range(len(sizes) - 1, 1, -1), 0]))
    return _PERMUTED if list(strides) in usual else _ODD


def _packed(sizes: Sequence[int], inner_first: Sequence[int]) -> list[int]:
    """Strides of a dense tensor whose axes lie in memory in this order."""
    strides, dense = [0] * len(sizes), 1
    for axis in inner_first:
        strides[axis] = dense
        dense *= sizes[axis]
    return strides


def _parses(
    values: Sequence[int],
    blocks: _Blocks,
    ahead: Sequence[dict[int, _Rest]],
    parameters: int,
    elements: int | None,
    most_cost: int | None,
) -> Iterator[ParsedShapes]:
    """Cuts without scalars, best first: the rank still to come is known exactly, so nothing is
    expanded that leads nowhere, but for `elements`, where only bounds are known."""
    if parameters not in ahead[0]:
        return
    ticket = count()
    heap: list[tuple[int, int, int, int, int, _Cut | None]] = []
    heappush(heap, (ahead[0][parameters].rank, 0, 0, 0, parameters, None))
    while heap and next(ticket) < _MOST_EXPANDED:
        total, _, spent, position, left, cut = heappop(heap)
        if most_cost is not None and total // _COST > most_cost:
            return
        if not left:
            yield ParsedShapes(_shapes_of(cut, values), total // _COST)
        for dimensions, rank in blocks[position] if left else ():
            after = position + 2 * dimensions
            rest = ahead[after].get(left - 1)
            if rest is None:
                continue
            known = (spent + rank) % _COST
            if elements is None or known + rest.fewest <= elements <= known + rest.most:
                due, own = spent + rank + rest.rank, _Cut(position, dimensions, cut)
                heappush(heap, (due, -next(ticket), spent + rank, after, left - 1, own))


class _Cut(NamedTuple):
    """A parameter and those before it."""

    position: int
    dimensions: int
    before: _Cut | None


def _shapes_of(cut: _Cut | None, values: Sequence[int]) -> tuple[Shape, ...]:
    shapes: list[Shape] = []
    while cut is not None:
        middle = cut.position + cut.dimensions
        after = middle + cut.dimensions
        shapes.append((tuple(values[cut.position : middle]), tuple(values[middle:after])))
        cut = cut.before
    return tuple(reversed(shapes))


def _blocks(values: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Of the list."""
    blocks: list[list[tuple[int, int]]] = []
    for position in range(len(values)):
        # Every parameter takes an even number of values, so none starts at an odd one.
        most = 0 if position % 2 else min(MOST_DIMENSIONS, (len(values) - position) // 2)
        found: list[tuple[int, int]] = []
        for dimensions in range(1, most + 1):
            middle = position + dimensions
            cost = shape_cost(values[position:middle], values[middle : middle + dimensions])
            if cost is not None:
                found.append((dimensions, cost * _COST + prod(values[position:middle])))
        blocks.append(found)
    return blocks


_WIDE = 1 << 24
"""More than there are parameters: a number of them and one of elements in one integer."""
_MOST_SUMS = 1 << 14
"""Totals of elements that are looked at. A choice that bounds time: with more it stays open which
are possible."""


def _dense_counts(blocks: _Blocks, beyond: int) -> frozenset[int] | None:
    """How many parameters with dimensions a cut may have that have `beyond` elements more than
    there are of them, exactly: with scalars in the place of what it lacks it is of the right
    size. None: too many ways to tell.

    Layers are cut in the same few ways each. Between places where every cut parts, each stretch
    has its own, and only their sums count.
    """
    stops = _parted_everywhere(blocks)
    if stops is None:
        return frozenset()
    sums = {0}
    for start, stop in pairwise(stops):
        ways: dict[int, set[int]] = {start: {0}}
        for position in range(start, stop):
            for dimensions, rank in blocks[position] if position in ways else ():
                own = (rank % _COST - 1) * _WIDE + 1
                after = ways.setdefault(position + 2 * dimensions, set())
                after |= {way + own for way in ways[position]}
                if len(after) > _MOST_SUMS:
                    return None
        sums = {total + way for total in sums for way in ways.get(stop, ())}
        if len(sums) > _MOST_SUMS:
            return None
    return frozenset(total % _WIDE for total in sums if total // _WIDE == beyond)


def _parted_everywhere(blocks: _Blocks) -> list[int] | None:
    """Positions that every cut of the whole list parts at, both ends included; None: there is
    none."""
    length = len(blocks)
    ends = [False] * length + [True]
    for position in range(length - 1, -1, -1):
        ends[position] = any(ends[position + 2 * d] for d, _ in blocks[position])
    if not ends[0]:
        return None
    reached, over = [True] + [False] * length, [0] * (length + 2)
    for position in range(length):
        for dimensions, _ in blocks[position] if reached[position] else ():
            after = position + 2 * dimensions
            if ends[after]:
                reached[after] = True
                over[position + 1] += 1
                over[after] -= 1
    spans = list(accumulate(over))
    return [p for p in range(length + 1) if reached[p] and not spans[p]]


class _Rest(NamedTuple):
    """Of all ways to cut what is left."""

    rank: int
    fewest: int
    most: int


_Span = tuple[int, int]
"""(fewest, most) parameters."""
_NONE = (1 << 30, -1)


def _spans(blocks: _Blocks) -> list[_Span]:
    """[position] how many parameters cuts may have before it; `_NONE` where none parts."""
    spans = [_NONE] * (len(blocks) + 1)
    spans[0] = (0, 0)
    for position, own in enumerate(blocks):
        fewest, most = spans[position]
        for dimensions, _ in own if most >= 0 else ():
            after = position + 2 * dimensions
            low, high = spans[after]
            spans[after] = min(low, fewest + 1), max(high, most + 1)
    return spans


def _ahead(blocks: _Blocks, spans: Sequence[_Span], parameters: int) -> list[dict[int, _Rest]]:
    """[position] -> {parameters still to cut: best rank, fewest and most elements}, as far as a cut
    into so many may come there."""
    length = len(blocks)
    ahead: list[dict[int, _Rest]] = [{} for _ in range(length + 1)]
    fewest, most = spans[length]
    if not fewest <= parameters <= most:
        return ahead
    ahead[length][0] = _Rest(0, 0, 0)
    for position in range(length - 1, -1, -1):
        here, (fewest, most) = ahead[position], spans[position]
        for dimensions, rank in blocks[position] if most >= 0 else ():
            own = rank % _COST
            for left, rest in ahead[position + 2 * dimensions].items():
                if not fewest <= parameters - left - 1 <= most:
                    continue
                new = _Rest(rank + rest.rank, own + rest.fewest, own + rest.most)
                old = here.get(left + 1, new)
                here[left + 1] = _Rest(
                    min(old.rank, new.rank), min(old.fewest, new.fewest), max(old.most, new.most)
                )
    return ahead


def _with_scalars(shapes: tuple[Shape, ...], scalars: int) -> Iterator[tuple[Shape, ...]]:
    if not scalars:
        yield shapes
        return
    for place in range(len(shapes) + 1):
        for rest in _with_scalars(shapes[place:], scalars - 1):
            yield (*shapes[:place], SCALAR, *rest)
