"""Numbers of sends behind a gap in which nothing of their own tells how many were lost.

Simple's sends hold no number, and a buffer's slot comes again every eight. But a program says what
is sent while the mirror loses it, and packet sequence numbers say how many packets that took: a
send behind the gap has the number at which the packets of all sends foretold before it are as many
as were lost, and its own size is the foretold one. What was seen before the first such gap tells
the program; behind a collective that it does not foretell numbers stay open until that is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.predicted import predicted
from flowcheck.wire.learn.cuts.candidates import Op, schedules_of
from flowcheck.wire.learn.flows.numbering import renumbered
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.roles import Grants, Sorted
from flowcheck.wire.learn.flows.streams import PSN_OF_START, Stream
from flowcheck.wire.learn.search.communicators import ring_and_p2p
from flowcheck.wire.learn.trainer.aligner import Aligner, Run, Way, expected_op
from flowcheck.wire.learn.trainer.rest_of_iteration import like_its_neighbours
from flowcheck.wire.programs.ddp import ddp
from flowcheck.wire.programs.expectation import Came, Expect
from flowcheck.wire.traffic.observed_messages import FlowKey

MOST_ROUNDS = 8
"""Times that what was read is gone on from: once for each collective that no program foretells."""
MOST_AHEAD = 4_096
"""Collectives foretold behind what was seen."""
Sizes = dict[FlowKey, list[int]]
"""{connection: bytes of each of its sends, from the first one on}."""


def with_gaps_numbered(told: Sorted, known: Known) -> Sorted:
    """The same with those numbers that a program tells; as it was where there are none."""
    for _ in range(MOST_ROUNDS):
        streams, _ = ring_and_p2p(told.streams)
        wanted = [stream for stream in streams if _may_be_told(stream)]
        if not wanted:
            break
        sizes = _foretold_sizes(streams, told.grants, known)
        numbered = {
            stream.key: found
            for stream in wanted
            if (own := sizes.get(stream.key)) is not None
            and (found := _numbered(stream, own, told.grants)) is not None
        }
        if not numbered:
            break
        told = told.with_streams(tuple(numbered.get(stream.key, stream) for stream in told.streams))
    return told


def _may_be_told(stream: Stream) -> bool:
    """Some of its numbers are open, and those before them count its packets."""
    if not stream.open_numbers or not stream.from_start or len(stream.queue_pairs) != 1:
        return False
    if not stream.flow.pmtu_bytes:
        return False
    # A send of several writes, or with an empty one behind it, takes other packets.
    return all(
        send.stop_psn - send.first_psn == _packets(send.wire_bytes, stream)
        for number, send in stream.sends.items()
        if number < stream.open_numbers[0] and not send.message.missing
    )


def _packets(size_bytes: int, stream: Stream) -> int:
    """Of a send of so many bytes; the least there can be where no packet told the path MTU."""
    pmtu_bytes = stream.flow.pmtu_bytes
    return max(1, -(-size_bytes // pmtu_bytes)) if pmtu_bytes else 1


def _foretold_sizes(streams: Sequence[Stream], grants: Sequence[Grants], known: Known) -> Sizes:
    """Of the connections that a program foretells, by what came before numbers are open."""
    firsts = [s.sends[number] for s in streams for number in s.open_numbers[:1]]
    opens = min(send.message.time for send in firsts)
    before = tuple(_until(stream, opens) for stream in streams)
    found = predicted(before, grants, known)
    stops = {
        stream.key: max(send.stop_psn for send in stream.sends.values()) - PSN_OF_START
        for stream in streams
    }
    sizes: Sizes = {}
    for communicator in found.communicators if found is not None else ():
        ways = Aligner(communicator.ring, known.purse, goes_on=known.goes_on).followed(ddp)
        if len(ways) == 1:
            sizes |= _sizes(communicator.ring, ways[0], stops)
    return sizes


def _until(stream: Stream, time: tuple[int, int]) -> Stream:
    """What it carried before that."""
    later = (number for number, send in sorted(stream.sends.items()) if send.message.time >= time)
    return stream.before(next(later, stream.stop))


def _sizes(ring: Ring, way: Way, stops: Mapping[FlowKey, int]) -> Sizes:
    """What came, and what comes behind it. stops: packets of each connection that were seen, with
    those lost between them."""
    streams = {stream.key: stream for edge in ring.edges for stream in edge.streams}
    sizes: Sizes = {key: [] for key in streams}
    for cut in way.cuts:
        for stream, _, sends in cut.rows(ring):
            sizes[stream.key] += sends.wire_bytes.tolist()
    packets = {key: sum(_packets(size, streams[key]) for size in own) for key, own in sizes.items()}
    for op in _ahead(way):
        laid = schedules_of(op, way.state.rules[0], ring)
        for edge, names, schedule in zip(ring.edges, way.state.channels, laid, strict=True):
            for stream, channel in zip(edge.streams, names, strict=True):
                more = [] if channel is None else schedule[channel].wire_bytes.tolist()
                sizes[stream.key] += more
                packets[stream.key] += sum(_packets(size, stream) for size in more)
        if all(packets[key] >= stops[key] for key in streams):
            break
    return sizes


def _ahead(way: Way) -> Iterator[Op]:
    """Collectives that the program expects next, one after the other, while it leaves no choice."""
    run: Run = way.run.again()
    seen = [cut.op for cut in way.cuts if not cut.lost]
    for _ in range(MOST_AHEAD):
        due = next(iter(run.expects), None)
        op = None if due is None else _op(due, run.expects, seen)
        if due is None or op is None:
            return
        yield op
        run.tell(Came(expect=due, work_bytes=due.work_bytes, content=None, slack_bytes=0))


def _op(due: Expect, expects: Sequence[Expect], seen: Sequence[Op]) -> Op | None:
    """How it is sent, if nothing else of a known size may come in its place."""
    if not due.work_bytes or due.holds is not None:
        return None
    if any(one.work_bytes and one.holds is None for one in expects if one is not due):
        return None
    alike = like_its_neighbours(due.work_bytes, [op for op in seen if op.kind is due.kind])
    if alike is None:
        return None
    return replace(expected_op(due, alike.protocol), algorithm=alike.algorithm)


def _numbered(stream: Stream, sizes: Sequence[int], grants: Sequence[Grants]) -> Stream | None:
    """The stream with numbers by these sizes; None: they tell no more of them."""
    anchor = max(
        (
            number
            for number, send in stream.sends.items()
            if number < stream.open_numbers[0] and not send.message.missing
        ),
        default=None,
    )
    if anchor is None or anchor >= len(sizes):
        return None
    packets = np.array([_packets(size, stream) for size in sizes[anchor:]], np.int64)
    begins = stream.sends[anchor].first_psn + np.concatenate(([0], np.cumsum(packets)))
    moves = _moves(stream, begins, np.array(sizes, np.int64), anchor)
    if moves is None:
        return None
    granter = next((grant for grant in grants if grant.flow.key == stream.peer), None)
    return renumbered(stream, *moves, {} if granter is None else granter.granted)


def _moves(
    stream: Stream, begins: NDArray[np.int64], sizes: NDArray[np.int64], anchor: int
) -> tuple[dict[int, int], tuple[int, ...]] | None:
    """({number by now: told}, told numbers that stay open); None: not even the first one is told.
    begins: PSN of each send foretold, from the anchor on."""
    told: dict[int, int] = {}
    left: list[int] = []
    move = last = 0
    for number in sorted(stream.sends):
        if number in stream.open_numbers:
            at = None if left else _place(stream, number, begins, sizes, anchor)
            if at is not None and at + anchor > last:
                move = at + anchor - number
            else:
                left.append(number + move)
        told[number] = last = number + move
    return None if len(left) == len(stream.open_numbers) else (told, tuple(left))


def _place(
    stream: Stream, number: int, begins: NDArray[np.int64], sizes: NDArray[np.int64], anchor: int
) -> int | None:
    """Which send foretold, from the anchor on, begins where the first whole one behind a gap does,
    and is as large; less how far behind the gap that one is."""
    behind, send = 0, stream.sends[number]
    while send.message.missing:
        behind += 1
        following = stream.sends.get(number + behind)
        if following is None or following.first_psn != send.stop_psn:
            return None
        send = following
    at = int(np.searchsorted(begins, send.first_psn))
    if at >= len(begins) - 1 or begins[at] != send.first_psn:
        return None
    return at - behind if sizes[anchor + at] == send.wire_bytes else None
