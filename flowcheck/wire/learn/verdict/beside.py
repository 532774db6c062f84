"""Connections beside those of a collective: may they have carried a part of it?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.learn.search.communicators import Communicator


def passed_over(cut: Cut, communicator: Communicator) -> bool:
    """A connection that has no part in it goes on with a send that no collective holds, before the
    next collective begins."""
    ring, found = communicator.ring, communicator.cuts.found
    if not communicator.cuts.unread:
        return False
    held = {(id(stream), n) for other in found for stream, n, _ in other.sends(ring)}
    behind = next((later for one, later in pairwise(found) if one is cut), None)
    begins = [
        stream.sends[n].message.first_ns
        for stream, n, _ in (behind.sends(ring) if behind is not None else ())
        if n in stream.sends
    ]
    return any(
        (id(stream), send.number) not in held
        and (not begins or send.message.first_ns < min(begins))
        for stream, send in _next_of_idle(cut, ring)
    )


def _next_of_idle(cut: Cut, ring: Ring) -> Iterator[tuple[Stream, SendSeen]]:
    """Of each connection that has no part in it: what it sends next."""
    for edge, at, names, schedule in zip(
        ring.edges, cut.starts, cut.channels, cut.schedules, strict=True
    ):
        for stream, number, channel in zip(edge.streams, at, names, strict=True):
            if (channel is None or not schedule[channel]) and number in stream.sends:
                yield stream, stream.sends[number]
