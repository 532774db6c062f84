"""Lay one collective over the sends of a ring: does every size seen agree?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.collectives.send_table import (
    SIZE_COLUMN,
    Schedule,
    Send,
    SendTable,
    same_sizes,
)
from flowcheck.wire.learn.cuts.candidates import Channels, Op, Positions, schedules_of
from flowcheck.wire.learn.cuts.purse import Purse
from flowcheck.wire.learn.cuts.sounding import writers
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import (
    ANY_CODE,
    CODE_OF,
    NO_SIZE,
    NOT_SEEN,
    PROTOCOLS,
    Stream,
)

_CODES = {protocol: bytes((CODE_OF[protocol], ANY_CODE)) for protocol in PROTOCOLS}
"""Codes, in columns, of what may be of a protocol."""
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

    def as_op(self, op: Op, ring: Ring) -> Cut:
        """The same sends as another collective, of which whoever asks knows that it sends as
        much."""
        return replace(self, op=op, schedules=schedules_of(op, self.rules[0], ring))

    def reread(self, op: Op, ring: Ring) -> Cut | None:
        """The same sends as another collective; None if that would be others on the wire."""
        other = self.as_op(op, ring)
        return other if same_sizes(other.schedules, self.schedules) else None

    def sends(self, ring: Ring) -> Iterator[tuple[Stream, int, Send]]:
        """(stream, number, what it carries) of every send on every mirrored connection."""
        for stream, number, table in self.rows(ring):
            for i, send in enumerate(table):
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
        laid = _Laid(ring, state.positions, schedules, op)
        for names in _assignments(ring, state, schedules, laid):
            fit = _fit(ring, state, schedules, names, laid)
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
    return tuple(tuple(channel.sizes for channel in schedule) for schedule in schedules)


class _Laid:
    """What connections carried, with the sends of one collective laid over it. Orders of channels
    have most in common: each connection is compared with each channel once."""

    def __init__(self, ring: Ring, at: Positions, schedules: Sequence[Schedule], op: Op) -> None:
        self._ring, self._at, self._schedules, self._op = ring, at, schedules, op
        self._agreeing: dict[tuple[int, int, int], int | None] = {}
        self._writers: dict[tuple[int, int, int], tuple[int, int]] = {}

    def agreeing(self, edge: int, stream: int, channel: int) -> int | None:
        """As the function of that name."""
        name = edge, stream, channel
        if name not in self._agreeing:
            self._agreeing[name] = agreeing(*self._there(*name), self._op.protocol)
        return self._agreeing[name]

    def sounded(self, edge: int) -> bool:
        """It is to be found who writes there."""
        return self._ring.edges[edge].receiver is None and not self._op.tree

    def writers(self, edge: int, stream: int, channel: int) -> tuple[int, int]:
        """As the function of that name."""
        name = edge, stream, channel
        if name not in self._writers:
            kind, protocol = self._op.kind, self._op.protocol
            self._writers[name] = writers(*self._there(*name), kind, protocol, self._ring.ranks)
        return self._writers[name]

    def _there(self, edge: int, stream: int, channel: int) -> tuple[Stream, int, SendTable]:
        """(connection, number of its next send, what it would carry as this channel)."""
        own, at = self._ring.edges[edge].streams[stream], self._at[edge][stream]
        return own, at, self._schedules[edge][channel]


def _fit(
    ring: Ring, state: State, schedules: Sequence[Schedule], names: Channels, laid: _Laid
) -> tuple[int, int, Positions] | None:
    """(sends seen that agree, sends not seen, who may write by now); None if a seen one
    disagrees."""
    matched = lost = 0
    left = [list(of) for of in state.writers]
    for e, (of, schedule) in enumerate(zip(names, schedules, strict=True)):
        for i, channel in enumerate(of):
            if channel is None:
                continue
            if left and laid.sounded(e):
                bits, agree = laid.writers(e, i, channel)
                left[e][i] &= bits
                if not left[e][i]:
                    return None
            elif (same := laid.agreeing(e, i, channel)) is None:
                return None
            else:
                agree = same
            matched += agree
            lost += len(schedule[channel]) - agree
    return matched, lost, tuple(map(tuple, left))


def agreeing(stream: Stream, number: int, sends: SendTable, protocol: Protocol) -> int | None:
    """How many of `sends`, expected from `number` on, were seen with the right size; None if
    one has another size, or is of another protocol. A search asks millions of times: columns are
    compared as bytes."""
    columns, due = stream.columns, sends.sizes
    begin = number - columns.first
    if begin < 0:
        due, begin = due[-begin * SIZE_COLUMN :], 0
    sizes = columns.sizes[begin * SIZE_COLUMN : begin * SIZE_COLUMN + len(due)]
    due = due[: len(sizes)]
    count = agree = len(sizes) // SIZE_COLUMN
    if sizes != due:
        if NO_SIZE not in sizes:
            return None
        own = np.frombuffer(sizes, np.int64)
        seen = own != NOT_SEEN
        if (own[seen] != np.frombuffer(due, np.int64)[seen]).any():
            return None
        agree = int(np.count_nonzero(seen))
    others = columns.protocol_codes[begin : begin + count].strip(_CODES[protocol])
    return None if others else agree


def _assignments(
    ring: Ring, state: State, schedules: Sequence[Schedule], laid: _Laid
) -> Iterator[Channels]:
    """Channels for streams that have none yet and now carry something; QP order first."""
    options = [
        list(_edge_assignments(ring, e, names, schedule, laid))
        for e, (names, schedule) in enumerate(zip(state.channels, schedules, strict=True))
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
    ring: Ring, edge: int, names: Sequence[int | None], schedule: Schedule, laid: _Laid
) -> Iterator[tuple[int | None, ...]]:
    wanted = [c for c, sends in enumerate(schedule) if sends and c not in names]
    if not wanted:
        yield tuple(names)
        return
    missing = len(schedule) - len(ring.edges[edge].streams)
    sounded = ring.sounding and laid.sounded(edge)

    known: dict[int, tuple[int, ...]] = {}

    def fitting(channel: int) -> tuple[int, ...]:
        """Streams without a channel that may be this one."""
        if channel not in known:
            free = [i for i, name in enumerate(names) if name is None]
            known[channel] = tuple(i for i in free if fits(i, channel))
        return known[channel]

    own = ring.edges[edge]

    def fits(stream: int, channel: int) -> bool:
        if own.own_channels and own.own_channels[stream] != channel:
            return False
        if sounded:
            return laid.writers(edge, stream, channel)[0] > 0
        return laid.agreeing(edge, stream, channel) is not None

    tries = iter(range(MOST_TRIES))
    ways = _choose(tuple(names), wanted, missing, fitting, tries)
    yield from islice(ways, MOST_ASSIGNMENTS)


def _choose(
    names: tuple[int | None, ...],
    wanted: Sequence[int],
    missing: int,
    fitting: Callable[[int], Sequence[int]],
    tries: Iterator[int],
) -> Iterator[tuple[int | None, ...]]:
    if not wanted:
        yield names
        return
    if next(tries, None) is None:
        return
    channel, rest = wanted[0], wanted[1:]
    for i in fitting(channel):
        if names[i] is None:
            taken = (*names[:i], channel, *names[i + 1 :])
            yield from _choose(taken, rest, missing, fitting, tries)
    if missing > 0:
        yield from _choose(names, rest, missing - 1, fitting, tries)


def beyond_end(ring: Ring, cut: Cut) -> int:
    """Sends of it that would come after the last one seen on their connection."""
    if not cut.lost:
        return 0
    return sum(
        max(0, number + len(sends) - max(number, stream.stop))
        for stream, number, sends in cut.rows(ring)
    )
