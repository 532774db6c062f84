"""Could connections of two communicators have changed places, and who says that they did not?

Rings of ranks that are parallel in other ways too reduce tensors of the same sizes in step, often
between the same addresses. What is forwarded tells in rings of more than two ranks; in any ring
time does: a rank sends on what it received, and begins a collective after it has received all of
the one before (a communicator's kernels run one after the other). Where every way to mix two
communicators contradicts that, and they themselves do not, they are what they were read as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.collectives.ring_schedule import Send, sends_per_chunk
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.learn.search.communicators import Communicator

ALIKE = 0.5
"""Share of a connection's sends that another one in its place has at least."""
TRIES = 20_000
"""Of ways to mix connections, before it is not told that none is possible."""


def may_be_mixed(own: Communicator, streams: Sequence[Stream]) -> bool:
    """Some connections of `own` may be others of `streams`, by all that was seen."""
    return _Mixing(own, streams).possible()


@dataclass(frozen=True, slots=True)
class _Role:
    """A connection's part in a communicator: what it carries of each collective."""

    edge: int
    at: int
    """Of its edge's streams."""


class _Mixing:
    """Ways to put other connections in the places of some of a communicator's."""

    def __init__(self, own: Communicator, streams: Sequence[Stream]) -> None:
        ring = own.ring
        self._ring, self._times, self._cuts = ring, _Times(own), own.cuts.found
        used = {
            _Role(edge, at)
            for cut in own.cuts.found
            for edge, names in enumerate(cut.channels)
            for at, channel in enumerate(names)
            if channel is not None
        }
        self._own = {role: ring.edges[role.edge].streams[role.at] for role in used}
        mine = set(map(id, self._own.values()))
        self._alike = {
            role: [s for s in streams if id(s) not in mine and _same(stream, s)]
            for role, stream in self._own.items()
        }
        self._strangers = {
            role: [s for s in alike if self._times.at_once(role, s)]
            for role, alike in self._alike.items()
        }
        # Those that may be others' first: what contradicts them is found at once.
        self._roles = sorted(used, key=lambda role: (not self._strangers[role], role.at, role.edge))
        self._pairs = {
            (one, two)
            for one, into in enumerate(ring.edges)
            for two, out in enumerate(ring.edges)
            if one != two and (into.sender + ring.gpus) % ring.ranks == out.sender
        }
        self._known: dict[tuple[_Role, _Role, int, int], bool] = {}
        self._tries = TRIES

    def possible(self) -> bool:
        """A way to mix them contradicts nothing, or they themselves contradict it."""
        if len(self._own) < 2 or not any(self._alike.values()):
            return False
        if any(cut.op.tree for cut in self._cuts):
            return any(self._strangers.values())  # what follows what in trees is not asked here
        if not all(self._agree(role, s, self._own) for role, s in self._own.items()):
            return True  # times are of no use here, not to tell who else is at work either
        return any(self._strangers.values()) and self._mixed({}, strange=False, kept=False)

    def _mixed(self, chosen: dict[_Role, Stream], *, strange: bool, kept: bool) -> bool:
        """What is chosen for the first roles can be gone on with to a mixture."""
        self._tries -= 1
        if self._tries < 0:
            return True
        if len(chosen) == len(self._roles):
            return strange and kept
        role = self._roles[len(chosen)]
        own = self._own[role]
        return any(
            self._agree(role, stream, chosen)
            and self._mixed(
                chosen | {role: stream},
                strange=strange or stream is not own,
                kept=kept or stream is own,
            )
            for stream in (*self._strangers[role], own)
            if not any(stream is other for other in chosen.values())
        )

    def _agree(self, role: _Role, stream: Stream, chosen: Mapping[_Role, Stream]) -> bool:
        """Nothing contradicts this connection in a role beside the others in theirs."""
        for other, beside in chosen.items():
            if (role.edge, other.edge) in self._pairs and self._broken(role, other, stream, beside):
                return False
            if (other.edge, role.edge) in self._pairs and self._broken(other, role, beside, stream):
                return False
        return True

    def _broken(self, before: _Role, after: _Role, into: Stream, out: Stream) -> bool:
        name = before, after, id(into), id(out)
        if name not in self._known:
            self._known[name] = self._times.broken(before, after, into, out)
        return self._known[name]


def _same(one: Stream, two: Stream) -> bool:
    if (one.key.source, one.key.destination) != (two.key.source, two.key.destination):
        return False
    if min(one.stop, two.stop) < ALIKE * max(one.stop, two.stop) or not min(one.stop, two.stop):
        return False
    both = one.sends.keys() & two.sends.keys()
    return all(one.sends[n].wire_bytes == two.sends[n].wire_bytes for n in both)


class _Times:
    """When the sends of each collective of a communicator were seen, whoever carries them."""

    def __init__(self, communicator: Communicator) -> None:
        self._ring: Ring = communicator.ring
        self._cuts: Sequence[Cut] = communicator.cuts.found
        spans = (_span(cut, self._ring) for cut in self._cuts)
        self._spans: Sequence[tuple[int, int]] = tuple(spans)
        """[cut] (first, last) time of its sends, all connections together."""

    def at_once(self, role: _Role, stream: Stream) -> bool:
        """Its sends in this role were seen while the others of each collective were, or no further
        from them than these took: one kernel moves them all."""
        for cut, (begin, end) in zip(self._cuts, self._spans, strict=True):
            slack = end - begin
            seen = [stream.sends[n].message for n in self._numbers(cut, role) if n in stream.sends]
            if any(not begin - slack <= m.first_ns <= end + slack for m in seen):
                return False
        return True

    def broken(self, before: _Role, after: _Role, into: Stream, out: Stream) -> bool:
        """What these connections sent in these roles cannot be: a rank sent before it received."""
        received: int | None = None
        for cut in self._cuts:
            came, gone = self._numbers(cut, before), self._numbers(cut, after)
            if self._ring.gpus == 1 and _earlier(_seen(out, gone[:1]), received):
                return True
            reduces = cut.op.kind is CollectiveKind.ALL_REDUCE and self._same_channel(
                cut, before, after
            )
            if reduces and self._overtaken(cut, (before, after), into, out):
                return True
            last = _seen(into, came[-1:])
            received = last if received is None else max(received, last or received)
        return False

    def _numbers(self, cut: Cut, role: _Role) -> range:
        """Of the sends of a collective on a connection."""
        start = cut.starts[role.edge][role.at]
        return range(start, start + len(self._sends(cut, role)))

    def _sends(self, cut: Cut, role: _Role) -> Sequence[Send]:
        channel = cut.channels[role.edge][role.at]
        return cut.schedules[role.edge][channel] if channel is not None else ()

    def _same_channel(self, cut: Cut, before: _Role, after: _Role) -> bool:
        channel = cut.channels[before.edge][before.at]
        return channel is not None and channel == cut.channels[after.edge][after.at]

    def _overtaken(self, cut: Cut, roles: tuple[_Role, _Role], into: Stream, out: Stream) -> bool:
        """A ring step went out before what it sends on had come in, or with other bytes."""
        came, gone = (self._numbers(cut, role) for role in roles)
        planned = [self._sends(cut, role) for role in roles]
        slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
        steps = 2 * self._ring.ranks - 2 + self._ring.extra_sends
        for place in range(0, min(len(came), len(gone)), slices):
            if place // slices % steps + self._ring.gpus >= steps:
                continue
            on = place + self._ring.gpus * slices
            if on >= len(gone):
                break
            if _earlier(_seen(out, gone[on : on + 1]), _seen(into, came[place : place + 1])):
                return True
            one, two = planned[0][place], planned[1][on]
            same = one.final and two.final and one.start_byte == two.start_byte
            if same and _differ(one, into.sends.get(came[place]), out.sends.get(gone[on]), cut):
                return True
        return False


def _span(cut: Cut, ring: Ring) -> tuple[int, int]:
    seen = cut.times(ring)
    return (min(seen), max(seen)) if seen else (0, 0)


def _seen(stream: Stream, numbers: range) -> int | None:
    """When a send was seen first."""
    found = [stream.sends[n].message.first_ns for n in numbers if n in stream.sends]
    return found[0] if found else None


def _differ(send: Send, one: SendSeen | None, two: SendSeen | None, cut: Cut) -> bool:
    """What was sent on is not what came in."""
    if one is None or two is None or not send.data_bytes:
        return False
    came, seen = unpacked(one, cut.op.protocol, send.data_bytes)
    gone, seen_too = unpacked(two, cut.op.protocol, send.data_bytes)
    both = seen & seen_too
    return bool((came[both] != gone[both]).any())


def _earlier(one: int | None, two: int | None) -> bool:
    return one is not None and two is not None and one < two
