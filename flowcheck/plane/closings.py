"""Packets of plain writes whose first one was lost, placed by the write that closes them.

With adaptive routing a send is a plain write and an empty one behind it that tells its size
(NCCL_IB_ADAPTIVE_ROUTING, NCCL src/transport/net_ib.cc): so where the send begins is told by its
end, as for other sends by the immediate of their own last packet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from flowcheck.wire.nccl import immediate_sizes
from flowcheck.wire.seen import FlowKey, MessageSeen


def closed_by(
    messages: Sequence[MessageSeen],
    packets: Mapping[FlowKey, Sequence[int]],
    pmtu_bytes: Mapping[FlowKey, int],
) -> Iterator[MessageSeen]:
    """Messages of which some packets are there and nothing else, before the writes that close them.
    packets: {flow: PSNs of packets that no message has}, ascending."""
    of_flow: dict[FlowKey, list[MessageSeen]] = defaultdict(list)
    for message in messages:
        if message.flow in packets:
            of_flow[message.flow].append(message)
    for flow, own in of_flow.items():
        stop = None
        for message in sorted(own, key=lambda m: m.first_psn):
            if stop is not None and stop < message.first_psn and message.closes:
                start = _start(message, stop, pmtu_bytes[flow], packets[flow])
                if start is not None:
                    yield start
            stop = message.first_psn + message.packets


def _start(
    closing: MessageSeen, stop: int, pmtu_bytes: int, packets: Sequence[int]
) -> MessageSeen | None:
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
    return replace(
        closing,
        first_psn=first,
        packets=count,
        immediate=None,
        va=None,
        rkey=None,
        wire_bytes=size,
        inferred=True,
        payload=np.zeros(size, np.uint8),
        missing=((0, size),),
    )
