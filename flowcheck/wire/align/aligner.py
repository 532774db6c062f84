"""Lays what a program expects over what the connections of a ring carried.

Its state is a position on each connection. Of what may come next the aligner takes what every
message seen agrees with, in the order of the program: a collective of a known size first, one that
only the wire sizes where none of these fits. Several sizes, or several releases of NCCL, may fit at
a place; each is a way of its own then, and what comes later tells them apart. Two known sizes that
fit are an open question, and so is a message that nobody expected: then there is no way, and
whoever asked has to look elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol
from flowcheck.wire.learn.cuts.candidates import Op, totals_of
from flowcheck.wire.learn.cuts.echo import echoes
from flowcheck.wire.learn.cuts.match import Cut, State, apply
from flowcheck.wire.learn.cuts.room import totals_of_room
from flowcheck.wire.learn.cuts.slack import slacks
from flowcheck.wire.learn.flows.order import earliest
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.trainer.content import SLACK_BYTES, content_of
from flowcheck.wire.programs.ddp import BUFFERS
from flowcheck.wire.programs.ddp_start import SHAPES
from flowcheck.wire.programs.expectation import EXTRA, Came, Expect, Program

MOST_WAYS = 12
"""Kept at once. A choice: sizes of one broadcast on several channels, for each release of NCCL."""
MOST_EXTRA = 4
"""Sizes tried of what a script reduces itself."""
LICENCE = "DDP"


class Run:
    """A program under way, which can be gone on with in more than one way."""

    def __init__(self, make: Callable[[], Program], told: Sequence[Came] = ()) -> None:
        self._make, self._told = make, list(told)
        self._program = make()
        self.expects: tuple[Expect, ...] = next(self._program, ())
        for came in told:
            self.expects = self._sent(came)

    def tell(self, came: Came) -> None:
        """The collective that came."""
        self._told.append(came)
        self.expects = self._sent(came)

    def again(self) -> Run:
        """Another one that was told as much."""
        return Run(self._make, self._told)

    def _sent(self, came: Came) -> tuple[Expect, ...]:
        try:
            return self._program.send(came)
        except StopIteration:
            return ()


@dataclass(frozen=True, slots=True)
class Way:
    """A way in which what was seen is what the program says."""

    state: State
    run: Run
    cut: Cut | None = None
    """The last collective; None: none came yet."""
    before: Way | None = None

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """All collectives, in their order."""
        found = []
        way: Way | None = self
        while way is not None and way.cut is not None:
            found.append(way.cut)
            way = way.before
        return tuple(reversed(found))


def followed(ring: Ring, make: Callable[[], Program]) -> list[Way]:
    """Ways in which all that was seen is what the program says, as far as it went, the likeliest
    first; empty: there is none."""
    start = State(
        tuple(tuple(0 for _ in edge.streams) for edge in ring.edges),
        tuple(tuple(None for _ in edge.streams) for edge in ring.edges),
        ring.rules,
    )
    ways, done = [Way(start, Run(make))], False
    while ways and not done:
        after: list[Way] = []
        done = True
        for way in ways:
            if _at_end(ring, way.state):
                after.append(way)
            else:
                after += _next(ring, way)
                done = False
        ways = after if len(after) <= MOST_WAYS else []
    return ways


def _at_end(ring: Ring, state: State) -> bool:
    """Nothing that was seen is left."""
    return all(
        stream.stop <= number
        for edge, at in zip(ring.edges, state.positions, strict=True)
        for stream, number in zip(edge.streams, at, strict=True)
    )


Fit = tuple[State, Cut, Came]


def _next(ring: Ring, way: Way) -> list[Way]:
    """The ways on from this one."""
    protocols = ring.protocols_at(way.state.positions)
    known = [one for one in way.run.expects if one.work_bytes]
    fits = [
        fit for one in known for p in protocols for fit in _fits(ring, way.state, one, _op(one, p))
    ]
    if len({(cut.op.work_bytes, cut.op.kind, cut.op.protocol) for _, cut, _ in fits}) > 1:
        return []
    if not fits:
        fits = [
            fit
            for one in way.run.expects
            if not one.work_bytes and (one is not EXTRA or len(ring.edges) > 1)
            for p in protocols
            for fit in _sized(ring, way.state, one, p)
        ]
    runs = [*(way.run.again() for _ in fits[1:]), way.run]
    for run, (_, _, came) in zip(runs, fits, strict=False):
        run.tell(came)
    return [Way(state, run, cut, way) for run, (state, cut, _) in zip(runs, fits, strict=False)]


def _op(one: Expect, protocol: Protocol, size: int = 0) -> Op:
    """size: of one that only the wire sizes."""
    return Op(
        kind=one.kind,
        work_bytes=size or one.work_bytes,
        protocol=protocol,
        licensed=LICENCE if one.meaning else "",
        meaning=one.meaning,
        type_bytes=one.type_bytes,
        open_size=one.meaning == BUFFERS,
        from_wire=one.meaning == BUFFERS or (size > 0 and one.meaning not in ("", SHAPES)),
    )


def _fits(ring: Ring, state: State, one: Expect, op: Op) -> Iterator[Fit]:
    """One way for each group of releases that sizes do not tell apart."""
    known: set[tuple[NcclEra, ...]] = set()
    for after, cut in apply(ring, state, op):
        if after.rules in known or _passes_over(ring, after, cut):
            continue
        content = content_of(cut, ring) if one.holds is not None else None
        if one.holds is not None and (content is None or not one.holds(content, ring.ranks)):
            continue
        known.add(after.rules)
        slack = SLACK_BYTES[op.protocol]
        came = Came(expect=one, work_bytes=op.work_bytes, content=content, slack_bytes=slack)
        yield after, cut, came


def _sized(ring: Ring, state: State, one: Expect, protocol: Protocol) -> Iterator[Fit]:
    """The same of a collective whose size the wire tells: of each size that all sends agree with,
    the first one of those that end alike."""
    known: set[object] = set()
    for sizes in _sizes(ring, state, one, protocol):
        for size in sizes:
            for after, cut, came in _fits(ring, state, one, _op(one, protocol, size)):
                name = after.positions, after.channels, after.rules
                if name in known or cut.lost or echoes(cut, ring):
                    continue
                known.add(name)
                yield after, cut, came
        if known:
            return


def _sizes(ring: Ring, state: State, one: Expect, protocol: Protocol) -> Iterator[Iterable[int]]:
    """Sizes that the wire allows, as much as fits into what was sent before less."""
    places = state.positions, state.channels
    totals = tuple(totals_of(ring, *places, one.kind, protocol))
    if one is not EXTRA:
        yield (size for total in totals for size in _ends(ring, state, one, protocol, total))
        return
    yield totals[:MOST_EXTRA]
    yield (total - less for total in totals for less in slacks(ring, one.kind, total, protocol)[1:])
    if protocol is Protocol.LL128:
        yield (size for total in totals for size in totals_of_room(ring, one.kind, total))


def _ends(ring: Ring, state: State, one: Expect, protocol: Protocol, total: int) -> Sequence[int]:
    """What it may hold of so many bytes."""
    if one.ends is None or not SLACK_BYTES[protocol]:
        return (total,)
    bare = Op(kind=one.kind, work_bytes=total, protocol=protocol)
    for _, cut in apply(ring, state, bare):
        content = content_of(cut, ring)
        return () if content is None else one.ends(content, SLACK_BYTES[protocol])
    return ()


def _passes_over(ring: Ring, after: State, cut: Cut) -> bool:
    """What was sent first of all that is left is no part of it: ranks make collectives one after
    the other."""
    first = earliest(ring, cut.starts)
    if first is None:
        return False
    edge, place = first
    return cut.starts[edge][place] == after.positions[edge][place]
