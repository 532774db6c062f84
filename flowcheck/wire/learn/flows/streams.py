"""From RDMA messages to NCCL sends: joined, numbered by all evidence, of a known protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.collectives.nccl_wire_format import MOST_RECEIVES, immediate_sizes
from flowcheck.wire.learn.flows.granted_buffers import NONE_GRANTED, GrantedBuffers
from flowcheck.wire.learn.flows.line_flags import Place, line_flag, out_of_step
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage, Range

SIZE_BYTES = 4
"""Of what the writer of grouped receives says of each."""
PSN_OF_START = 1 << 32
"""Unwrapped PSN of the first packet of a connection: NCCL starts every QP at PSN 0."""


@dataclass(slots=True, kw_only=True)
class SendSeen:
    """One send of NCCL. In the adaptive-routing form two messages are one send. It is told bit by
    bit while flows are sorted, and never changed afterwards."""

    message: ObservedMessage
    """Holds the payload, or stands in for it where only the closing write was seen."""
    wire_bytes: int
    first_psn: int
    stop_psn: int
    closed: bool
    """The message that ends the send was seen."""
    immediate: int | None = None
    """Of that message, as a big-endian word."""
    flag: int | None
    """LL or LL128 flag: step + 1, modulo 2**32."""
    granted: Protocol | None = None
    """Whose buffer it was written to, as far as clear-to-send messages tell."""
    protocol: Protocol | None = None
    """By the receive it was granted, else by its lines; None: nothing of its own tells."""
    number: int = -1


NOT_SEEN, ANY_CODE = -1, 255
"""Size of a send that was not seen, and protocol of one that does not tell it, in columns."""
NO_SIZE = np.int64(NOT_SEEN).tobytes()
"""As bytes of the column, which no other size has."""
PROTOCOLS = tuple(Protocol)
"""A protocol in columns is its place here."""
CODE_OF: dict[Protocol | None, int] = {p: code for code, p in enumerate(PROTOCOLS)}
CODE_OF[None] = ANY_CODE


class StreamTable:
    """Sends of a stream as columns, from the first one seen on."""

    __slots__ = ("first", "orders", "protocol_codes", "sizes", "times_ns", "torn", "wire_bytes")

    def __init__(self, sends: Mapping[int, SendSeen], stop: int) -> None:
        self.first = min(sends, default=stop)
        count = stop - self.first
        self.wire_bytes = np.full(count, NOT_SEEN, np.int64)
        self.protocol_codes = bytes((ANY_CODE,)) * count
        self.times_ns = np.zeros(count, np.int64)
        self.orders = np.zeros(count, np.int64)
        self.torn = np.zeros(count, np.bool_)
        """Some of it was not seen, or is not sure."""
        self.sizes = b""
        """`wire_bytes` as bytes."""
        if not sends:
            return
        at = np.fromiter(sends, np.int64, len(sends)) - self.first
        seen = sends.values()
        self.wire_bytes[at] = [send.wire_bytes for send in seen]
        protocols = np.full(count, ANY_CODE, np.uint8)
        protocols[at] = [CODE_OF[send.protocol] for send in seen]
        self.protocol_codes = protocols.tobytes()
        self.times_ns[at] = [send.message.first_ns for send in seen]
        self.orders[at] = [send.message.order for send in seen]
        self.torn[at] = [bool(s.message.missing or s.message.conflicts) for s in seen]
        self.sizes = self.wire_bytes.tobytes()

    @classmethod
    def of(
        cls,
        *,
        wire_bytes: NDArray[np.int64],
        protocol_codes: bytes,
        times_ns: NDArray[np.int64],
        orders: NDArray[np.int64],
    ) -> StreamTable:
        """Of sends from the first one on, none of which is torn."""
        made = cls({}, 0)
        made.wire_bytes, made.protocol_codes = wire_bytes, protocol_codes
        made.times_ns, made.orders = times_ns, orders
        made.torn = np.zeros(len(wire_bytes), np.bool_)
        made.sizes = wire_bytes.tobytes()
        return made

    @property
    def history(self) -> tuple[int, bytes]:
        """Equal for streams that sent the same sizes all along."""
        return self.first, self.sizes

    def seen_from(self, number: int) -> int:
        """Sends seen that lie at or after `number`."""
        return int(np.count_nonzero(self.wire_bytes[max(0, number - self.first) :] != NOT_SEEN))

    def span(self, number: int, count: int) -> tuple[slice, slice]:
        """(which of these columns, which of `count` sends from `number` on) lie in each other."""
        begin = max(number, self.first)
        end = max(begin, min(number + count, self.first + len(self.wire_bytes)))
        own = slice(begin - self.first, end - self.first)
        return own, slice(begin - number, end - number)


@dataclass(slots=True, kw_only=True)
class Stream:
    """The sends of one data flow by number; a number not there was not seen."""

    flow: ObservedFlow
    sends: Mapping[int, SendSeen]
    protocol: Protocol
    """Of most of its bytes; NCCL may change it from one collective to the next."""
    from_start: bool
    """Send 0 is the connection's first."""
    numbered_by: tuple[Finding, ...]
    problems: tuple[Finding, ...] = ()
    open_numbers: tuple[int, ...] = ()
    """Numbers behind gaps in which nothing told how many sends were lost."""
    peer: FlowKey | None = None
    tag: int | None = None
    """CTS tag: rank of the rank that writes here; None where no CTS was seen."""
    capacities_bytes: frozenset[int] = frozenset()
    """Of the receives granted; empty where no clear-to-send was seen."""
    pooled: bool = False
    """These are of point-to-point sends, as of `Grants.pooled`."""
    queue_pairs: tuple[FlowKey, ...] = ()
    """Flows its sends came on, the first one leading."""
    turns: tuple[FlowKey, ...] = ()
    """The same in the order in which they take sends, or pieces; () while nothing told it."""
    split: bool = False
    """A piece of each send on every one of them; else whole sends by turns."""
    stop: int = field(init=False)
    marks: dict[int, frozenset[int]] = field(default_factory=dict, repr=False, compare=False)
    """Beginnings of so many of the first sends, once they were looked at (flows/channels.py)."""
    looked_up: dict[tuple[int, ...], list[int | None] | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Chunks of a loop by how it was asked for: a search asks the same again and again."""

    def __post_init__(self) -> None:
        self.stop = max(self.sends, default=-1) + 1

    compared: dict[object, bool] = field(default_factory=dict, repr=False, compare=False)
    """By collective whether copies of it differ, of rings that this stream is the first of."""
    table: StreamTable | None = field(default=None, repr=False, compare=False)
    """The sends as columns, once they were asked for."""
    sizes_stated: frozenset[tuple[int, int]] | None = field(default=None, repr=False, compare=False)
    """`stated`, once it was asked for, or where each send is known to be one write with an
    immediate."""
    one_write_each: bool = False
    """Each send is one write with an immediate."""

    def with_sends(self, sends: Mapping[int, SendSeen], **changed: Any) -> Stream:
        """The same connection with these sends. changed: its other fields."""
        made: Stream = replace(self, sends=sends, table=None, sizes_stated=None, **changed)
        made.marks, made.looked_up, made.compared = {}, {}, {}
        return made

    def before(self, number: int) -> Stream:
        """What it carried before a send."""
        sends = {n: send for n, send in self.sends.items() if n < number}
        return self.with_sends(sends, open_numbers=())

    @property
    def stated(self) -> frozenset[tuple[int, int]]:
        """(immediate, wire bytes) of the sends whose immediate is not zero and whose size was
        seen."""
        if self.sizes_stated is None:
            self.sizes_stated = frozenset(
                (word, send.wire_bytes)
                for send in self.sends.values()
                if (word := send.message.immediate) and not send.message.length_inferred
            )
        return self.sizes_stated

    @property
    def columns(self) -> StreamTable:
        """The sends as columns."""
        if self.table is None:
            self.table = StreamTable(self.sends, self.stop)
        return self.table

    def protocol_at(self, number: int) -> Protocol | None:
        """Of a send that was seen and tells it."""
        send = self.sends.get(number)
        return send.protocol if send is not None else None

    @property
    def first(self) -> int:
        return min(self.sends, default=0)

    @property
    def whole(self) -> bool:
        """It was seen from the connection's start on, and no send is missing."""
        return self.from_start and len(self.sends) == self.stop

    @property
    def key(self) -> FlowKey:
        return self.flow.key


def one_behind_the_other(parts: Sequence[ObservedMessage]) -> ObservedMessage:
    """The first of these messages with the bytes of all."""
    starts = np.cumsum([0, *(part.wire_bytes for part in parts)]).tolist()
    return replace(
        parts[0],
        wire_bytes=starts.pop(),
        payload=np.concatenate([part.payload for part in parts]),
        missing=moved_ranges(starts, [part.missing for part in parts]),
        conflicts=moved_ranges(starts, [part.conflicts for part in parts]),
        others=(),
        first_ns=min(part.first_ns for part in parts),
    )


def moved_ranges(starts: Sequence[int], ranges: Sequence[Sequence[Range]]) -> tuple[Range, ...]:
    """[part] ranges of it as ranges of the whole. starts: [part] its first byte."""
    return tuple((a + at, b + at) for at, own in zip(starts, ranges, strict=True) for a, b in own)


def join_sends(
    messages: Sequence[ObservedMessage],
    pmtu_bytes: int = 0,
    buffers: GrantedBuffers = NONE_GRANTED,
) -> list[SendSeen]:
    """Sends of one flow, ascending PSN, not numbered. A plain write and the empty
    write-with-immediate that states its size are one send (NCCL_IB_ADAPTIVE_ROUTING). pmtu_bytes:
    of the flow's path, 0 where no message told; buffers: of its receiver."""
    sends: list[SendSeen] = []
    splits = any(m.closes_adaptive_send for m in messages)
    for message in sorted(messages, key=lambda m: m.first_psn):
        last = sends[-1] if sends else None
        if group := _sizes_of_group(message, sends):
            sends[-group:] = [replace(send, closed=True) for send in sends[-group:]]
            sends[-1] = replace(sends[-1], stop_psn=message.first_psn + 1)
            continue
        if message.closes_adaptive_send:
            sizes = immediate_sizes(message.immediate or 0)
            if last and not last.closed and last.stop_psn == message.first_psn:
                stop = message.first_psn + 1
                sends[-1] = replace(last, stop_psn=stop, closed=True, immediate=message.immediate)
            else:
                room = message.first_psn - last.stop_psn if last else 0
                sends.append(_headless(message, sizes, room, pmtu_bytes))
            continue
        granted = buffers.protocol_at(message.va, message.rkey)
        found = line_flag(message, granted)
        sends.append(
            SendSeen(
                message=message,
                wire_bytes=message.wire_bytes,
                first_psn=message.first_psn,
                stop_psn=message.first_psn + message.packets,
                closed=message.immediate is not None or not splits,
                immediate=message.immediate,
                flag=found[1] if found else None,
                granted=granted,
                protocol=granted or (found[0] if found else None),
            )
        )
    return sends


def unless_out_of_step(sends: Sequence[SendSeen], *, queue_pairs: int = 1) -> list[SendSeen]:
    """The sends, those without a flag whose flag the sends beside them contradict: it is data, as
    far as no clear-to-send says otherwise."""
    if all(send.flag is None for send in sends):
        return list(sends)
    wrong = out_of_step(
        [Place(send.flag, send.first_psn, send.stop_psn) for send in sends],
        from_start=bool(sends) and sends[0].first_psn == PSN_OF_START,
        queue_pairs=queue_pairs,
    )
    return [
        replace(send, flag=None, protocol=send.granted) if i in wrong else send
        for i, send in enumerate(sends)
    ]


def _sizes_of_group(message: ObservedMessage, sends: Sequence[SendSeen]) -> int:
    """How many plain writes before it this one ends by telling their sizes, as grouped receives
    are ended since NCCL 2.20 (NCCL_NET_IB_MAX_RECVS); 0: it is data."""
    count, rest = divmod(message.wire_bytes, SIZE_BYTES)
    if message.immediate is None or rest or not 2 <= count <= MOST_RECEIVES or message.missing:
        return 0
    own = sends[-count:]
    plain = len(own) == count and all(s.message.immediate is None for s in own)
    told = message.payload.view("<u4").tolist()
    return count if plain and told == [send.wire_bytes for send in own] else 0


def _headless(
    message: ObservedMessage, sizes: Sequence[int], room_packets: int, pmtu_bytes: int
) -> SendSeen:
    """Only the closing write of a send was seen: its size is known, none of its bytes, and so is
    how many of the packets missing before it were its own."""
    packets = {size: -(-size // pmtu_bytes) if pmtu_bytes else 0 for size in sizes}
    size = min(sizes, key=lambda size: (packets[size] > room_packets, size))
    before = packets[size] if packets[size] <= room_packets else 0
    lost = replace(
        message,
        wire_bytes=size,
        payload=np.zeros(size, np.uint8),
        missing=((0, size),),
        length_inferred=True,
    )
    return SendSeen(
        message=lost,
        wire_bytes=size,
        first_psn=message.first_psn - before,
        stop_psn=message.first_psn + 1,
        closed=True,
        immediate=message.immediate,
        flag=None,
    )
