"""A plan held against what captures hold: the first collective that is another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from flowcheck.ops.planning.match import Stated, opens, said, unlike
from flowcheck.ops.planning.traffic import ORDER, USED_MAP, Planned, Traffic
from flowcheck.wire.job import MAP_BYTES
from flowcheck.wire.learn import Collective
from flowcheck.wire.terms import GRAIN_BYTES, Kind, round_up

AS_MAP = "as large as the map that find_unused_parameters or static_graph sends"
LEFT_BYTES = 64
"""A barrier or a metric behind the last iteration; more is rather a part of one that differs."""
TELLING_BYTES = 4096
"""A bucket of so much is not mistaken for a metric, nor a metric for it."""
WIDTH = 64
"""Readings kept at each collective: which ones are the script's own may be open for a while."""


_held = attrgetter("held")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    held: int
    """Collectives of the captures that are as planned."""
    iterations: int
    """Whole ones among them."""
    from_start: bool
    """The start-up was held too; False: the captures begin later."""
    beside: tuple[tuple[str, int], ...]
    """(what, how often) of the collectives that are in no plan: the script's own."""
    difference: str = ""
    """The first collective that is not as planned; empty: there is none."""
    index: int | None = None
    """Its number in the captures."""
    order_told: bool = False
    """The order in which gradients became ready is the captures' own."""


class _State(msgspec.Struct, frozen=True):
    """One way to read the captures so far."""

    began: int
    at: int
    """Where in the plan the captures begin, and its next place."""
    own: tuple[int, ...] = ()
    """Collectives that are the script's own."""
    waiting: int = 0
    waiting_bytes: int = 0
    """How many of these came since the last planned one, and how much they hold at least."""

    @property
    def held(self) -> int:
        return self.at - self.began


class _Sequence:
    """The plan as one endless list."""

    def __init__(self, traffic: Traffic) -> None:
        self.start = len(traffic.start_up)
        self._once = [*traffic.start_up, *(one for part in traffic.first for one in part)]
        self._each = traffic.each
        self.begins = [self.start]
        for part in traffic.first:
            self.begins.append(self.begins[-1] + len(part))
        self.period = len(self._each)
        every = {one.work_bytes: one for one in (*self._once, *self._each) if _reduces(one)}
        maps = any(one.what == USED_MAP for one in self._once + list(self._each))
        self._map_bytes = 0 if maps else MAP_BYTES * traffic.start_up[0].values[0]
        self._large = [one for size, one in every.items() if size >= TELLING_BYTES]
        self.round_bytes = sum(one.work_bytes for one in self._each)

    def __getitem__(self, at: int) -> Planned:
        once = len(self._once)
        return self._once[at] if at < once else self._each[(at - once) % self.period]

    def holds_as_large(self, stated: Stated, seen: Collective) -> bool:
        """It would do for a bucket: once more than planned."""
        return any(not unlike(one, stated, seen) for one in self._large)

    def named(self, seen: Collective) -> str:
        """What is none of the plan's, with what it may be a sign of."""
        told = f"{seen.kind} of {seen.bytes:,} bytes"
        size = round_up(self._map_bytes, GRAIN_BYTES[seen.protocol])
        alike = seen.kind == Kind.ALL_REDUCE and seen.bytes == size
        return f"{told}, {AS_MAP}" if alike and self._map_bytes > LEFT_BYTES // 4 else told

    def iteration(self, at: int) -> int | None:
        """Which one the place is in; None: the start-up."""
        if at < self.start:
            return None
        last = len(self.begins) - 1
        if at >= self.begins[last]:
            return last + (at - self.begins[last]) // self.period
        return max(n for n, begin in enumerate(self.begins) if begin <= at)


def check(traffic: Traffic, stated: Stated, collectives: Sequence[Collective]) -> Found:
    """collectives: of all communicators, in order; the one that the plan begins in, or that
    reduces most, is held against it. In the start-up nothing may come between. Afterwards what is
    not the next planned collective is taken for the script's own, as long as the next one still
    comes before as much as an iteration has gone by."""
    plan = _Sequence(traffic)
    own = _communicator(plan[0], collectives)
    if not own:
        nothing = "the captures hold no all-reduce"
        return Found(held=0, iterations=0, from_start=False, beside=(), difference=nothing)
    first = next((n for n, c in enumerate(own) if opens(plan[0], c)), None)
    begins = [0]
    if first is None:
        begins = [*plan.begins, *range(plan.begins[-1], plan.begins[-1] + plan.period)]
    before = tuple(range(first or 0))
    states = [_State(began=at, at=at, own=before) for at in dict.fromkeys(begins)]
    return _followed(plan, stated, own, states, first or 0)


def _reduces(planned: Planned) -> bool:
    return planned.kind is Kind.ALL_REDUCE


def order_said(traffic: Traffic, collectives: Sequence[Collective]) -> tuple[int, ...] | None:
    """The order of parameters in the captures' own bucket plan; None where there is none."""
    due = next((p for part in traffic.first for p in part if p.what == ORDER), None)
    count = 0 if due is None else len(due.values) - 1
    for seen in collectives:
        if due is not None and seen.kind == due.kind and seen.bytes >= due.work_bytes:
            values = said(due, seen)
            if values is not due.values and sorted(values[:-1]) == list(range(count)):
                return values[:-1]
    return None


def _followed(
    plan: _Sequence, stated: Stated, own: Sequence[Collective], states: list[_State], first: int
) -> Found:
    for number, seen in enumerate(own[first:], first):
        after: dict[int, _State] = {}
        for state in states:
            for following in _steps(plan, stated, state, number, seen):
                best = after.setdefault(following.at, following)
                if following.held > best.held:
                    after[following.at] = following
        if not after:
            return _differs(plan, stated, own, max(states, key=_held), number)
        states = sorted(after.values(), key=_held, reverse=True)[:WIDTH]
    settled = [state for state in states if state.waiting_bytes <= LEFT_BYTES]
    if not settled:
        return _differs(plan, stated, own, max(states, key=_held), len(own))
    return _found(plan, own, max(settled, key=_held))


def _steps(
    plan: _Sequence, stated: Stated, state: _State, number: int, seen: Collective
) -> list[_State]:
    found = []
    if not unlike(plan[state.at], stated, seen):
        found.append(_State(state.began, state.at + 1, state.own))
    # Lines and groups are filled up: so much it holds at least.
    size = state.waiting_bytes + max(1, seen.bytes - GRAIN_BYTES[seen.protocol] + 1)
    room = size < plan.round_bytes or size <= LEFT_BYTES
    if state.at >= plan.start and room and not plan.holds_as_large(stated, seen):
        own = (*state.own, number)
        found.append(_State(state.began, state.at, own, state.waiting + 1, size))
    return found


def _communicator(opening: Planned, collectives: Sequence[Collective]) -> list[Collective]:
    ring = [c for c in collectives if c.kind in set(map(str, Kind))]
    reduced: Counter[int] = Counter()
    for c in ring:
        if c.kind == Kind.ALL_REDUCE:
            reduced[c.communicator] += c.bytes
    opened = (c.communicator for c in ring if opens(opening, c) and c.communicator in reduced)
    most = next(opened, None)
    if most is None and reduced:
        most = reduced.most_common(1)[0][0]
    return [c for c in ring if c.communicator == most]


def _differs(
    plan: _Sequence, stated: Stated, own: Sequence[Collective], state: _State, number: int
) -> Found:
    """At the first collective behind the last one that is as planned."""
    seen = own[state.own[-state.waiting] if state.waiting else number]
    planned, iteration = plan[state.at], plan.iteration(state.at)
    when = "the start-up" if iteration is None else f"iteration {iteration}"
    blocks = stated.ranks if planned.kind is Kind.ALL_GATHER else 1
    sentence = (
        f"planned in {when}: {planned.what}, {planned.kind} of {planned.work_bytes * blocks:,} "
        f"bytes; collective #{seen.index} is {seen.kind} of {seen.bytes:,} bytes: "
        f"{unlike(planned, stated, seen) or 'too much comes before the next planned one'}"
    )
    kept = state.own[: len(state.own) - state.waiting]
    return _found(plan, own, _State(state.began, state.at, kept), sentence, seen.index)


def _found(
    plan: _Sequence,
    own: Sequence[Collective],
    state: _State,
    difference: str = "",
    index: int | None = None,
) -> Found:
    beside = Counter(plan.named(own[n]) for n in state.own)
    last = plan.iteration(state.at) or 0
    return Found(
        held=state.held,
        iterations=last - (plan.iteration(state.began) or 0),
        from_start=state.began == 0,
        beside=tuple(beside.items()),
        difference=difference,
        index=index,
    )
