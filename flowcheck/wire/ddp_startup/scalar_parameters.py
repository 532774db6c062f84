"""Where zero-dimensional parameters stand among the others of a DDP job: places that give every
bucket its size on the wire.

The list of sizes and strides that opens the job holds no word of a scalar: only how many there are
is told, by the number of parameters. Their places must give every bucket the size it has on the
wire. Where several do, which of these is likeliest is a matter of `Likely`.

Source: torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

MOST_STATES = 20_000
"""States of the search at one parameter; with more nothing is told. A choice that bounds time and
memory."""

Fits = Callable[[int, int], bool]
"""(bucket, elements) -> whether that many elements are as large as the bucket on the wire."""
Likely = Callable[[int, int], float]
"""(parameter with dimensions, scalars before it) -> how much speaks for that, in any unit."""
_Sums = tuple[int, ...]
_Next = Callable[[_Sums, int, int], Iterable[_Sums]]
"""(state, place, elements of the parameter that stands there) -> states behind it."""


@dataclass(frozen=True, slots=True)
class ScalarPlaces:
    """What the sizes leave open."""

    found: tuple[tuple[int, ...], ...]
    """[way][scalar] its place among all parameters, ascending; the likeliest way first, and no more
    ways than were asked for."""
    ways: int
    """How many there are."""
    margin: float = 0.0
    """By how much more speaks for the first than for the next, in the unit of `Likely`; infinite
    where there is one alone."""


@dataclass(slots=True)
class _Ways:
    """How one state of the search was reached."""

    best: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    """(what speaks for it, places of scalars)"""
    count: int = 0

    def add(self, best: Iterable[tuple[float, tuple[int, ...]]], count: int, most: int) -> None:
        self.count += count
        merged = sorted((*self.best, *best), key=lambda way: (-way[0], way[1]))
        self.best = merged[:most]


def places_in_buckets(
    counts: Sequence[int],
    scalars: int,
    buckets: Sequence[Sequence[int]],
    fits: Fits,
    likely: Likely | None = None,
    *,
    most: int = 16,
) -> ScalarPlaces | None:
    """Places of `scalars` scalars that give every bucket a size that fits.

    counts: [parameter with dimensions] elements; buckets: places of parameters, each in one bucket.
    None where too many ways would have to be compared; `ways` is 0 where none fits.
    """
    home = {place: n for n, bucket in enumerate(buckets) for place in bucket}
    last = {max(bucket): n for n, bucket in enumerate(buckets)}

    def step(sums: _Sums, place: int, elements: int) -> Iterable[_Sums]:
        own = home[place]
        total = sums[own] + elements
        if place in last and not fits(own, total):
            return
        # What is settled is forgotten: only open buckets tell states apart.
        yield (*sums[:own], 0 if place in last else total, *sums[own + 1 :])

    begin = (0,) * len(buckets)
    return _search(counts, scalars, begin, step, begin, likely, most)


def places_in_runs(
    counts: Sequence[int],
    scalars: int,
    largest: Sequence[int],
    fits: Fits,
    likely: Likely | None = None,
    *,
    most: int = 16,
) -> ScalarPlaces | None:
    """The same where buckets are runs of parameters in registration order, of which only the sizes
    are known: run n has elements that `fits(n, elements)` takes, and no more than `largest[n]`."""

    def step(sums: _Sums, place: int, elements: int) -> Iterable[_Sums]:
        run, total = sums[0], sums[1] + elements
        if run == len(largest) or total > largest[run]:
            return
        yield run, total
        if fits(run, total):
            yield run + 1, 0

    return _search(counts, scalars, (0, 0), step, (len(largest), 0), likely, most)


def _search(
    counts: Sequence[int],
    scalars: int,
    begin: _Sums,
    step: _Next,
    end: _Sums,
    likely: Likely | None,
    most: int,
) -> ScalarPlaces | None:
    """One parameter after the other: it is a scalar, or the next one with dimensions."""
    layer = {(0, begin): _Ways([(0.0, ())], 1)}
    for place in range(len(counts) + scalars):
        later: dict[tuple[int, _Sums], _Ways] = {}
        for (done, sums), ways in layer.items():
            before = place - done
            if done < len(counts):
                gain = likely(done, before) if likely is not None else 0.0
                best = [(score + gain, own) for score, own in ways.best]
                for reached in step(sums, place, counts[done]):
                    later.setdefault((done + 1, reached), _Ways()).add(best, ways.count, most)
            if before < scalars:
                best = [(score, (*own, place)) for score, own in ways.best]
                for reached in step(sums, place, 1):
                    later.setdefault((done, reached), _Ways()).add(best, ways.count, most)
        if len(later) > MOST_STATES:
            return None
        layer = later
    ended = layer.get((len(counts), end), _Ways())
    scores = [score for score, _ in ended.best]
    margin = scores[0] - scores[1] if len(scores) > 1 else math.inf
    return ScalarPlaces(tuple(own for _, own in ended.best), ended.count, margin)
