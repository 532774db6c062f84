"""The fewest pairs that show every chunk on enough monitor ports: branch and bound.

Each branch takes one more tap that shows a chunk still short, on monitors where that chunk is not
yet, so that whatever remains is found under another branch: what ends by itself is the least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from flowcheck.ops.ports.bound import Bound
from flowcheck.ops.ports.monitors import Monitors, Spot
from flowcheck.ops.ports.partial import Partial, Placed, Seen, load_of, seen_on, shown_more
from flowcheck.ops.ports.patience import Patience
from flowcheck.ops.ports.taps import Pair, Tap, Want

MOST_STEPS = 5_000
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
    """The steps or the time are used up."""


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
        self.patience = Patience(most_steps)
        self.steps = 0
        self.best: Placed | None = None
        self.best_home: dict[str, str] = {}
        self.showing = {
            name: [n for n, tap in enumerate(taps) if name in tap.shows] for name in self.wants
        }
        self.bound = Bound(wants, taps)
        pairs = [pair for tap in taps for pair in tap.pairs]
        self.slowest = min((pair.gbps for pair in pairs), default=1.0)
        switches = {pair.switch for pair in pairs}
        self.spots = [s for s in monitors.spots if s.monitor.switch in switches]
        self.fits: dict[tuple[str, frozenset[tuple[Pair, int]]], bool] = {}

    def run(self) -> Result | None:
        nothing: dict[str, Seen] = {
            name: ((0, frozenset()),) * len(want.chunks) for name, want in self.wants.items()
        }
        root = Partial(chosen=(), placed=(), home={}, banned=frozenset(), seen=nothing)
        least = self.bound.pairs(self._short(root))
        exhausted = True
        ways = [iter((root,))]  # no recursion: a large job takes more taps than Python's stack has
        try:
            while ways:
                at = next(ways[-1], None)
                if at is None:
                    ways.pop()
                else:
                    ways.append(self._further(at, least))
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

    def _further(self, at: Partial, least: int) -> Iterator[Partial]:
        """The branches at a partial choice; none where it is whole, or leads to no better one."""
        self.steps += 1
        if self.patience.spent(self.steps, None if self.best is None else len(self.best)):
            raise Enough
        short = self._short(at)
        if not short:
            if self.best is None or len(at.placed) < len(self.best):
                self.best, self.best_home = at.placed, at.home
            if len(at.placed) == least:
                raise Enough
            return
        needed = self.bound.pairs(short)
        if self.best is not None and len(at.placed) + needed >= len(self.best):
            return
        if needed > self._room(at):
            return
        name = min(short, key=lambda one: (self._homeless(at, one), len(self.showing[one])))
        group = self.wants[name].group
        if group not in at.home:
            for machine in self.homes[group]:
                yield self._at_home(at, group, machine)
            return
        bit = max(range(len(short[name])), key=lambda n: short[name][n])
        banned = set(at.banned)
        for number in self._order(at, name, bit, short, banned):
            for placed in self._places(at, number, name, bit):
                yield self._with(at, number, placed, frozenset(banned | {number}))
            banned.add(number)

    def _homeless(self, at: Partial, name: str) -> bool:
        return self.wants[name].group not in at.home

    def _at_home(self, at: Partial, group: str, machine: str) -> Partial:
        """Its group's copies end there: what ends elsewhere is not seen."""
        moved = msgspec.structs.replace(at, home={**at.home, group: machine})
        own = {
            name: seen_on(want, moved, self.taps, self.monitors)
            for name, want in self.wants.items()
            if want.group == group
        }
        return msgspec.structs.replace(moved, seen={**at.seen, **own})

    def _with(self, at: Partial, number: int, placed: Placed, banned: frozenset[int]) -> Partial:
        """A tap more."""
        where = frozenset(spot for _, spot in placed)
        (machine,) = {self.monitors.spots[spot].monitor.machine for spot in where}
        more = {
            name: shown_more(at.seen[name], bits, where)
            for name, bits in self.taps[number].shows.items()
            if at.home.get(self.wants[name].group, machine) == machine
        }
        return Partial(
            chosen=(*at.chosen, (number, where)),
            placed=(*at.placed, *placed),
            home=at.home,
            banned=banned,
            seen={**at.seen, **more},
        )

    def _short(self, at: Partial) -> dict[str, list[int]]:
        """[want][bit] how many monitors more have to see it; those that lack nothing left out."""
        found: dict[str, list[int]] = {}
        for name, seen in at.seen.items():
            if min(count for count, _ in seen) < self.redundancy:
                found[name] = [max(0, self.redundancy - count) for count, _ in seen]
        return found

    def _room(self, at: Partial) -> int:
        """How many of the slowest pairs the monitors could still take."""
        load = load_of(at.placed)
        left = (
            (s.monitor.gbps * (1 + 1e-9) - self.monitors.gbps(s, load.get(s.number, ()))) / s.growth
            for s in self.spots
        )
        return sum(int(min(one / self.slowest, len(self.taps) * 8)) for one in left)

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
        seen = at.seen[name]
        shows = self.taps[number].shows[name]
        machine = at.home[self.wants[name].group]

        gains = {
            s.number: sum(
                shows >> n & 1 and count < self.redundancy and s.number not in there
                for n, (count, there) in enumerate(seen)
            )
            for s in self.spots
        }

        def place(pairs: Sequence[Pair], done: Placed) -> Iterator[Placed]:
            if not pairs:
                yield done
                return
            pair, alike = pairs[0], set()
            for spot in self._spots(pair, machine, (*at.placed, *done), gains):
                if spot.number in seen[bit][1]:
                    continue
                load = load_of((*at.placed, *done, (pair, spot.number)))
                if len(load[spot.number]) == 1:
                    if spot.kind in alike:
                        continue
                    alike.add(spot.kind)
                if self._fits(pair.switch, (*at.placed, *done, (pair, spot.number))):
                    yield from place(pairs[1:], (*done, (pair, spot.number)))

        yield from place(self.taps[number].pairs, ())

    def _spots(
        self, pair: Pair, machine: str, placed: Placed, gains: Mapping[int, int]
    ) -> list[Spot]:
        """Monitors beside the port, those on which most is new first, then those in use."""
        used = {where for _, where in placed}
        spots = [s for s in self.monitors.on(pair.switch) if s.monitor.machine == machine]
        return sorted(
            spots, key=lambda s: (-gains[s.number], s.number not in used, s.monitor.gbps, s.number)
        )

    def _fits(self, switch: str, placed: Placed) -> bool:
        own = frozenset((pair, where) for pair, where in placed if pair.switch == switch)
        if (switch, own) not in self.fits:
            self.fits[switch, own] = (
                self.monitors.refused(switch, load_of(tuple(sorted(own)))) is None
            )
        return self.fits[switch, own]
