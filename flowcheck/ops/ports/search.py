"""The fewest pairs that show every chunk on enough monitor ports: branch and bound.

Each branch takes one more tap that shows a chunk still short, on monitors where that chunk is not
yet, so that whatever remains is found under another branch: what ends by itself is the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from flowcheck.ops.ports.monitors import Monitors, Spot
from flowcheck.ops.ports.partial import Partial, Placed, load_of, seen_on
from flowcheck.ops.ports.taps import Pair, Tap, Want

MOST_STEPS = 20_000
"""Of a search; beyond, the best that was found stands, with how much less there might be."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Of one part of a job whose rings share switches."""

    placed: Placed
    home: dict[str, str]
    """[group] machine"""
    least: int
    """No choice has fewer pairs."""
    exact: bool


class Enough(Exception):
    """The steps are used up."""


class Search:
    """One part. `run` gives the result; None: there is none, or none was found.

    homes: [group] machines that could see all of it.
    """

    def __init__(
        self,
        wants: Sequence[Want],
        taps: Sequence[Tap],
        monitors: Monitors,
        homes: Mapping[str, Sequence[str]],
        redundancy: int,
        most_steps: int = MOST_STEPS,
    ) -> None:
        self.wants = {want.name: want for want in wants}
        self.taps = taps
        self.monitors = monitors
        self.homes = homes
        self.redundancy = redundancy
        self.most_steps = most_steps
        self.steps = 0
        self.best: Placed | None = None
        self.best_home: dict[str, str] = {}
        self.showing = {
            name: [n for n, tap in enumerate(taps) if name in tap.shows] for name in self.wants
        }
        self.price = {name: self._price(name) for name in self.wants}
        self.fits: dict[tuple[str, frozenset[tuple[Pair, int]]], bool] = {}

    def run(self) -> Result | None:
        root = Partial(chosen=(), placed=(), home={}, banned=frozenset())
        least = self._bound(self._short(root))
        exhausted = True
        try:
            self._extend(root, least)
        except Enough:
            exhausted = False
        if self.best is None:
            return None
        exact = exhausted or len(self.best) == least
        return Result(
            placed=self.best,
            home=self.best_home,
            least=len(self.best) if exact else least,
            exact=exact,
        )

    def _extend(self, at: Partial, least: int) -> None:
        self.steps += 1
        if self.steps > self.most_steps:
            raise Enough
        short = self._short(at)
        if not short:
            if self.best is None or len(at.placed) < len(self.best):
                self.best, self.best_home = at.placed, at.home
            if len(at.placed) == least:
                raise Enough
            return
        if self.best is not None and len(at.placed) + self._bound(short) >= len(self.best):
            return
        name = min(short, key=lambda one: (self._homeless(at, one), len(self.showing[one])))
        group = self.wants[name].group
        if group not in at.home:
            for machine in self.homes[group]:
                home = {**at.home, group: machine}
                self._extend(msgspec.structs.replace(at, home=home), least)
            return
        bit = max(range(len(short[name])), key=lambda n: short[name][n])
        banned = set(at.banned)
        for number in self._order(at, name, bit, short, banned):
            for placed in self._places(at, number, name, bit):
                further = Partial(
                    chosen=(*at.chosen, (number, frozenset(where for _, where in placed))),
                    placed=(*at.placed, *placed),
                    home=at.home,
                    banned=frozenset(banned | {number}),
                )
                self._extend(further, least)
            banned.add(number)

    def _homeless(self, at: Partial, name: str) -> bool:
        return self.wants[name].group not in at.home

    def _short(self, at: Partial) -> dict[str, list[int]]:
        """[want][bit] how many monitors more have to see it; those that lack nothing left out."""
        found: dict[str, list[int]] = {}
        for name in self.wants:
            used = self._used(at, name)
            counts = [max(0, self.redundancy - count) for count, _ in used]
            if any(counts):
                found[name] = counts
        return found

    def _used(self, at: Partial, name: str) -> list[tuple[int, frozenset[int]]]:
        return seen_on(self.wants[name], at, self.taps, self.monitors)

    def _price(self, name: str) -> float:
        """Of a tap more for this want, where all that a tap costs is shared by what it shows."""
        taps = (self.taps[number] for number in self.showing[name])
        return min((len(tap.pairs) / len(tap.shows) for tap in taps), default=0.0)

    def _bound(self, short: Mapping[str, list[int]]) -> int:
        """Pairs that are missing at least: each want by its chunks, shared out over taps (a
        solution of the dual program, so no choice has fewer)."""
        total = 0.0
        for name, counts in short.items():
            lacks = sum(1 << bit for bit, count in enumerate(counts) if count)
            shown = (self.taps[n].shows[name] & lacks for n in self.showing[name])
            widest = max((bits.bit_count() for bits in shown), default=0)
            needed = max(*counts, -(-sum(counts) // max(widest, 1)))
            total += needed * self.price[name]
        return math.ceil(total - 1e-9)

    def _order(
        self,
        at: Partial,
        name: str,
        bit: int,
        short: Mapping[str, list[int]],
        banned: set[int],
    ) -> list[int]:
        """Taps that show it, the one that helps most wants first."""
        lacks = {
            one: sum(1 << n for n, count in enumerate(counts) if count)
            for one, counts in short.items()
        }

        def helped(number: int) -> float:
            shows = self.taps[number].shows
            wants = sum(bool(bits & lacks.get(one, 0)) for one, bits in shows.items())
            return -wants / len(self.taps[number].pairs)

        usable = [
            n for n in self.showing[name] if n not in banned and self.taps[n].shows[name] >> bit & 1
        ]
        return sorted(usable, key=lambda number: (helped(number), number))

    def _places(self, at: Partial, number: int, name: str, bit: int) -> Iterator[Placed]:
        """Ways to give a tap's pairs to monitors on which that chunk is not seen yet."""
        taken = self._used(at, name)[bit][1]
        machine = at.home[self.wants[name].group]

        def place(pairs: Sequence[Pair], done: Placed) -> Iterator[Placed]:
            if not pairs:
                yield done
                return
            pair, alike = pairs[0], set()
            for spot in self._spots(pair, machine, (*at.placed, *done)):
                if spot.number in taken:
                    continue
                load = load_of((*at.placed, *done, (pair, spot.number)))
                if len(load[spot.number]) == 1:
                    if spot.kind in alike:
                        continue
                    alike.add(spot.kind)
                if self._fits(pair.switch, (*at.placed, *done, (pair, spot.number))):
                    yield from place(pairs[1:], (*done, (pair, spot.number)))

        yield from place(self.taps[number].pairs, ())

    def _spots(self, pair: Pair, machine: str, placed: Placed) -> list[Spot]:
        """Monitors beside the port, those in use first."""
        used = {where for _, where in placed}
        spots = [s for s in self.monitors.on(pair.switch) if s.monitor.machine == machine]
        return sorted(spots, key=lambda s: (s.number not in used, s.monitor.gbps, s.number))

    def _fits(self, switch: str, placed: Placed) -> bool:
        own = frozenset((pair, where) for pair, where in placed if pair.switch == switch)
        if (switch, own) not in self.fits:
            self.fits[switch, own] = (
                self.monitors.refused(switch, load_of(tuple(sorted(own)))) is None
            )
        return self.fits[switch, own]
