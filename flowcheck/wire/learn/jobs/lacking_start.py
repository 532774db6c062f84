"""Start-up messages of which bytes were not captured: they are sent once, and no other one says the
same."""

from __future__ import annotations

from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.started import count_runs
from flowcheck.wire.learn.trainer.content import content_of
from flowcheck.wire.learn.trainer.habits import COUNT, ORDER


def count_is_lost(communicator: Communicator) -> bool:
    """Whether a message with the count of parameters was not captured, of which another rank's
    tells how many there are."""
    return any(cut.op.meaning == COUNT and cut.lost for cut in communicator.cuts.found)


def shapes_lack_bytes(communicator: Communicator) -> int:
    """How many parameters a start-up counted, if of what was sent next, their shapes, bytes are
    missing; 0: it is not so."""
    streams = (s for edge in communicator.cuts.ring.edges for s in edge.streams if s.from_start)
    return next((count for s in streams for at, _, count in count_runs(s) if _lacks(s, at)), 0)


def _lacks(stream: Stream, at: int) -> bool:
    send = stream.sends.get(at)
    return stream.stop > at and (send is None or bool(send.message.missing))


def plan_lacks_bytes(communicator: Communicator) -> bool:
    """Whether the order of parameters in buckets was sent, and bytes of it are missing while more
    came behind it."""
    found = communicator.cuts.found
    if communicator.habits.order or communicator.habits.parameters < 2:
        return False
    return any(
        cut.op.meaning == ORDER and content_of(cut, communicator.ring) is None for cut in found[:-1]
    )
