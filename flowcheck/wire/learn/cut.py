"""Cut the sends of one communicator into collectives: a search that the sizes steer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol

from flowcheck.wire.learn.candidates import Channels, Op, Positions, generated, schedule_of
from flowcheck.wire.learn.rings import Edge, Ring
from flowcheck.wire.learn.streams import Stream
from flowcheck.wire.schedule import Schedule, Send
from flowcheck.wire.terms import Kind, Rule

HASTY, THOROUGH = (50, 2), (2_000, 30)
"""Guesses tried at most for one ring: so many, and so many for each send seen. A stream that
fits none of them is left unread from there on."""
MOST_ASSIGNMENTS = 24
COST = {Kind.ALL_REDUCE: 1.0, Kind.ALL_GATHER: 2.0, Kind.BROADCAST: 2.0, Kind.REDUCE_SCATTER: 3.0}
"""How much a guess from sizes alone needs believing; what was expected costs nothing."""
REPEAT_COST = 0.3
UNSEEN_COST = 0.5
"""For a collective of which not one send was seen."""
OPEN_COST = 2.0
"""For a collective that may come at this point, of any size."""
CUT_OFF_COST = 1.0
"""For each send that a reading puts after the end of what was captured."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One collective found: where it starts on every stream, and the channel of each stream."""

    op: Op
    starts: Positions
    channels: Channels
    schedules: tuple[Schedule, ...]
    rules: tuple[Rule, ...]
    matched: int
    lost: int
    """Sends of it that were not seen at all."""
    doubt: str = ""
    """Why another reading of the same sends is as good; empty: none is."""

    def sends(self, ring: Ring) -> Iterator[tuple[Stream, int, Send]]:
        """(stream, number, what it carries) of every send on every mirrored connection."""
        for edge, at, names, schedule in zip(
            ring.edges, self.starts, self.channels, self.schedules, strict=True
        ):
            for stream, number, channel in zip(edge.streams, at, names, strict=True):
                for i, send in enumerate(schedule[channel] if channel is not None else ()):
                    yield stream, number + i, send


@dataclass(frozen=True, slots=True)
class State:
    """Where the search stands."""

    positions: Positions
    channels: Channels
    rules: tuple[Rule, ...]


class Expect(Protocol):
    """What the trainer's habits let us expect."""

    def __call__(self, ring: Ring, path: Sequence[Cut], state: State) -> Sequence[Op]:
        """Collectives likely after `path`, most likely first."""

    def accepts(self, ring: Ring, path: Sequence[Cut], cut: Cut) -> bool:
        """False if what was seen of `cut` contradicts the name it was expected by."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The best reading of one ring."""

    ring: Ring
    found: tuple[Cut, ...]
    state: State
    unread: int
    cost: float


def cut_stream(
    ring: Ring,
    expect: Expect,
    *,
    effort: tuple[int, int] = THOROUGH,
    start: Positions | None = None,
    known: Sequence[Op] = (),
) -> Cuts:
    """Collectives from `start` on (default: send 0 of every stream). `known`: collectives found
    elsewhere in the stream. The search goes depth first, backs up where nothing fits, and
    keeps the reading that left the fewest sends unread."""
    state = State(
        start or tuple(tuple(0 for _ in e.streams) for e in ring.edges),
        tuple(tuple(None for _ in e.streams) for e in ring.edges),
        ring.rules,
    )
    budget = effort[0] + effort[1] * sum(len(s.sends) for e in ring.edges for s in e.streams)
    best = Cuts(ring, (), state, unread_sends(ring, state.positions), 0.0)
    path: list[Cut] = []
    stack = [_successors(ring, state, path, expect, known)]
    failed: set[tuple[Positions, Channels, tuple[Rule, ...]]] = set()
    while stack and budget > 0:
        budget -= 1
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if path:
                path.pop()
            continue
        state, cut = step
        key = (state.positions, state.channels, state.rules)
        if key in failed or not expect.accepts(ring, path, cut):
            continue
        failed.add(key)
        path.append(cut)
        unread = unread_sends(ring, state.positions)
        if unread < best.unread:
            best = Cuts(ring, tuple(path), state, unread, _cost(ring, path))
        if unread == 0:
            break
        stack.append(_successors(ring, state, path, expect, known))
    return best


def unread_sends(ring: Ring, positions: Positions) -> int:
    """Sends seen that lie at or after the positions."""
    return sum(
        sum(number >= n for number in stream.sends)
        for edge, at in zip(ring.edges, positions, strict=True)
        for stream, n in zip(edge.streams, at, strict=True)
        if stream.stop > n
    )


def _cost(ring: Ring, path: Sequence[Cut]) -> float:
    cost = CUT_OFF_COST * sum(_beyond_end(ring, cut) for cut in path)
    before: set[Op] = set()
    for cut in path:
        if not cut.matched:
            cost += UNSEEN_COST
        elif not cut.op.licensed:
            repeats = cut.op in before and cut.op.kind is Kind.ALL_REDUCE
            cost += REPEAT_COST if repeats else COST[cut.op.kind]
        elif cut.op.open_size:
            cost += REPEAT_COST if cut.op in before else OPEN_COST
        before.add(cut.op)
    return cost


def _beyond_end(ring: Ring, cut: Cut) -> int:
    """Sends of it that would come after the last one seen on their connection."""
    if not cut.lost:
        return 0
    return sum(number >= stream.stop for stream, number, _ in cut.sends(ring))


def _successors(
    ring: Ring, state: State, path: list[Cut], expect: Expect, known: Sequence[Op]
) -> Iterator[tuple[State, Cut]]:
    tried: set[tuple[Kind, int]] = set()
    expected = expect(ring, path, state)
    repeats = list(dict.fromkeys(c.op for c in reversed(path) if c.op.kind is Kind.ALL_REDUCE))[:8]
    # What follows is often what followed the same collective last time.
    followed = [b.op for a, b in pairwise(path) if a.op == path[-1].op]
    likely = [*expected, *followed[-1:], *repeats, *known]
    for op in likely:
        if (op.kind, op.work_bytes) not in tried:
            tried.add((op.kind, op.work_bytes))
            yield from apply(ring, state, op, may_be_unseen=not op.open_size)
    for op in generated(ring, state.positions, state.channels):
        if (op.kind, op.work_bytes) not in tried:
            tried.add((op.kind, op.work_bytes))
            yield from apply(ring, state, op)


def apply(
    ring: Ring, state: State, op: Op, *, may_be_unseen: bool = False
) -> Iterator[tuple[State, Cut]]:
    """Every way `op` fits at `state`; nothing if a size contradicts it, or if no send of it was
    seen, unless it may lie in a gap all of it."""
    alike: dict[tuple[Schedule, ...], list[Rule]] = {}
    for rule in state.rules:
        schedules = tuple(
            schedule_of(op, rule, ring.ranks, ring.channels, e.sender, ring.extra_sends)
            for e in ring.edges
        )
        alike.setdefault(schedules, []).append(rule)
    for schedules, rules in alike.items():
        for names in _assignments(ring, state, schedules):
            fit = _fit(ring, state, schedules, names)
            if fit is None:
                continue
            cut = Cut(op, state.positions, names, schedules, tuple(rules), *fit)
            if not cut.matched and not (may_be_unseen and cut.lost and not _beyond_end(ring, cut)):
                continue
            positions = tuple(
                tuple(
                    n + (len(schedule[c]) if c is not None else 0)
                    for n, c in zip(at, of, strict=True)
                )
                for at, of, schedule in zip(state.positions, names, schedules, strict=True)
            )
            yield State(positions, names, tuple(rules)), cut


def _fit(
    ring: Ring, state: State, schedules: Sequence[Schedule], names: Channels
) -> tuple[int, int] | None:
    """(sends seen that agree, sends not seen); None if a seen one disagrees."""
    matched = lost = 0
    for edge, at, of, schedule in zip(ring.edges, state.positions, names, schedules, strict=True):
        for stream, number, channel in zip(edge.streams, at, of, strict=True):
            if channel is None:
                continue
            agree = agreeing(stream, number, schedule[channel])
            if agree is None:
                return None
            matched += agree
            lost += len(schedule[channel]) - agree
    return matched, lost


def agreeing(stream: Stream, number: int, sends: Sequence[Send]) -> int | None:
    """How many of `sends`, expected from `number` on, were seen with the right size; None if
    one has another size."""
    agree = 0
    for i, send in enumerate(sends):
        seen = stream.sends.get(number + i)
        if seen is None:
            continue
        if seen.wire_bytes != send.wire_bytes:
            return None
        agree += 1
    return agree


def _assignments(ring: Ring, state: State, schedules: Sequence[Schedule]) -> Iterator[Channels]:
    """Channels for streams that have none yet and now carry something; QP order first."""
    options = [
        list(_edge_assignments(edge, at, names, schedule))
        for edge, at, names, schedule in zip(
            ring.edges, state.positions, state.channels, schedules, strict=True
        )
    ]
    if not all(options):
        return
    # Edges are independent: the first choice of all, then one edge at a time.
    first = tuple(option[0] for option in options)
    yield first
    for i, option in enumerate(options):
        for other in option[1:]:
            yield (*first[:i], other, *first[i + 1 :])


def _edge_assignments(
    edge: Edge, at: Sequence[int], names: Sequence[int | None], schedule: Schedule
) -> Iterator[tuple[int | None, ...]]:
    wanted = [c for c, sends in enumerate(schedule) if sends and c not in names]
    missing = len(schedule) - len(edge.streams)
    yield from islice(_choose(edge, at, tuple(names), schedule, wanted, missing), MOST_ASSIGNMENTS)


def _choose(
    edge: Edge,
    at: Sequence[int],
    names: tuple[int | None, ...],
    schedule: Schedule,
    wanted: Sequence[int],
    missing: int,
) -> Iterator[tuple[int | None, ...]]:
    if not wanted:
        yield names
        return
    channel, rest = wanted[0], wanted[1:]
    for i, stream in enumerate(edge.streams):
        if names[i] is None and agreeing(stream, at[i], schedule[channel]) is not None:
            taken = (*names[:i], channel, *names[i + 1 :])
            yield from _choose(edge, at, taken, schedule, rest, missing)
    if missing > 0:
        yield from _choose(edge, at, names, schedule, rest, missing - 1)
