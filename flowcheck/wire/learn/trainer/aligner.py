"""Lays what a program expects over what the connections of a ring, and of trees beside it, carried.

Its state is a position on each connection. Of what may come next the aligner takes what every
message seen agrees with, in the order of the program: a collective of a known size first, one that
only the wire sizes where none of these fits. Several sizes, or several releases of NCCL, may fit at
a place; each is a way of its own then, and what comes later tells them apart. A message that nobody
expected ends a way: where none is left, whoever asked has to look elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.candidates import (
    Channels,
    Op,
    Positions,
    by_each_algorithm,
    by_trees,
    totals_of,
)
from flowcheck.wire.learn.cuts.cut import Cuts
from flowcheck.wire.learn.cuts.echo import amid_cut_off, echoes
from flowcheck.wire.learn.cuts.match import Cut, State, apply, settled
from flowcheck.wire.learn.cuts.place import copies_differ
from flowcheck.wire.learn.cuts.purse import Purse
from flowcheck.wire.learn.cuts.sounding import everyone
from flowcheck.wire.learn.cuts.totals import slacks, totals_of_room
from flowcheck.wire.learn.flows.rings import Ring, earliest
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

    @property
    def meant(self) -> tuple[tuple[int, str], ...]:
        """Bytes of each collective that is the trainer's, and what it is to it."""
        return tuple((cut.op.work_bytes, cut.op.meaning) for cut in self.cuts if cut.op.meaning)

    @property
    def reduces(self) -> bool:
        """It has an all-reduce that was seen whole."""
        return any(cut.op.kind is CollectiveKind.ALL_REDUCE and not cut.lost for cut in self.cuts)


Fit = tuple[State, Cut, Came]
SumCheck = Callable[[Cut, Ring], bool]
"""Whether an all-reduce's sends were seen at times at which it can have sent them."""


class Aligner:
    """What a ring carried, with what is expected laid over it."""

    def __init__(
        self,
        ring: Ring,
        purse: Purse | None = None,
        *,
        goes_on: bool = False,
        alone: bool | None = None,
        amid: Sequence[SumCheck] = (),
    ) -> None:
        """purse: counts what is laid; goes_on: more of the stream comes and is read then; alone:
        no other link will be asked about this one's, as where there is none (None); amid: what
        every sum must pass where no start was seen, and where one ends in its last line is asked
        later; (): a start was seen."""
        self._ring, self._purse, self._goes_on = ring, purse, goes_on
        self._alone = len(ring.edges) == 1 if alone is None else alone
        self._amid = tuple(amid)

    def followed(self, make: Callable[[], Program], begin: Positions | None = None) -> list[Way]:
        """Ways in which all that was seen is what the program says, as far as it went, the
        likeliest first; empty: there is none. begin: the first send on each connection that is
        looked at; None: its first one of all."""
        edges, anyone = self._ring.edges, everyone(self._ring.ranks)
        start = State(
            begin or tuple(tuple(0 for _ in edge.streams) for edge in edges),
            tuple(tuple(None for _ in edge.streams) for edge in edges),
            self._ring.rules,
            tuple(tuple(anyone for _ in e.streams) for e in edges) if self._ring.sounding else (),
        )
        ways, done = [Way(start, Run(make))], False
        awaiting: list[Way] = []
        while ways and not done:
            after: list[Way] = []
            done = True
            for way in ways:
                if self._at_end(way.state):
                    after.append(way)
                    continue
                done = False
                if further := self._next(way):
                    after += further
                elif self._awaits_sum(way):
                    awaiting.append(way)
            if len(after) + len(awaiting) > MOST_WAYS:
                return []
            ways = after
        return ways or awaiting

    def _awaits_sum(self, way: Way) -> bool:
        """More of the stream comes, and what is left may be the begin of what a script reduces: its
        size is told once it is whole, and what came before is as if that had not begun."""
        loop = 2 * self._ring.ranks - 2 + self._ring.extra_sends
        most = loop * max(
            sends_per_chunk(CollectiveKind.ALL_REDUCE, protocol)
            for protocol in self._ring.protocols_at(way.state.positions)
        )
        left = [
            stream.stop - number
            for edge, at in zip(self._ring.edges, way.state.positions, strict=True)
            for stream, number in zip(edge.streams, at, strict=True)
        ]
        return self._goes_on and EXTRA in way.run.expects and max(left) <= most

    def _at_end(self, state: State) -> bool:
        """Nothing that was seen is left."""
        return all(
            stream.stop <= number
            for edge, at in zip(self._ring.edges, state.positions, strict=True)
            for stream, number in zip(edge.streams, at, strict=True)
        )

    def _next(self, way: Way) -> list[Way]:
        """The ways on from this one."""
        protocols = self._ring.protocols_at(way.state.positions)
        known = [one for one in way.run.expects if one.work_bytes]
        fits = [
            fit
            for one in known
            for p in protocols
            for op in by_each_algorithm(expected_op(one, p), self._ring)
            for fit in self._fits(way.state, one, op)
        ]
        fits = _told_apart(fits)
        # What is whole is likelier than what would be cut off by the end of what was seen.
        fits = [fit for fit in fits if not fit[1].lost] or fits
        if self._goes_on and all(self._at_end(state) for state, _, _ in fits):
            # While it is on its way sizes fit alike: the likeliest, of which no job is proved yet.
            fits = [fit for fit in fits if _named(fit[1]) == _named(fits[0][1])]
        sound = self._sound(fits)
        if not sound:
            # Sizes alone may fit by chance: what its own copies contradict gives way to others.
            opened = [one for one in way.run.expects if not one.work_bytes]
            sized: list[Fit] = []
            # Amid a run broadcasts of any size explain what a sum sends, one for each send of it.
            for ones in ([one] for one in opened) if self._amid else (opened,):
                sized = sized or [
                    fit for one in ones for p in protocols for fit in self._sized(way.state, one, p)
                ]
            sound = self._sound(sized) or sized
            # A node that began a tree's sum has a part in no broadcast before it any more.
            sound = [fit for fit in sound if not self._behind_a_sum(fit[1])] or sound
        fits = sound or fits
        runs = [*(way.run.again() for _ in fits[1:]), way.run]
        for run, (_, _, came) in zip(runs, fits, strict=False):
            run.tell(came)
        return [Way(state, run, cut, way) for run, (state, cut, _) in zip(runs, fits, strict=False)]

    def _behind_a_sum(self, cut: Cut) -> bool:
        """A broadcast round the ring of which a node began a tree's sum earlier: what it sends of a
        sum holds what all of its ranks added, and they add behind a broadcast that comes first."""
        ring = self._ring
        if not ring.branches or cut.op.kind is not CollectiveKind.BROADCAST or cut.op.tree:
            return False
        begun = {
            stream.key.source: stream.sends[number].message.time
            for stream, number, _ in cut.rows(ring)
            if number in stream.sends
        }
        return any(
            number in stream.sends
            and stream.key.source in begun
            and stream.sends[number].message.time < begun[stream.key.source]
            for edge, at in zip(ring.edges, cut.starts, strict=True)
            if edge.receiver is not None
            for stream, number in zip(edge.streams, at, strict=True)
        )

    def _sound(self, fits: Sequence[Fit]) -> list[Fit]:
        """Those that their own copies do not contradict."""
        return [fit for fit in fits if not self._contradicts(fit[1])]

    def _contradicts(self, cut: Cut) -> bool:
        """Two copies of what it holds differ, of one whose size is known."""
        sizes_known = not cut.op.from_wire and not self._ring.sounding
        if self._amid and cut.op.slack_is_open:
            return False
        return sizes_known and len(self._ring.edges) > 1 and copies_differ(cut, self._ring)

    def _fits(self, state: State, one: Expect, op: Op) -> Iterator[Fit]:
        """One way for each group of releases that sizes do not tell apart."""
        known: set[tuple[NcclEra, ...]] = set()
        # Whole in a gap: the program says what was lost there.
        unseen = one.work_bytes > 0 and not self._amid
        for after, cut in apply(self._ring, state, op, self._purse, may_be_unseen=unseen):
            if after.rules in known or self._passes_over(after, cut):
                continue
            if op.kind is CollectiveKind.ALL_REDUCE and not self._timely(cut):
                continue
            if self._ring.branches and amid_cut_off(cut, self._ring):
                continue
            holds, turned = one.holds, self._is_turned(op)
            content = None
            if holds is not None and not turned:
                content = content_of(cut, self._ring)
                if content is None or not holds(content, self._ring.ranks):
                    continue
            if holds is not None and turned and cut.lost:
                continue
            known.add(after.rules)
            slack = SLACK_BYTES[op.protocol]
            came = Came(expect=one, work_bytes=op.work_bytes, content=content, slack_bytes=slack)
            yield after, cut, came

    def _timely(self, cut: Cut) -> bool:
        """Its times are those of one sum, where these are asked for."""
        return all(check(cut, self._ring) for check in self._amid)

    def _is_turned(self, op: Op) -> bool:
        """Nothing tells yet which of its chunks are where: what it holds is asked once all links
        are laid out."""
        return self._ring.sounding and op.kind is CollectiveKind.ALL_REDUCE and not op.tree

    def _sized(self, state: State, one: Expect, protocol: Protocol) -> Iterator[Fit]:
        """The same of a collective whose size the wire tells: of each size that all sends agree
        with, the first one of those that end alike."""
        known: set[object] = set()
        for likely in self._sizes(state, one, protocol):
            for ops in likely:
                before = len(known)
                for op in ops:
                    for after, cut, came in self._fits(state, one, op):
                        name = after.positions, after.channels, after.rules
                        if name in known or cut.lost or echoes(cut, self._ring):
                            continue
                        if one is EXTRA and not self._is_sum(cut):
                            continue
                        known.add(name)
                        yield after, cut, came
                if len(known) > before:
                    break

    def _is_sum(self, cut: Cut) -> bool:
        """It is no gathers or broadcasts, as far as sizes tell: who forwards what is seen only
        where two links meet at a rank."""
        seen = not self._alone and self._ring.gpus == 1
        return seen or cut.op.tree or _uneven(cut, self._ring)

    def _sizes(
        self, state: State, one: Expect, protocol: Protocol
    ) -> Iterator[Iterable[Iterable[Op]]]:
        """Of the sizes that the wire allows, as much as fits into what was sent before less; those
        that have to be told apart by what follows one after the other."""
        places = state.positions, state.channels
        totals = tuple(totals_of(self._ring, *places, one.kind, protocol))
        if one.most_bytes:
            most = one.most_bytes + SLACK_BYTES[protocol]
            totals = tuple(total for total in totals if total <= most)
        if one is not EXTRA:
            sizes = (size for total in totals for size in self._ends(state, one, protocol, total))
            yield ((expected_op(one, protocol, size) for size in sizes),)
        else:
            yield self._plain(places, one, protocol, totals)
        # Where an added ring step is asked about, the search tells what it is made of.
        asked = one is EXTRA or (one.ends is None and not self._ring.extra_sends)
        if protocol is Protocol.LL128 and asked:
            # Lines of many channels may be some of fewer just as well.
            yield (
                [
                    expected_op(one, protocol, size)
                    for size in totals_of_room(self._ring, one.kind, total)
                ]
                for total in totals
            )

    def _plain(
        self,
        places: tuple[Positions, Channels],
        one: Expect,
        protocol: Protocol,
        totals: Sequence[int],
    ) -> Iterator[Iterable[Op]]:
        """Sums of as many bytes as their sends hold, or of a few less."""
        # Behind a start no bucket is told: a number on one channel comes after all sizes on more.
        likely = totals if self._amid else totals[:MOST_EXTRA]
        yield (expected_op(one, protocol, total) for total in likely)
        if self._ring.found:
            yield by_trees(self._ring, *places, protocol)
        yield (
            expected_op(one, protocol, total - less)
            for total in totals
            for less in slacks(self._ring, one.kind, total, protocol)[1:]
            if less < total
        )

    def _ends(self, state: State, one: Expect, protocol: Protocol, total: int) -> Sequence[int]:
        """What it may hold of so many bytes."""
        if one.ends is None or not SLACK_BYTES[protocol]:
            return (total,)
        bare = Op(kind=one.kind, work_bytes=total, protocol=protocol)
        for _, cut in apply(self._ring, state, bare, self._purse):
            content = content_of(cut, self._ring)
            return () if content is None else one.ends(content, SLACK_BYTES[protocol])
        return ()

    def _passes_over(self, after: State, cut: Cut) -> bool:
        """What was sent first of all that is left is no part of it: ranks make collectives one
        after the other. What began in a gap may have begun before it."""
        begins = [(stream, number) for stream, number, _ in cut.rows(self._ring)]
        if any(n < stream.stop and n not in stream.sends for stream, n in begins):
            return False
        # Ranks that a broadcast has passed may begin a tree's all-reduce.
        broadcast = cut.op.kind is CollectiveKind.BROADCAST
        first = earliest(self._ring, cut.starts, trees=False if broadcast else None)
        if first is None:
            return False
        edge, place = first
        return cut.starts[edge][place] == after.positions[edge][place]


def cuts_of(ring: Ring, way: Way) -> Cuts:
    """All that came on this ring, in this way."""
    rules = way.state.rules
    return Cuts(ring, tuple(settled(ring, cut, rules) for cut in way.cuts), way.state, 0, 0.0)


def _named(cut: Cut) -> tuple[int, CollectiveKind, Protocol, Algorithm]:
    return cut.op.work_bytes, cut.op.kind, cut.op.protocol, cut.op.algorithm


def _told_apart(fits: Sequence[Fit]) -> list[Fit]:
    """Without those that are the same sends as one before them: an all-gather, and broadcasts in
    its place."""
    known: dict[object, Fit] = {}
    for fit in fits:
        state, cut, came = fit
        known.setdefault((state, cut.op.protocol, came.expect.meaning, came.work_bytes), fit)
    return list(known.values())


def _uneven(cut: Cut, ring: Ring) -> bool:
    """Chunks that are sent twice are of several sizes, or empty: blocks of a gather are all as
    large, and no broadcast is empty."""
    twice = ring.ranks - 2
    for sends in (sends for schedule in cut.schedules for sends in schedule):
        if twice > 0 and len(sends):
            first = sends.wire_bytes[: twice * sends.parts].reshape(twice, sends.parts)
            sizes = set(first.sum(axis=1).tolist())
            if len(sizes) > 1 or 0 in sizes:
                return True
    return False


def expected_op(one: Expect, protocol: Protocol, size: int = 0) -> Op:
    """What a program expects, as it is laid out. size: of one that only the wire sizes."""
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
