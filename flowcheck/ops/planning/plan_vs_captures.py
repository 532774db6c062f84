"""Compares planned collectives with those in captures and names the first difference
(`flowcheck plan --check`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from flowcheck.findings.catalog.plan_figures import (
    DIFFERS_IN_ITERATION,
    DIFFERS_IN_START_UP,
    NO_ALL_REDUCE,
    OTHER_CHANNELS,
    OTHER_KIND,
    OTHER_NUMBERS,
    OTHER_PROTOCOL,
    OTHER_RANKS,
    OTHER_SIZE,
    OWN_COLLECTIVE,
    OWN_COLLECTIVE_AS_MAP,
    TOO_MUCH_BETWEEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.planning.ddp_collectives import DdpTraffic, PlannedCollective
from flowcheck.ops.planning.wire_traffic import MirroredPort, traffic_of_collective
from flowcheck.wire.collectives.collective_role import CollectiveRole
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    Protocol,
    round_up,
)
from flowcheck.wire.learn import Collective
from flowcheck.wire.training_job.learned_job import MAP_BYTES


class ExpectedWire(msgspec.Struct, frozen=True, kw_only=True):
    """What the captures are compared with beyond the sequence of collectives."""

    ranks: int
    protocol: Protocol | None = None
    wire: MirroredPort | None = None
    """The mirrored port where --channels was given: then the number of channels of each collective
    is compared as well. None: it is not."""


def difference_from_plan(
    planned: PlannedCollective, stated: ExpectedWire, seen: Collective
) -> Finding | None:
    """The first difference between the planned collective and the one in the capture. None: they
    agree in kind, ranks, protocol, size, channels and in the integers that they carry."""
    if not same_kind(seen, planned):
        return OTHER_KIND()
    if seen.ranks != stated.ranks:
        return OTHER_RANKS(ranks=seen.ranks, planned=stated.ranks)
    if stated.protocol is not None and seen.protocol is not stated.protocol:
        return OTHER_PROTOCOL(protocol=seen.protocol, planned=stated.protocol)
    grain = GRAIN_BYTES[seen.protocol]
    blocks = stated.ranks if planned.kind.is_gather else 1
    if round_up(seen.bytes // blocks, grain) != round_up(planned.work_bytes, grain):
        return OTHER_SIZE()
    if stated.wire is not None:
        wire = msgspec.structs.replace(stated.wire, protocol=seen.protocol)
        due = traffic_of_collective(planned, wire).channels
        if seen.channels != due:
            return OTHER_CHANNELS(channels=seen.channels, planned=due)
    told = integers_in(planned, seen)
    return None if told == planned.values else _first_unlike(planned.values, told)


def integers_in(planned: PlannedCollective, seen: Collective) -> tuple[int, ...]:
    """The integers that the captured collective carries. Returns the planned ones where its bytes
    were not all captured."""
    size = planned.work_bytes
    whole = not seen.conflicts and not any(start < size for start, _ in seen.missing)
    if not planned.values or not whole or len(seen.result) < size:
        return planned.values
    kind = "<i8" if planned.value_bytes == 8 else "<i4"
    return tuple(seen.result[:size].view(kind).tolist())


def _first_unlike(planned: Sequence[int], told: Sequence[int]) -> Finding:
    at = next(n for n, pair in enumerate(zip(planned, told, strict=True)) if pair[0] != pair[1])
    return OTHER_NUMBERS(number=told[at], place=at, planned=planned[at])


def same_kind(seen: Collective, planned: PlannedCollective) -> bool:
    """The captured collective is of the planned kind. torch's nccl2 gathers by broadcasts."""
    gathers = {str(kind) for kind in CollectiveKind if kind.is_gather}
    alike = gathers if planned.kind.is_gather else {str(planned.kind)}
    return seen.kind in alike


def may_open_job(planned: PlannedCollective, seen: Collective) -> bool:
    """Whether `seen` can be the first collective of a job: an all-gather of one integer per rank,
    whatever its value and the number of ranks."""
    grain = GRAIN_BYTES[seen.protocol]
    block = round_up(seen.bytes // seen.ranks, grain)
    return same_kind(seen, planned) and block == round_up(planned.work_bytes, grain)


TAIL_BYTES_MAX = 64
"""Bytes that may follow the last complete iteration: a barrier or a metric at the end of a
capture. A choice: a larger value would hide an incomplete iteration that differs."""
CERTAIN_BUCKET_BYTES = 4096
"""Buckets of at least this size (bytes) are never taken for a metric of the script. A choice: a
lower value could match a metric, a higher one leaves fewer buckets to recognise."""
ALTERNATIVES_MAX = 64
"""Alternatives kept at each collective while it is open which ones the script issued itself. A
choice: more cost time, fewer may drop the right one."""


_matching = attrgetter("matching")


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the comparison of a plan with captures."""

    matching: int = msgspec.field(name="held")
    """Number of captured collectives that agree with the plan."""
    iterations: int
    """Number of complete iterations among them."""
    from_start: bool
    """True: the captures contain the start-up, and it was compared. False: they begin later."""
    own_collectives: tuple[tuple[Finding, int], ...] = msgspec.field(name="beside")
    """(what it is, how often it came) of the collectives that the plan does not contain: those
    that the script issued itself."""
    difference: Finding | None = None
    """The first collective that differs from the plan; None: no difference."""
    index: int | None = None
    """Index of that collective in the captures."""
    order_told: bool = False
    """True: the order of gradients was read from the captures, since the plan did not know it."""


class _PartialMatch(msgspec.Struct, frozen=True):
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
    def matching(self) -> int:
        return self.at - self.began


class _PlanSequence:
    """The plan as one endless list."""

    def __init__(self, traffic: DdpTraffic) -> None:
        self.start = len(traffic.start_up)
        self._once = [*traffic.start_up, *(one for part in traffic.first for one in part)]
        self._each = traffic.each
        self.begins = [self.start]
        for part in traffic.first:
            self.begins.append(self.begins[-1] + len(part))
        self.period = len(self._each)
        every = {one.work_bytes: one for one in (*self._once, *self._each) if _reduces(one)}
        used = CollectiveRole.USED_PARAMETERS
        maps = any(one.role is used for one in self._once + list(self._each))
        self._map_bytes = 0 if maps else MAP_BYTES * traffic.start_up[0].values[0]
        self._large = [one for size, one in every.items() if size >= CERTAIN_BUCKET_BYTES]
        self.round_bytes = sum(one.work_bytes for one in self._each)

    def __getitem__(self, at: int) -> PlannedCollective:
        once = len(self._once)
        return self._once[at] if at < once else self._each[(at - once) % self.period]

    def holds_as_large(self, stated: ExpectedWire, seen: Collective) -> bool:
        """It would do for a bucket: once more than planned."""
        return any(difference_from_plan(one, stated, seen) is None for one in self._large)

    def named(self, seen: Collective) -> Finding:
        """A collective that is in no plan, with what it may be a sign of."""
        size = round_up(self._map_bytes, GRAIN_BYTES[seen.protocol])
        alike = seen.kind == CollectiveKind.ALL_REDUCE and seen.bytes == size
        alike = alike and self._map_bytes > TAIL_BYTES_MAX // 4
        made = OWN_COLLECTIVE_AS_MAP if alike else OWN_COLLECTIVE
        return made(kind=seen.kind, bytes=seen.bytes)

    def iteration(self, at: int) -> int | None:
        """Which one the place is in; None: the start-up."""
        if at < self.start:
            return None
        last = len(self.begins) - 1
        if at >= self.begins[last]:
            return last + (at - self.begins[last]) // self.period
        return max(n for n, begin in enumerate(self.begins) if begin <= at)


def check(
    traffic: DdpTraffic, stated: ExpectedWire, collectives: Sequence[Collective]
) -> CheckResult:
    """Compares the collectives of captures with the plan.

    collectives: those of all communicators, in order. The communicator that starts with the plan's
    first collective is compared; if there is none, the one that all-reduces the most bytes.

    The start-up must match without anything between. Later, a collective that is not the next one
    of the plan counts as the script's own, provided that the next planned one comes before one
    iteration's bytes have passed.
    """
    plan = _PlanSequence(traffic)
    own = _communicator(plan[0], collectives)
    if not own:
        return CheckResult(
            matching=0,
            iterations=0,
            from_start=False,
            own_collectives=(),
            difference=NO_ALL_REDUCE(),
        )
    first = next((n for n, c in enumerate(own) if may_open_job(plan[0], c)), None)
    begins = [0]
    if first is None:
        begins = [*plan.begins, *range(plan.begins[-1], plan.begins[-1] + plan.period)]
    before = tuple(range(first or 0))
    states = [_PartialMatch(began=at, at=at, own=before) for at in dict.fromkeys(begins)]
    return _followed(plan, stated, own, states, first or 0)


def _reduces(planned: PlannedCollective) -> bool:
    return planned.kind is CollectiveKind.ALL_REDUCE


def captured_gradient_order(
    traffic: DdpTraffic, collectives: Sequence[Collective]
) -> tuple[int, ...] | None:
    """The order in which DDP's own bucket plan in the captures lists the parameters (indices).
    None: the captures do not contain the complete bucket plan."""
    order = CollectiveRole.BUCKET_ORDER
    due = next((p for part in traffic.first for p in part if p.role is order), None)
    count = 0 if due is None else len(due.values) - 1
    for seen in collectives:
        if due is not None and same_kind(seen, due) and seen.bytes >= due.work_bytes:
            values = integers_in(due, seen)
            if values is not due.values and sorted(values[:-1]) == list(range(count)):
                return values[:-1]
    return None


def _followed(
    plan: _PlanSequence,
    stated: ExpectedWire,
    own: Sequence[Collective],
    states: list[_PartialMatch],
    first: int,
) -> CheckResult:
    for number, seen in enumerate(own[first:], first):
        after: dict[int, _PartialMatch] = {}
        for state in states:
            for following in _steps(plan, stated, state, number, seen):
                best = after.setdefault(following.at, following)
                if following.matching > best.matching:
                    after[following.at] = following
        if not after:
            return _differs(plan, stated, own, max(states, key=_matching), number)
        states = sorted(after.values(), key=_matching, reverse=True)[:ALTERNATIVES_MAX]
    settled = [state for state in states if state.waiting_bytes <= TAIL_BYTES_MAX]
    if not settled:
        return _differs(plan, stated, own, max(states, key=_matching), len(own))
    return _found(plan, own, max(settled, key=_matching))


def _steps(
    plan: _PlanSequence, stated: ExpectedWire, state: _PartialMatch, number: int, seen: Collective
) -> list[_PartialMatch]:
    found = []
    if difference_from_plan(plan[state.at], stated, seen) is None:
        found.append(_PartialMatch(state.began, state.at + 1, state.own))
    # Lines and groups are filled up: so much it holds at least.
    size = state.waiting_bytes + max(1, seen.bytes - GRAIN_BYTES[seen.protocol] + 1)
    room = size < plan.round_bytes or size <= TAIL_BYTES_MAX
    if state.at >= plan.start and room and not plan.holds_as_large(stated, seen):
        own = (*state.own, number)
        found.append(_PartialMatch(state.began, state.at, own, state.waiting + 1, size))
    return found


def _communicator(
    opening: PlannedCollective, collectives: Sequence[Collective]
) -> list[Collective]:
    ring = [c for c in collectives if c.kind in set(map(str, CollectiveKind))]
    reduced: Counter[int] = Counter()
    for c in ring:
        if c.kind == CollectiveKind.ALL_REDUCE:
            reduced[c.communicator] += c.bytes
    opened = (
        c.communicator for c in ring if may_open_job(opening, c) and c.communicator in reduced
    )
    most = next(opened, None)
    if most is None and reduced:
        most = reduced.most_common(1)[0][0]
    return [c for c in ring if c.communicator == most]


def _differs(
    plan: _PlanSequence,
    stated: ExpectedWire,
    own: Sequence[Collective],
    state: _PartialMatch,
    number: int,
) -> CheckResult:
    """At the first collective behind the last one that is as planned."""
    seen = own[state.own[-state.waiting] if state.waiting else number]
    planned, iteration = plan[state.at], plan.iteration(state.at)
    when = {} if iteration is None else {"iteration": iteration}
    blocks = stated.ranks if planned.kind.is_gather else 1
    difference = (DIFFERS_IN_ITERATION if when else DIFFERS_IN_START_UP)(
        **when,
        what=planned.what,
        role=planned.role,
        bucket=planned.bucket,
        planned_kind=planned.kind,
        planned_bytes=planned.work_bytes * blocks,
        index=seen.index,
        kind=seen.kind,
        bytes=seen.bytes,
        why=difference_from_plan(planned, stated, seen) or TOO_MUCH_BETWEEN(),
    )
    kept = state.own[: len(state.own) - state.waiting]
    return _found(plan, own, _PartialMatch(state.began, state.at, kept), difference, seen.index)


def _found(
    plan: _PlanSequence,
    own: Sequence[Collective],
    state: _PartialMatch,
    difference: Finding | None = None,
    index: int | None = None,
) -> CheckResult:
    own_collectives = Counter(plan.named(own[n]) for n in state.own)
    last = plan.iteration(state.at) or 0
    return CheckResult(
        matching=state.matching,
        iterations=last - (plan.iteration(state.began) or 0),
        from_start=state.began == 0,
        own_collectives=tuple(own_collectives.items()),
        difference=difference,
        index=index,
    )
