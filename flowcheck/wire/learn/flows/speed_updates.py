"""Writes between clear-to-send messages by which a receiver tells how fast its links are.

From 2.31 on, where NCCL_IB_EVENT_BASED_LB is 1, a receiver whose link changes its speed writes 32
bytes to its sender, on the first queue pair of the connection, the way that clear-to-send messages
go: a counter of 8 bytes, then speeds of 16 bits (NCCL src/transport/net_ib/p2p.cc, common.h). They
are as long as half an entry of that release, and as an entry of releases up to 2.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flowcheck.wire.traffic.observed_messages import ObservedMessage

UPDATE_BYTES = 32
MOST_UPDATES = 1 << 16
"""That a connection may have sent. A choice: above any number of times that a link changes its
speed; a larger first word is no counter."""
COUNTER_BYTES = 8


def without_speed_updates(
    messages: Sequence[ObservedMessage],
) -> tuple[Sequence[ObservedMessage], Sequence[ObservedMessage]]:
    """(the others, speed updates), each in order. All of one connection lie at one place, which
    none of the others writes to, and count up; else there are none."""
    updates = [message for message in messages if message.wire_bytes == UPDATE_BYTES]
    others = [message for message in messages if message.wire_bytes != UPDATE_BYTES]
    counts = [int.from_bytes(m.payload[:COUNTER_BYTES].tobytes(), "little") for m in updates]
    places = {message.va for message in updates}
    sound = (
        len(places) == 1
        and places.isdisjoint(message.va for message in others)
        and all(0 < count <= MOST_UPDATES for count in counts)
        and all(one < two for one, two in pairwise(counts))
    )
    return (others, updates) if sound else (messages, ())
