"""Start-up messages of which bytes were not captured, or of which copies differ: they are sent
once, and no other one says the same."""

from __future__ import annotations

from flowcheck.findings.catalog.job_learning import (
    PLAN_COPIES_DIFFER,
    PLAN_LACKS_BYTES,
    SHAPES_COPIES_DIFFER,
    SHAPES_LACK_BYTES,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.cuts.place import paint
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.started import count_runs
from flowcheck.wire.learn.trainer.content import content_of
from flowcheck.wire.learn.trainer.habits import COUNT, ORDER


def count_is_lost(communicator: Communicator) -> bool:
    """Whether a message with the count of parameters was not captured, of which another rank's
    tells how many there are."""
    return any(cut.op.meaning == COUNT and cut.lost for cut in communicator.cuts.found)


def shapes_open(communicator: Communicator) -> Finding | None:
    """Why the shapes of parameters are unknown that a start-up counted: of what was sent next,
    bytes are missing, or copies differ. None: it is not so."""
    streams = (s for edge in communicator.cuts.ring.edges for s in edge.streams if s.from_start)
    found = (_why_open(s, at, count) for s in streams for at, _, count in count_runs(s))
    return next(filter(None, found), None)


def _why_open(stream: Stream, at: int, parameters: int) -> Finding | None:
    send = stream.sends.get(at)
    if stream.stop > at and (send is None or send.message.missing):
        return SHAPES_LACK_BYTES(parameters=parameters)
    if send is not None and send.message.conflicts:
        return SHAPES_COPIES_DIFFER(parameters=parameters)
    return None


def plan_open(communicator: Communicator) -> Finding | None:
    """Why the order of parameters in buckets is unknown though it was sent, and more behind it:
    bytes of it are missing, or copies differ. None: it is not so."""
    found = communicator.cuts.found
    if communicator.habits.order or communicator.habits.parameters < 2:
        return None
    for cut in found[:-1]:
        if cut.op.meaning == ORDER and content_of(cut, communicator.ring) is None:
            canvas, _, _ = paint(cut, communicator.ring)
            differ = canvas.torn or canvas.conflicts
            return (PLAN_COPIES_DIFFER if differ else PLAN_LACKS_BYTES)()
    return None
