"""In which order the connections from one host to the next carry channels, where sizes do not tell.

A rank makes them channel by channel, so that queue pair numbers at both of their ends follow each
other, and so do their buffers in memory; an allocator of another mind hands them out at random, and
then the order in which they are first used is all that is left. None of it is certain: an order is
believed where everything of one kind agrees, and a rank forwards what it receives on the channel
that it came on, which pairs the connections before it with those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.connections import (
    CHANNEL_ORDER_OPEN,
    CHANNELS_BY_BUFFERS,
    CHANNELS_BY_GPU,
    CHANNELS_BY_NUMBER,
    CHANNELS_BY_USE,
)
from flowcheck.findings.finding import Entry, Finding
from flowcheck.wire.collectives.nccl_parameters import LL128_LINE_BYTES, LL_LINE_BYTES, Protocol
from flowcheck.wire.learn.flows.clean_flows import CleanSends
from flowcheck.wire.learn.flows.streams import NOT_SEEN, SendSeen, Stream
from flowcheck.wire.traffic.observed_messages import ObservedMessage

Link = tuple[str, str]
Row = tuple[Stream, ...]

ORDERS = (CHANNELS_BY_NUMBER, CHANNELS_BY_BUFFERS, CHANNELS_BY_USE, CHANNELS_BY_GPU)
"""What an order of channels may rest on."""

LOOKED_AT_BYTES = 256
"""Of the data of a send, to know it again."""
LOOKED_AT_FIRST = (512, 2048, 8192)
"""Sends of each connection that are looked at before all are. A choice: weights come before what
both ways carry."""
LEAST_VALUES = 6
"""Bytes among them, not zero."""
Key = Callable[[Stream], "tuple[int, ...] | None"]


def in_order(
    links: Mapping[Link, Sequence[Stream]], *, by_number: bool = True
) -> tuple[dict[Link, Row], Finding]:
    """(connections of each link by channel, what that rests on). by_number: numbers of queue pairs
    are asked, which GPUs with NICs of their own give each by itself."""
    rows = {link: tuple(sorted(of, key=lambda s: s.key.dest_qp)) for link, of in links.items()}
    if all(len(row) < 2 for row in rows.values()):
        return rows, CHANNELS_BY_NUMBER()
    paired = _paired(rows)
    for entry, (keys, least) in _KINDS.items():
        if entry is CHANNELS_BY_NUMBER and not by_number:
            continue
        found = {link: _by(row, keys, paired[link], least) for link, row in rows.items()}
        told = {link: row for link, row in found.items() if row is not None}
        if len(told) == len(rows):
            return told, entry()
    return _beside_each_other(rows, paired), CHANNEL_ORDER_OPEN()


def of_several_gpus(row: Sequence[Stream]) -> bool:
    """Several GPUs write there, by NICs of their own."""
    ends = {(stream.key.source, stream.key.destination) for stream in row}
    return len(ends) > 1 and len({stream.tag for stream in row}) > 1


def _beside_each_other(
    rows: Mapping[Link, Row], paired: Mapping[Link, Mapping[int, Row]]
) -> dict[Link, Row]:
    """The rows so that what belongs together has one place."""
    for partners in paired.values():
        of = {frozenset(map(id, row)): row for row in partners.values()}
        if len(of) == len(rows) - 1:
            return {link: of.get(frozenset(map(id, row)), row) for link, row in rows.items()}
    return dict(rows)


def _by(row: Row, keys: Sequence[Key], partners: Mapping[int, Row], least: int) -> Row | None:
    """The row in the order that all keys agree on, of its own connections and of those paired with
    them; None where two contradict each other, or fewer than `least` tell."""
    if len(row) < 2:
        return row
    first: Row | None = None
    told = 0
    for key in keys:
        for of in (row, *partners.values()):
            values = [key(stream) for stream in of]
            if None in values or len(set(values)) < len(values):
                continue
            # `of` stands in the order of `row`.
            order = tuple(row[i] for i in sorted(range(len(row)), key=lambda i: values[i] or ()))
            if first is not None and order != first:
                return None
            first = order
            told += 1
    return first if told >= least else None


def _paired(rows: Mapping[Link, Row]) -> dict[Link, dict[int, Row]]:
    """{link: {n: connections of another link, each beside its own of this one}}, where content
    pairs all of them."""
    found: dict[Link, dict[int, Row]] = {link: {} for link in rows}
    names = list(rows)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            if (pairs := _pairs(rows[one], rows[two])) is not None:
                found[one][len(found[one])] = tuple(rows[two][n] for n in pairs)
                back = sorted(range(len(pairs)), key=lambda at: pairs[at])
                found[two][len(found[two])] = tuple(rows[one][n] for n in back)
    return found


def _pairs(one: Row, two: Row) -> list[int] | None:
    """[place in `one`] the place in `two` of what carried the same data; None where some have no
    such, or several. The first sends tell it mostly."""
    if len(one) != len(two):
        return None
    most = max(len(stream.sends) for stream in (*one, *two))
    for count in (*(count for count in LOOKED_AT_FIRST if count < most), most):
        if (found := _pairs_by(one, two, count)) is not None:
            return found
    return None


def _pairs_by(one: Row, two: Row, count: int) -> list[int] | None:
    """As `_pairs`, by so many of the first sends of each."""
    marks = [marks_of(stream, count) for stream in two]
    found = []
    for stream in one:
        own = marks_of(stream, count)
        shared = [len(own & other) for other in marks]
        most = max(shared)
        if not most or shared.count(most) > 1:
            return None
        found.append(shared.index(most))
    return found if len(set(found)) == len(found) else None


def marks_of(stream: Stream, count: int | None = None) -> frozenset[int]:
    """The beginnings of what was sent, or of so many of the first sends, without flags."""
    count = len(stream.sends) if count is None else min(count, len(stream.sends))
    if count not in stream.marks:
        stream.marks[count] = frozenset(_marks(stream, count))
    return stream.marks[count]


def _marks(stream: Stream, count: int) -> Iterator[int]:
    sends = stream.sends
    carried = (
        (sends.carried(number) for number in range(count))
        if isinstance(sends, CleanSends)
        else ((send.message, send.protocol) for send in islice(sends.values(), count))
    )
    for message, protocol in carried:
        if (one := _mark(message, protocol)) is not None:
            yield one


def mark(send: SendSeen) -> int | None:
    """The beginning of what a send carried, without flags; None where too little was seen."""
    return _mark(send.message, send.protocol)


def _mark(message: ObservedMessage, protocol: Protocol | None) -> int | None:
    head = message.payload[: 2 * LOOKED_AT_BYTES]
    if message.missing and message.missing[0][0] < len(head):
        return None
    if protocol is Protocol.LL:
        head = _lines(head, LL_LINE_BYTES).reshape(-1, 4, 4)[:, ::2].reshape(-1)
    elif protocol is Protocol.LL128:
        head = _lines(head, LL128_LINE_BYTES)[:, :112].reshape(-1)
    data = head[:LOOKED_AT_BYTES].tobytes()
    return hash(data) if len(data) - data.count(0) >= LEAST_VALUES else None


def _lines(payload: NDArray[np.uint8], line_bytes: int) -> NDArray[np.uint8]:
    """[line, byte] those that are there whole."""
    return payload[: len(payload) // line_bytes * line_bytes].reshape(-1, line_bytes)


def _receiver(stream: Stream) -> tuple[int, ...] | None:
    return (stream.key.dest_qp,)


def _sender(stream: Stream) -> tuple[int, ...] | None:
    return None if stream.peer is None else (stream.peer.dest_qp,)


def _buffers(stream: Stream) -> tuple[int, ...] | None:
    addresses = [s.message.va for s in stream.sends.values() if s.message.va]
    return (min(addresses),) if addresses else None


def first_used(stream: Stream) -> tuple[int, ...]:
    """What orders connections by their first use; those of which nothing was seen come last."""
    return _used(stream) or (1 << 63,)


def _used(stream: Stream) -> tuple[int, ...] | None:
    columns = stream.columns
    seen = columns.wire_bytes != NOT_SEEN
    times, orders = columns.times_ns[seen], columns.orders[seen]
    if not times.size:
        return None  # of none of its sends anything was seen
    first = int(times.min())
    return first, int(orders[times == first].min())


_KINDS: Mapping[Entry, tuple[Sequence[Key], int]] = {
    CHANNELS_BY_NUMBER: ((_receiver, _sender), 1),
    CHANNELS_BY_USE: ((_used,), 1),
    CHANNELS_BY_BUFFERS: ((_buffers,), 2),
}
"""What orders connections, and how many such orders must agree; the likeliest first."""
