"""Recovers RDMA writes whose first packet was lost, from the closing write or from the messages
around them.

With adaptive routing a send is a plain write and an empty one behind it that tells its size
(NCCL_IB_ADAPTIVE_ROUTING, NCCL src/transport/net_ib.cc): so where the send begins is told by its
end, as for other sends by the immediate of their own last packet. The pieces of a send that was
split over queue pairs state the size of all of it (NCCL_IB_SPLIT_DATA_ON_QPS): of these one lies
where messages before and behind it leave just the packets of a piece that was seen elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage, Range

PSN_OF_START = 1 << 32
"""Unwrapped PSN of the first packet of a queue pair: NCCL starts every one at PSN 0."""
MOST_PACKETS = 1 << 16
"""Of a piece: 16 MiB of the smallest path MTU, four times NCCL's largest chunk (NCCL_BUFFSIZE)."""


def with_recovered_starts(
    messages: Sequence[ObservedMessage],
    packets: Mapping[FlowKey, Mapping[int, int]],
    pmtu_bytes: Mapping[FlowKey, int],
) -> list[ObservedMessage]:
    """The messages, and those beside them of which some packets are there and no start.

    packets: {flow: {PSN of a packet that no message has: its bytes}}, ascending.
    """
    of_flow: dict[FlowKey, list[ObservedMessage]] = defaultdict(list)
    for message in messages:
        of_flow[message.flow].append(message)
    pieces: dict[tuple[str, str], set[int]] = defaultdict(set)
    for flow, own in of_flow.items():
        own.sort(key=lambda message: message.first_psn)
        pieces[flow.source, flow.destination] |= _pieces(own)
    found = []
    for flow, own in of_flow.items():
        sizes = pieces[flow.source, flow.destination]
        if sizes and own[0].length_inferred:
            own[0] = _from_start(own[0], sizes, pmtu_bytes[flow])
        found += own
        left = packets.get(flow)
        for before, message in pairwise(own) if left else ():
            stop = before.first_psn + before.packets
            if stop < message.first_psn and sizes:
                start = _piece(message, stop, pmtu_bytes[flow], left or {}, sizes)
            elif stop < message.first_psn and message.closes_adaptive_send:
                start = _start(message, stop, pmtu_bytes[flow], list(left or ()))
            else:
                start = None
            if start is not None:
                found.append(start)
    return sorted(found, key=lambda message: message.time)


def _pieces(messages: Sequence[ObservedMessage]) -> set[int]:
    """Sizes of the pieces seen on a queue pair that carries such; empty: it does not. Other queue
    pairs of the same ends carry pieces as large."""
    sizes: set[int] = set()
    split = False
    for before, message in pairwise((messages[0], *messages)):
        own = before if message.closes_adaptive_send else message
        if own.wire_bytes and not own.length_inferred:
            sizes.add(own.wire_bytes)
            word = message.immediate
            split = split or bool(word and own.wire_bytes not in immediate_sizes(word))
    return sizes if split else set()


def _from_start(
    message: ObservedMessage, sizes: Collection[int], pmtu_bytes: int
) -> ObservedMessage:
    """The first message of a queue pair, its size told by the immediate, as the piece that begins
    with PSN 0, if that is of a size known: the immediate is that of all pieces."""
    cut = PSN_OF_START - message.first_psn
    size = message.wire_bytes - cut * pmtu_bytes
    if not 0 < cut < message.packets or size not in sizes:
        return message
    behind = message.wire_bytes - size
    return replace(
        message,
        first_psn=PSN_OF_START,
        packets=message.packets - cut,
        wire_bytes=size,
        payload=message.payload[behind:],
        missing=_moved(message.missing, behind),
        conflicts=_moved(message.conflicts, behind),
        others=(),
    )


def _moved(ranges: Sequence[Range], by: int) -> tuple[Range, ...]:
    return tuple((max(start - by, 0), stop - by) for start, stop in ranges if stop > by)


def _piece(
    behind: ObservedMessage,
    stop: int,
    pmtu_bytes: int,
    packets: Mapping[int, int],
    sizes: Collection[int],
) -> ObservedMessage | None:
    """What lies between `stop` and `behind`, if that is one piece of a size known: its last packet
    was seen, and none before it is the shorter one that ends a message."""
    last = packets.get(behind.first_psn - 1)
    count = behind.first_psn - stop
    if last is None or not pmtu_bytes or count > MOST_PACKETS:
        return None
    size = (count - 1) * pmtu_bytes + last
    whole = all(
        packets.get(psn, pmtu_bytes) == pmtu_bytes for psn in range(stop, behind.first_psn - 1)
    )
    return _headless(behind, stop, count, size) if whole and size in sizes else None


def _start(
    closing: ObservedMessage, stop: int, pmtu_bytes: int, packets: Sequence[int]
) -> ObservedMessage | None:
    """The write before `closing`, where the size it tells leaves room for it behind `stop` in one
    byte order alone, and a packet of it is there."""
    assert closing.immediate is not None
    sizes = set(immediate_sizes(closing.immediate))
    room = closing.first_psn - stop
    fits = [size for size in sizes if 0 < -(-size // max(pmtu_bytes, 1)) <= room]
    if len(fits) != 1 or not pmtu_bytes:
        return None
    [size] = fits
    count = -(-size // pmtu_bytes)
    first = closing.first_psn - count
    at = bisect_left(packets, first)
    if at == len(packets) or packets[at] >= closing.first_psn:
        return None
    return _headless(closing, first, count, size)


def _headless(near: ObservedMessage, first_psn: int, packets: int, size: int) -> ObservedMessage:
    """A message of which nothing is there yet, of the flow of `near`."""
    return replace(
        near,
        first_psn=first_psn,
        packets=packets,
        number=None,
        psn_counted=False,
        immediate=None,
        va=None,
        rkey=None,
        wire_bytes=size,
        length_inferred=True,
        payload=np.zeros(size, np.uint8),
        missing=((0, size),),
    )
