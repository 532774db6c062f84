"""Put the bytes of final copies where they belong, and say which are there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives import nccl_wire_format
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    LL_LINE_BYTES,
    CollectiveKind,
    Protocol,
    wire_bytes,
)
from flowcheck.wire.collectives.ring_schedule import Send, hops_per_loop, sends_per_chunk
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.line_flags import flag_of
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.learn.reading import DifferingBytes, Placement, Put
from flowcheck.wire.traffic.observed_messages import Range

ELEMENT_BYTES_MAX = 8
"""Of every dtype that is broadcast but complex128: two of its halves are told apart."""


KEPT_BYTES_MAX = 1 << 18
"""Of a result both copies of so many bytes that differ are kept, to the end of a send. A choice: as
many as of a gradient."""


@dataclass(slots=True)
class Canvas:
    """A result being put together; two copies of a byte must be equal."""

    size_bytes: int
    result: NDArray[np.uint8] = field(init=False)
    covered: NDArray[np.bool_] = field(init=False)
    disputed: NDArray[np.bool_] = field(init=False)
    """Bytes of which two final copies differ."""
    conflicts: int = 0
    compared: int = 0
    """Bytes of which two copies were seen."""
    torn: int = 0
    """Bytes of one message that mirror points or repeats gave differently; none is believed."""
    differing: list[DifferingBytes] = field(default_factory=list)
    """Both copies of these, where they were kept, of the first KEPT_BYTES_MAX."""

    def __post_init__(self) -> None:
        self.result = np.zeros(self.size_bytes, np.uint8)
        self.covered = np.zeros(self.size_bytes, np.bool_)
        self.disputed = np.zeros(self.size_bytes, np.bool_)

    def put(self, start: int, data: NDArray[np.uint8], seen: NDArray[np.bool_]) -> int:
        """Place `data` where `seen`; returns the bytes that contradict what is there. A byte
        that contradicts stays as it was and spoils completeness, it never wins."""
        stop = start + len(data)
        there, result = self.covered[start:stop], self.result[start:stop]
        if seen.all():
            if not there.any():
                result[:] = data
                there[:] = True
                return 0
            if there.all() and np.array_equal(result, data):
                self.compared += len(data)
                return 0
        both = there & seen
        differ = both & (result != data)
        differs = int(differ.sum())
        self.compared += int(both.sum())
        if differs:  # else its pages stay untouched, and take no memory
            self.disputed[start:stop] |= differ
        fresh = seen & ~there
        result[fresh] = data[fresh]
        there |= seen
        self.conflicts += differs
        return differs

    @property
    def whole(self) -> bool:
        """All of it was seen, and no copy contradicts another."""
        return not self.conflicts and bool(self.covered.all())

    def agrees(self, start: int, data: NDArray[np.uint8], seen: NDArray[np.bool_]) -> bool:
        """No byte of `data` contradicts what is there."""
        part = slice(start, start + len(data))
        return not (self.covered[part] & seen & (self.result[part] != data)).any()

    def clear(self) -> None:
        """Forget everything: none of it is sure to belong here."""
        self.result[:] = 0
        self.covered[:] = False

    def end_where_copies_differ(self, grain: int) -> None:
        """What fills the last line or group up may be another thing on every hop: a tensor of a
        size nothing tells ends before the first byte that is."""
        tail = (self.size_bytes - 1) // grain * grain
        differ = np.flatnonzero(self.disputed[tail:])
        if len(differ):
            self.conflicts -= len(differ)
            self.disputed[tail:] = False
            self.covered[tail + int(differ[0]) :] = False

    def missing(self) -> tuple[Range, ...]:
        """Ranges no final copy covers."""
        return () if self.covered.all() else ranges_of(~self.covered)


def ranges_of(mask: NDArray[np.bool_]) -> tuple[Range, ...]:
    """Half-open ranges where `mask` is true."""
    if not mask.any():
        return ()
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))


def unpacked(
    send: SendSeen, protocol: Protocol, data_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """([data_bytes] data, [data_bytes] was it captured?) of one send. LL lines whose flag is not
    the message's, and bytes of which two copies differ, are not counted as captured."""
    payload = send.message.payload
    if len(payload) == 0:
        return np.zeros(data_bytes, np.uint8), np.zeros(data_bytes, np.bool_)
    linear = send.message.linear_ll128
    data = nccl_wire_format.unpack(protocol, payload, data_bytes, linear=linear)
    stale = _stale_lines(send, payload) if protocol is Protocol.LL else None
    if stale is None and not send.message.missing and not send.message.conflicts:
        return data, np.ones(data_bytes, np.bool_)
    mask = np.ones(len(payload), np.bool_)
    for start, stop in (*send.message.missing, *send.message.conflicts):
        mask[start:stop] = False
    if stale is not None:
        mask[: len(stale) * LL_LINE_BYTES].reshape(-1, LL_LINE_BYTES)[stale] = False
    whole = nccl_wire_format.unpack(protocol, mask.astype(np.uint8), data_bytes, linear=linear)
    seen = whole.astype(np.bool_)
    return data, seen


def _stale_lines(send: SendSeen, payload: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """[line] its flag is not the message's; None: every one has it. payload: some of the send's."""
    flag = flag_of(send.number) if send.flag is None else send.flag
    stale: NDArray[np.bool_] = (nccl_wire_format.ll_flags(payload) != flag).any(axis=1)
    if stale.any() and send.message.others:  # of a line with equal data one copy's flag is enough
        stale &= (nccl_wire_format.ll_flags(_other_copy(send, payload)) != flag).any(axis=1)
    return stale if stale.any() else None


def _other_copy(send: SendSeen, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`payload` with what another copy of the message has."""
    other = payload.copy()
    for start, values in send.message.others:
        other[start : start + len(values)] = np.frombuffer(values, np.uint8)
    return other


def _torn_bytes(send: SendSeen, protocol: Protocol, data_bytes: int) -> int:
    """Bytes of data, not of flags, of which two copies of one message differ."""
    message = send.message
    if not message.conflicts:
        return 0
    unlike = np.zeros(len(message.payload), np.uint8)
    for start, stop in message.conflicts:
        unlike[start:stop] = 1
    linear = message.linear_ll128
    return int(nccl_wire_format.unpack(protocol, unlike, data_bytes, linear=linear).sum())


def result_bytes(cut: Cut, ring: Ring) -> int:
    """Of what every rank holds afterwards."""
    return cut.op.work_bytes * (ring.ranks if cut.op.kind.in_blocks else 1)


class Placements(Sequence[Placement]):
    """Every send of a collective on every mirrored connection, put down once somebody asks."""

    __slots__ = ("_cut", "_made", "_ring")

    def __init__(self, cut: Cut, ring: Ring) -> None:
        self._cut, self._ring = cut, ring
        self._made: tuple[Placement, ...] | None = None

    @property
    def _all(self) -> tuple[Placement, ...]:
        if self._made is None:
            self._made = _placements(self._cut, self._ring)
        return self._made

    def __len__(self) -> int:
        return sum(len(sends) for _, _, sends in self._cut.rows(self._ring))

    @overload
    def __getitem__(self, at: int) -> Placement: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Placement, ...]: ...
    def __getitem__(self, at: int | slice) -> Placement | tuple[Placement, ...]:
        return self._all[at]

    def __iter__(self) -> Iterator[Placement]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def _placements(cut: Cut, ring: Ring) -> tuple[Placement, ...]:
    found = []
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        found.append(
            Placement(
                flow=stream.key,
                number=number,
                first_psn=seen.message.first_psn if seen else None,
                protocol=cut.op.protocol,
                wire_bytes=send.wire_bytes,
                start_byte=send.start_byte,
                data_bytes=send.data_bytes,
                final=send.final,
            )
        )
    return tuple(found)


def seen_once(cut: Cut, ring: Ring) -> bool:
    """Every byte of the result is in a final copy that was seen whole, by sizes and gaps alone."""
    if cut.lost:
        return False
    spans = [np.zeros((2, 0), np.int64)]
    for stream, number, table in cut.rows(ring):
        own, _ = stream.columns.span(number, len(table))
        if stream.columns.torn[own].any():
            return False
        final = table.final & (table.data_bytes > 0)
        starts = table.start_bytes[final]
        spans.append(np.stack([starts, starts + table.data_bytes[final]]))
    begins, ends = np.concatenate(spans, axis=1)
    order = np.argsort(begins)
    reached = np.maximum.accumulate(ends[order])
    if not len(order) or (begins[order][1:] > reached[:-1]).any():
        return False
    return bool(begins[order[0]] == 0 and reached[-1] == result_bytes(cut, ring))


def is_added(send: Send, cut: Cut, ring: Ring) -> bool:
    """It is of the ring step that a patched trainer adds to each loop."""
    if cut.op.kind is not CollectiveKind.ALL_REDUCE or not ring.extra_sends:
        return False
    slices = sends_per_chunk(cut.op.kind, cut.op.protocol)
    own, all_hops = (hops_per_loop(cut.op.kind, ring.ranks, n) for n in (0, ring.extra_sends))
    return send.send // slices % all_hops >= own


def paint(
    cut: Cut, ring: Ring, *, added: bool = True
) -> tuple[Canvas, tuple[Stream, ...], int | None]:
    """(the result as far as it was seen, streams that gave final bytes, first_ns; None where no
    send was seen). `added`: the ring step that patched trainers add is believed."""
    canvas = Canvas(result_bytes(cut, ring))
    sources: dict[int, Stream] = {}
    first_ns: int | None = None
    if ring.sounding and cut.op.kind is CollectiveKind.ALL_REDUCE:
        return canvas, (), None  # which chunk a send holds is not told
    for stream, number, send in cut.sends(ring):
        seen = stream.sends.get(number)
        if seen is None:
            continue
        at = seen.message.first_ns
        first_ns = at if first_ns is None else min(first_ns, at)
        if not send.final or not send.data_bytes or (is_added(send, cut, ring) and not added):
            continue
        data, mask = unpacked(seen, cut.op.protocol, send.data_bytes)
        canvas.put(send.start_byte, data, mask)
        canvas.torn += _torn_bytes(seen, cut.op.protocol, send.data_bytes)
        if seen.message.others and sum(len(o.first) for o in canvas.differing) < KEPT_BYTES_MAX:
            canvas.differing += _both_copies(seen, cut.op.protocol, send, data)
        if mask.any():
            sources.setdefault(id(stream), stream)
    if _end_is_open(cut):
        canvas.end_where_copies_differ(GRAIN_BYTES[cut.op.protocol])
    return canvas, tuple(sources.values()), first_ns


def _both_copies(
    seen: SendSeen, protocol: Protocol, send: Send, data: NDArray[np.uint8]
) -> list[DifferingBytes]:
    """What another copy of a send's message makes of its data."""
    payload = _other_copy(seen, seen.message.payload)
    linear = seen.message.linear_ll128
    other = nccl_wire_format.unpack(protocol, payload, send.data_bytes, linear=linear)
    lead = send.start_byte % ELEMENT_BYTES_MAX
    blocks = np.concatenate([np.zeros(lead, np.bool_), data != other])
    blocks = np.pad(blocks, (0, -len(blocks) % ELEMENT_BYTES_MAX))
    unlike = blocks.reshape(-1, ELEMENT_BYTES_MAX).any(axis=1).repeat(ELEMENT_BYTES_MAX)[lead:]
    return [
        DifferingBytes(send.start_byte + a, data[a:b].tobytes(), other[a:b].tobytes())
        for a, b in ranges_of(unlike[: len(data)])
    ]


def put_together(cut: Cut, ring: Ring, put: Put) -> bool | None:
    """Gives the result piece by piece, of one whose sends are final and were seen whole, each copy
    of a range cut alike: one pass over its bytes and one over its other copies, where `paint` makes
    fifteen. Returns whether the copies are alike; None: it is not so simple, and what was given is
    not the result."""
    first: dict[int, tuple[SendSeen, int]] = {}
    alike = True
    for stream, number, send in cut.sends(ring):
        if not send.final or not send.data_bytes:
            continue
        seen = stream.sends.get(number)
        data = None if seen is None else head_of(seen, cut.op.protocol, send.data_bytes)
        if seen is None or data is None:
            return None
        if send.start_byte not in first:
            first[send.start_byte] = seen, send.data_bytes
            put(send.start_byte, data)
            continue
        before, size = first[send.start_byte]
        if size != send.data_bytes:
            return None
        other = head_of(before, cut.op.protocol, size)
        alike = alike and other is not None and np.array_equal(other, data)
    reached = 0
    for start in sorted(first):
        if start != reached:
            return None
        reached += first[start][1]
    return alike if reached == result_bytes(cut, ring) else None


def sources_of(cut: Cut, ring: Ring) -> bytes:
    """Digest of the sends that `put_together` takes the result from, and where each lies in it; of
    one result it grows with the sends, not with their bytes."""
    told = hashlib.sha256(f"{cut.op.protocol} {result_bytes(cut, ring)}".encode())
    for stream, number, table in cut.rows(ring):
        seen = (stream.sends.get(number + i) for i in range(len(table)))
        named = [None if send is None else _name(send) for send in seen]
        told.update(repr((stream.key, number, named)).encode())
        for column in (table.start_bytes, table.data_bytes, table.final):
            told.update(column.tobytes())
    return told.digest()


def _name(send: SendSeen) -> tuple[object, ...]:
    """What it is among the packets of its flow, and what of it is missing or doubted."""
    message = send.message
    spoilt = message.missing, message.conflicts, message.linear_ll128
    return message.flow, message.first_psn, send.wire_bytes, send.flag, *spoilt


def contradictions(cuts: Sequence[Cut], ring: Ring) -> int:
    """Collectives of which two final copies differ."""
    if len(ring.edges) < 2 and not ring.extra_sends:
        return 0  # Nobody sends a second copy.
    return sum(copies_differ(cut, ring) for cut in cuts)


HEAD_BYTES = 3840
"""Data at the beginning of a send that stands for all of it: two groups of LL128. What is read in a
wrong way holds partial sums in the place of sums, which differ in their first numbers already."""
MOST_HEADS = 16
"""Places of a result of which copies are compared, evenly. A choice: in a wrong reading most of
them differ, and a collective of a large model has ten thousands."""
WHOLE_BYTES = 1 << 16
"""A result of at most so many bytes is compared whole. A choice: it costs as much as some heads."""


def copies_differ(cut: Cut, ring: Ring) -> bool:
    """Two final copies differ: of a large result, where sends begin. Grows with sends, not with
    bytes, and is looked at once, however many readings have this collective."""
    if result_bytes(cut, ring) <= WHOLE_BYTES or _end_is_open(cut):
        return paint(cut, ring)[0].conflicts > 0
    known = ring.edges[0].streams[0].compared
    name = (cut.op.protocol, cut.starts, cut.channels, cut.schedules, _names(ring))
    if name not in known:
        known[name] = _heads_differ(cut, ring)
    return known[name]


def _names(ring: Ring) -> tuple[int, ...]:
    """Its connections."""
    return tuple(id(stream) for edge in ring.edges for stream in edge.streams)


def _heads_differ(cut: Cut, ring: Ring) -> bool:
    """As `copies_differ`, of sends that begin with the same byte of the result."""
    rows = [
        (stream, number, table, np.flatnonzero(table.final & (table.data_bytes > 0)))
        for stream, number, table in cut.rows(ring)
    ]
    if not rows:
        return False
    starts, inverse, times = np.unique(
        np.concatenate([table.start_bytes[at] for _, _, table, at in rows]),
        return_inverse=True,
        return_counts=True,
    )
    compared = np.zeros(len(starts), np.bool_)
    compared[_evenly(np.flatnonzero(times > 1), MOST_HEADS)] = True
    twice = np.split(compared[inverse], np.cumsum([len(at) for *_, at in rows])[:-1])
    heads: dict[int, NDArray[np.uint8]] = {}
    for (stream, number, table, at), several in zip(rows, twice, strict=True):
        own = at[several]
        places = zip(
            own.tolist(),
            table.start_bytes[own].tolist(),
            np.minimum(table.data_bytes[own], HEAD_BYTES).tolist(),
            strict=True,
        )
        for i, start, size in places:
            seen = stream.sends.get(number + i)
            head = None if seen is None else head_of(seen, cut.op.protocol, size)
            if head is None:
                continue
            other = heads.setdefault(start, head)
            both = min(len(head), len(other))
            if other is not head and head[:both].tobytes() != other[:both].tobytes():
                return True
    return False


def _evenly(places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most so many of them, the first and the last among these."""
    if len(places) <= most:
        return places
    return places[np.linspace(0, len(places) - 1, most).astype(np.intp)]


def head_of(
    send: SendSeen, protocol: Protocol, size: int, start: int = 0
) -> NDArray[np.uint8] | None:
    """[size] its first bytes from wire byte `start` on, where a line or group begins; None where
    not all of them are sure."""
    message = send.message
    stop = start + wire_bytes(protocol, size)
    if stop > len(message.payload):
        return None
    if any(a < stop and b > start for a, b in (*message.missing, *message.conflicts)):
        return None
    payload = message.payload[start:stop]
    if protocol is Protocol.LL and _stale_lines(send, payload) is not None:
        return None
    return nccl_wire_format.unpack(protocol, payload, size, linear=message.linear_ll128)


def _end_is_open(cut: Cut) -> bool:
    """Of a broadcast in lines of a size that only the wire tells: where its copies begin to differ
    it ends."""
    broadcast = cut.op.kind is CollectiveKind.BROADCAST
    return broadcast and cut.op.sized_by_wire and GRAIN_BYTES[cut.op.protocol] > 1
