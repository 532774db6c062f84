"""Branch and bound search for the fewest mirrored ports that show every chunk on enough monitor
ports.

Each branch takes one more tap that shows a chunk still short, on monitors where that chunk is not
seen yet; the rest is found under another branch, so a search that ends by itself is optimal.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic

import msgspec

from flowcheck.ops.mirror_ports.search.chunk_coverage import (
    CoverageGoal,
    MirroredDirection,
    PortTap,
)
from flowcheck.ops.mirror_ports.search.monitor_port_limits import MonitorPort, MonitorPorts

PlacedPorts = tuple[tuple[MirroredDirection, int], ...]
"""Mirrored port directions, each with the number of the monitor that receives its copies."""


ChunksSeen = tuple[tuple[int, frozenset[int]], ...]
"""For each bit of a coverage goal: (number of monitors that see it, which ones)."""


class PartialChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the search tree: a partial choice of taps."""

    chosen: tuple[tuple[int, frozenset[int]], ...]
    """(tap number, monitors that receive its copies)."""
    placed: PlacedPorts
    machine_of_group: dict[str, str]
    """Group -> FlowCheck machine that receives all its copies."""
    banned: frozenset[int]
    """Taps that are excluded here, since another branch tries all choices with them."""
    seen: dict[str, ChunksSeen]
    """Name of a coverage goal -> what is seen of it."""


def chunks_seen_on(
    want: CoverageGoal, at: PartialChoice, taps: Sequence[PortTap], monitors: MonitorPorts
) -> ChunksSeen:
    """What the chosen taps show of a goal on the monitors of its group's machine. A tap with
    several port directions counts for a monitor once."""
    machine = at.machine_of_group.get(want.group)
    seen: ChunksSeen = ((0, frozenset()),) * len(want.chunks)
    for number, where in at.chosen:
        ends = {monitors.monitor_ports[spot].monitor.machine for spot in where}
        if machine is None or ends == {machine}:
            seen = with_tap_seen(seen, taps[number].shows.get(want.name, 0), where)
    return seen


def with_tap_seen(seen: ChunksSeen, bits: int, where: frozenset[int]) -> ChunksSeen:
    """`seen` after one more tap that shows `bits` on the monitors `where`."""
    if not bits:
        return seen
    return tuple(
        (count + 1, there | where) if bits >> bit & 1 and not there & where else (count, there)
        for bit, (count, there) in enumerate(seen)
    )


def load_by_monitor(placed: PlacedPorts) -> dict[int, tuple[MirroredDirection, ...]]:
    """Monitor number -> mirrored port directions that send copies to it."""
    found: dict[int, tuple[MirroredDirection, ...]] = {}
    for pair, where in placed:
        found[where] = (*found.get(where, ()), pair)
    return found


SEARCH_LIMIT_S = 30.0
"""Seconds for one search; then the best choice found so far is used, as after MOST_STEPS. A
choice: a longer time may find fewer ports, while the operator waits."""
PROGRESS_EVERY_S = 3.0
"""Seconds before the first progress line on stderr, and between two. A choice of layout."""


class SearchTimer:
    """Ends a search after its time or its steps are used up, and prints its progress."""

    def __init__(self, most_steps: int, clock: Callable[[], float] = monotonic) -> None:
        self.most_steps = most_steps
        self.clock = clock
        self.started_s = self.said_s = clock()

    def spent(self, steps: int, pairs: int | None) -> bool:
        """Whether the search must end after this many steps. pairs: port directions of the best
        choice so far; None: none was found."""
        if steps > self.most_steps:
            return True
        now_s = self.clock()
        if now_s - self.said_s >= PROGRESS_EVERY_S:
            self.said_s = now_s
            best = "none yet" if pairs is None else f"{pairs} pairs"
            sys.stderr.write(
                f"searching ports for {now_s - self.started_s:.0f} s: {steps:,} of at most "
                f"{self.most_steps:,} steps, best choice: {best}; ends after {SEARCH_LIMIT_S:g} s\n"
            )
        return now_s - self.started_s > SEARCH_LIMIT_S


class LowerBound:
    """Lower bound on the number of port directions, for pruning.

    The cost of a tap is split evenly over the goals it shows, and each goal is charged its
    smallest such share per tap that it still needs. No tap is charged more than it costs, so this
    is a feasible solution of the dual linear program and no choice costs less.
    """

    def __init__(self, wants: Sequence[CoverageGoal], taps: Sequence[PortTap]) -> None:
        self.shown = {want.name: [t for t in taps if want.name in t.shows] for want in wants}
        self.price = {
            name: min((len(tap.pairs) / len(tap.shows) for tap in own), default=0.0)
            for name, own in self.shown.items()
        }
        self.widest: dict[tuple[str, int], int] = {}

    def further_directions_least(self, short: Mapping[str, Sequence[int]]) -> int:
        """Least number of further port directions. short: goal -> for each of its bits, on how
        many more monitors it must be seen."""
        total = 0.0
        for name, counts in short.items():
            lacks = sum(1 << bit for bit, count in enumerate(counts) if count)
            if (name, lacks) not in self.widest:
                shown = (tap.shows[name] & lacks for tap in self.shown[name])
                self.widest[name, lacks] = max((bits.bit_count() for bits in shown), default=0)
            taps = max(*counts, -(-sum(counts) // max(self.widest[name, lacks], 1)))
            total += taps * self.price[name]
        return math.ceil(total - 1e-9)


MOST_STEPS = 5_000
"""Steps of one search; then the best choice found so far is used, with a bound on how many fewer
are possible. A choice: more may find fewer ports, while the operator waits."""


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the search for one part of a job: rings that share switches."""

    placed: PlacedPorts
    machine_of_group: dict[str, str]
    """Group -> FlowCheck machine that receives all its copies."""
    least: int
    """Lower bound on the number of port directions."""
    exact: bool


class SearchStopped(Exception):
    """The steps or the time of the search are used up."""


class PortSearch:
    """Search for one part of a job: rings that share switches.

    homes: group -> machines that could receive all its copies.
    redundancy: on how many monitors each chunk must be seen.
    """

    def __init__(
        self,
        wants: Sequence[CoverageGoal],
        taps: Sequence[PortTap],
        monitors: MonitorPorts,
        homes: Mapping[str, Sequence[str]],
        redundancy: int,
        most_steps: int = MOST_STEPS,
    ) -> None:
        self.wants = {want.name: want for want in wants}
        self.taps = taps
        self.monitors = monitors
        self.homes = homes
        self.redundancy = redundancy
        self.patience = SearchTimer(most_steps)
        self.steps = 0
        self.best: PlacedPorts | None = None
        self.best_home: dict[str, str] = {}
        self.showing = {
            name: [n for n, tap in enumerate(taps) if name in tap.shows] for name in self.wants
        }
        self.bound = LowerBound(wants, taps)
        pairs = [pair for tap in taps for pair in tap.pairs]
        self.slowest = min((pair.gbps for pair in pairs), default=1.0)
        switches = {pair.switch for pair in pairs}
        self.spots = [s for s in monitors.monitor_ports if s.monitor.switch in switches]
        self.fits: dict[tuple[str, frozenset[tuple[MirroredDirection, int]]], bool] = {}

    def run(self) -> SearchResult | None:
        """The best choice found; None: there is none, or none was found in time."""
        nothing: dict[str, ChunksSeen] = {
            name: ((0, frozenset()),) * len(want.chunks) for name, want in self.wants.items()
        }
        root = PartialChoice(
            chosen=(), placed=(), machine_of_group={}, banned=frozenset(), seen=nothing
        )
        least = self.bound.further_directions_least(self._short(root))
        exhausted = True
        ways = [iter((root,))]  # no recursion: a large job takes more taps than Python's stack has
        try:
            while ways:
                at = next(ways[-1], None)
                if at is None:
                    ways.pop()
                else:
                    ways.append(self._further(at, least))
        except SearchStopped:
            exhausted = False
        if self.best is None:
            return None
        exact = exhausted or len(self.best) == least
        return SearchResult(
            placed=self.best,
            machine_of_group=self.best_home,
            least=len(self.best) if exact else least,
            exact=exact,
        )

    def _further(self, at: PartialChoice, least: int) -> Iterator[PartialChoice]:
        """The branches at a partial choice; none where it is whole, or leads to no better one."""
        self.steps += 1
        if self.patience.spent(self.steps, None if self.best is None else len(self.best)):
            raise SearchStopped
        short = self._short(at)
        if not short:
            if self.best is None or len(at.placed) < len(self.best):
                self.best, self.best_home = at.placed, at.machine_of_group
            if len(at.placed) == least:
                raise SearchStopped
            return
        needed = self.bound.further_directions_least(short)
        if self.best is not None and len(at.placed) + needed >= len(self.best):
            return
        if needed > self._room(at):
            return
        name = min(short, key=lambda one: (self._homeless(at, one), len(self.showing[one])))
        group = self.wants[name].group
        if group not in at.machine_of_group:
            for machine in self.homes[group]:
                yield self._at_home(at, group, machine)
            return
        bit = max(range(len(short[name])), key=lambda n: short[name][n])
        banned = set(at.banned)
        for number in self._order(at, name, bit, short, banned):
            for placed in self._places(at, number, name, bit):
                yield self._with(at, number, placed, frozenset(banned | {number}))
            banned.add(number)

    def _homeless(self, at: PartialChoice, name: str) -> bool:
        return self.wants[name].group not in at.machine_of_group

    def _at_home(self, at: PartialChoice, group: str, machine: str) -> PartialChoice:
        """Its group's copies end there: what ends elsewhere is not seen."""
        moved = msgspec.structs.replace(
            at, machine_of_group={**at.machine_of_group, group: machine}
        )
        own = {
            name: chunks_seen_on(want, moved, self.taps, self.monitors)
            for name, want in self.wants.items()
            if want.group == group
        }
        return msgspec.structs.replace(moved, seen={**at.seen, **own})

    def _with(
        self, at: PartialChoice, number: int, placed: PlacedPorts, banned: frozenset[int]
    ) -> PartialChoice:
        """A tap more."""
        where = frozenset(spot for _, spot in placed)
        (machine,) = {self.monitors.monitor_ports[spot].monitor.machine for spot in where}
        more = {
            name: with_tap_seen(at.seen[name], bits, where)
            for name, bits in self.taps[number].shows.items()
            if at.machine_of_group.get(self.wants[name].group, machine) == machine
        }
        return PartialChoice(
            chosen=(*at.chosen, (number, where)),
            placed=(*at.placed, *placed),
            machine_of_group=at.machine_of_group,
            banned=banned,
            seen={**at.seen, **more},
        )

    def _short(self, at: PartialChoice) -> dict[str, list[int]]:
        """[want][bit] how many monitors more have to see it; those that lack nothing left out."""
        found: dict[str, list[int]] = {}
        for name, seen in at.seen.items():
            if min(count for count, _ in seen) < self.redundancy:
                found[name] = [max(0, self.redundancy - count) for count, _ in seen]
        return found

    def _room(self, at: PartialChoice) -> int:
        """How many of the slowest pairs the monitors could still take."""
        load = load_by_monitor(at.placed)
        left = (
            (s.monitor.gbps * (1 + 1e-9) - self.monitors.gbps(s, load.get(s.number, ()))) / s.growth
            for s in self.spots
        )
        return sum(int(min(one / self.slowest, len(self.taps) * 8)) for one in left)

    def _order(
        self,
        at: PartialChoice,
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

    def _places(self, at: PartialChoice, number: int, name: str, bit: int) -> Iterator[PlacedPorts]:
        """Ways to give a tap's pairs to monitors on which that chunk is not seen yet."""
        seen = at.seen[name]
        shows = self.taps[number].shows[name]
        machine = at.machine_of_group[self.wants[name].group]

        gains = {
            s.number: sum(
                shows >> n & 1 and count < self.redundancy and s.number not in there
                for n, (count, there) in enumerate(seen)
            )
            for s in self.spots
        }

        def place(pairs: Sequence[MirroredDirection], done: PlacedPorts) -> Iterator[PlacedPorts]:
            if not pairs:
                yield done
                return
            pair, alike = pairs[0], set()
            for spot in self._spots(pair, machine, (*at.placed, *done), gains):
                if spot.number in seen[bit][1]:
                    continue
                load = load_by_monitor((*at.placed, *done, (pair, spot.number)))
                if len(load[spot.number]) == 1:
                    if spot.kind in alike:
                        continue
                    alike.add(spot.kind)
                if self._fits(pair.switch, (*at.placed, *done, (pair, spot.number))):
                    yield from place(pairs[1:], (*done, (pair, spot.number)))

        yield from place(self.taps[number].pairs, ())

    def _spots(
        self, pair: MirroredDirection, machine: str, placed: PlacedPorts, gains: Mapping[int, int]
    ) -> list[MonitorPort]:
        """Monitors beside the port, those on which most is new first, then those in use."""
        used = {where for _, where in placed}
        spots = [
            s for s in self.monitors.ports_of_switch(pair.switch) if s.monitor.machine == machine
        ]
        return sorted(
            spots, key=lambda s: (-gains[s.number], s.number not in used, s.monitor.gbps, s.number)
        )

    def _fits(self, switch: str, placed: PlacedPorts) -> bool:
        own = frozenset((pair, where) for pair, where in placed if pair.switch == switch)
        if (switch, own) not in self.fits:
            self.fits[switch, own] = (
                self.monitors.refusal_reason(switch, load_by_monitor(tuple(sorted(own)))) is None
            )
        return self.fits[switch, own]
