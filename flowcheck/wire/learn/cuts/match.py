"""Lay one collective over the sends of a ring: does every size seen agree?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.collectives.send_table import Schedule, Send, SendTable
from flowcheck.wire.learn.cuts.candidates import Channels, Op, Positions, schedules_of
from flowcheck.wire.learn.cuts.purse import Purse
from flowcheck.wire.learn.cuts.sounding import writers
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import (
    ANY_PROTOCOL,
    NOT_SEEN,
    PROTOCOLS,
    Stream,
)

MOST_ASSIGNMENTS = 24
"""Orders of channels tried on one edge."""
MOST_TRIES = 1_000
"""Channels given to a connection while one edge's are looked for: where some have no connection,
the ways grow with every channel."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One collective found: where it starts on every stream, and the channel of each stream."""

    op: Op
    starts: Positions
    channels: Channels
    schedules: tuple[Schedule, ...]
    rules: tuple[NcclEra, ...]
    matched: int
    lost: int
    """Sends of it that were not seen at all."""
    doubt: Finding | None = None
    """Why another reading of the same sends is as good; None: no other is."""

    def sends(self, ring: Ring) -> Iterator[tuple[Stream, int, Send]]:
        """(stream, number, what it carries) of every send on every mirrored connection."""
        for edge, at, names, schedule in zip(
            ring.edges, self.starts, self.channels, self.schedules, strict=True
        ):
            for stream, number, channel in zip(edge.streams, at, names, strict=True):
                for i, send in enumerate(schedule[channel] if channel is not None else ()):
                    yield stream, number + i, send

    def rows(self, ring: Ring) -> Iterator[tuple[Stream, int, SendTable]]:
        """(stream, number of its first one, what they carry) of the sends of every mirrored
        connection."""
        for edge, at, names, schedule in zip(
            ring.edges, self.starts, self.channels, self.schedules, strict=True
        ):
            for stream, number, channel in zip(edge.streams, at, names, strict=True):
                if channel is not None and len(schedule[channel]):
                    yield stream, number, schedule[channel]

    def times(self, ring: Ring) -> list[int]:
        """When each of its sends that were seen began, in nanoseconds."""
        found: list[int] = []
        for stream, number, sends in self.rows(ring):
            columns = stream.columns
            own, _ = columns.span(number, len(sends))
            seen = columns.wire_bytes[own] != NOT_SEEN
            found += columns.times_ns[own][seen].tolist()
        return found


@dataclass(frozen=True, slots=True)
class State:
    """Where the search stands."""

    positions: Positions
    channels: Channels
    rules: tuple[NcclEra, ...]
    writers: Positions = ()
    """[edge][stream] bits of the ring indices that may write there, where that is to be found."""


def apply(
    ring: Ring, state: State, op: Op, purse: Purse | None = None, *, may_be_unseen: bool = False
) -> Iterator[tuple[State, Cut]]:
    """Every way `op` fits at `state`; nothing if a size contradicts it, or if no send of it was
    seen, unless it may lie in a gap all of it. Eras that only place its bytes elsewhere are one
    way (`settled`), unless what it holds is looked at."""
    alike: dict[object, tuple[tuple[Schedule, ...], list[NcclEra]]] = {}
    for rule in state.rules:
        schedules = schedules_of(op, rule, ring)
        name = _places(schedules) if op.meaning else _sizes(schedules)
        alike.setdefault(name, (schedules, []))[1].append(rule)
        if purse is not None:
            purse.lays(sum(len(sends) for schedule in schedules for sends in schedule))
    for schedules, rules in alike.values():
        for names in _assignments(ring, state, schedules, op):
            fit = _fit(ring, state, schedules, names, op)
            if fit is None:
                continue
            cut = Cut(op, state.positions, names, schedules, tuple(rules), *fit[:2])
            if not cut.matched and not (may_be_unseen and cut.lost and not beyond_end(ring, cut)):
                continue
            positions = tuple(
                tuple(
                    n + (len(schedule[c]) if c is not None else 0)
                    for n, c in zip(at, of, strict=True)
                )
                for at, of, schedule in zip(state.positions, names, schedules, strict=True)
            )
            yield State(positions, names, tuple(rules), fit[2]), cut


def settled(ring: Ring, cut: Cut, rules: Sequence[NcclEra]) -> Cut:
    """`cut` with its bytes where the first of these eras has them."""
    schedules = schedules_of(cut.op, rules[0], ring)
    places = _places(schedules)
    same = tuple(r for r in cut.rules if _places(schedules_of(cut.op, r, ring)) == places)
    return replace(cut, schedules=schedules, rules=same)


def _places(schedules: Sequence[Schedule]) -> tuple[object, ...]:
    """What lies where."""
    return tuple(tuple(channel.key for channel in schedule) for schedule in schedules)


def _sizes(schedules: Sequence[Schedule]) -> tuple[tuple[bytes, ...], ...]:
    return tuple(
        tuple(channel.wire_bytes.tobytes() for channel in schedule) for schedule in schedules
    )


def _fit(
    ring: Ring, state: State, schedules: Sequence[Schedule], names: Channels, op: Op
) -> tuple[int, int, Positions] | None:
    """(sends seen that agree, sends not seen, who may write by now); None if a seen one
    disagrees."""
    matched = lost = 0
    left = [list(of) for of in state.writers]
    for e, (edge, at, of, schedule) in enumerate(
        zip(ring.edges, state.positions, names, schedules, strict=True)
    ):
        for i, (stream, number, channel) in enumerate(zip(edge.streams, at, of, strict=True)):
            if channel is None:
                continue
            sends = schedule[channel]
            if left and edge.receiver is None and not op.tree:
                bits, agree = writers(stream, number, sends, op.kind, op.protocol, ring.ranks)
                left[e][i] &= bits
                if not left[e][i]:
                    return None
            elif (same := agreeing(stream, number, sends, op.protocol)) is None:
                return None
            else:
                agree = same
            matched += agree
            lost += len(sends) - agree
    return matched, lost, tuple(map(tuple, left))


def agreeing(stream: Stream, number: int, sends: SendTable, protocol: Protocol) -> int | None:
    """How many of `sends`, expected from `number` on, were seen with the right size; None if
    one has another size, or is of another protocol."""
    if not len(sends):
        return 0
    first = stream.sends.get(number)
    if first is not None and (
        first.wire_bytes != sends.wire_bytes[0] or first.protocol not in (None, protocol)
    ):
        return None  # most guesses fail at once
    columns = stream.columns
    own, theirs = columns.span(number, len(sends))
    sizes, protocols = columns.wire_bytes[own], columns.protocols[own]
    seen = sizes != NOT_SEEN
    if (seen & (sizes != sends.wire_bytes[theirs])).any():
        return None
    if (seen & (protocols != ANY_PROTOCOL) & (protocols != PROTOCOLS.index(protocol))).any():
        return None
    return int(np.count_nonzero(seen))


def _assignments(
    ring: Ring, state: State, schedules: Sequence[Schedule], op: Op
) -> Iterator[Channels]:
    """Channels for streams that have none yet and now carry something; QP order first."""
    options = [
        list(_edge_assignments(ring, edge, at, names, schedule, op))
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
    ring: Ring,
    edge: Edge,
    at: Sequence[int],
    names: Sequence[int | None],
    schedule: Schedule,
    op: Op,
) -> Iterator[tuple[int | None, ...]]:
    wanted = [c for c, sends in enumerate(schedule) if sends and c not in names]
    if not wanted:
        yield tuple(names)
        return
    missing = len(schedule) - len(edge.streams)

    known: dict[tuple[int, int], bool] = {}

    def fits(i: int, channel: int) -> bool:
        if (i, channel) not in known:
            known[i, channel] = may_be(i, channel)
        return known[i, channel]

    def may_be(i: int, channel: int) -> bool:
        stream, sends = edge.streams[i], schedule[channel]
        if ring.sounding and edge.receiver is None and not op.tree:
            return writers(stream, at[i], sends, op.kind, op.protocol, ring.ranks)[0] > 0
        return agreeing(stream, at[i], sends, op.protocol) is not None

    tries = iter(range(MOST_TRIES))
    ways = _choose(tuple(names), wanted, missing, fits, tries)
    yield from islice(ways, MOST_ASSIGNMENTS)


def _choose(
    names: tuple[int | None, ...],
    wanted: Sequence[int],
    missing: int,
    fits: Callable[[int, int], bool],
    tries: Iterator[int],
) -> Iterator[tuple[int | None, ...]]:
    if not wanted:
        yield names
        return
    if next(tries, None) is None:
        return
    channel, rest = wanted[0], wanted[1:]
    for i, name in enumerate(names):
        if name is None and fits(i, channel):
            taken = (*names[:i], channel, *names[i + 1 :])
            yield from _choose(taken, rest, missing, fits, tries)
    if missing > 0:
        yield from _choose(names, rest, missing - 1, fits, tries)


def beyond_end(ring: Ring, cut: Cut) -> int:
    """Sends of it that would come after the last one seen on their connection."""
    if not cut.lost:
        return 0
    return sum(
        max(0, number + len(sends) - max(number, stream.stop))
        for stream, number, sends in cut.rows(ring)
    )
