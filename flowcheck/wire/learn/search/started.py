"""Which of many rings a start-up bears out, before any is searched to its end.

Where hosts and tags mislead, the right ring is one guess among hundreds, and each of the others may
lose itself in broadcasts of any size. A count of parameters, their shapes, as many weights and a
bucket of as many gradients, one behind the other, are what no wrong ring shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    Protocol,
    data_bytes_of,
    wire_bytes,
)
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.ddp_startup.parameter_shapes import MOST_DIMENSIONS
from flowcheck.wire.learn.cuts.cut import Purse, cut_stream
from flowcheck.wire.learn.cuts.place import unpacked
from flowcheck.wire.learn.cuts.totals import full_chunk
from flowcheck.wire.learn.flows.counted import count_slices
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import SendSeen, Stream
from flowcheck.wire.learn.trainer.content import SLACK_BYTES
from flowcheck.wire.learn.trainer.grammar import Trainer
from flowcheck.wire.learn.trainer.habits import COUNT_BYTES, Habits

MOST_STEPS = 24
MOST_TRIED = 80
"""Steps of the search, and collectives laid over the sends, for the first few of them."""
TRIED_EACH = 2
"""More of these for each broadcast that weights are known to come in."""
MOST_SHAPE_BYTES = 2 * 8 * MOST_DIMENSIONS
"""Of sizes and strides of one parameter: a larger list is none, and what it is need not be read."""
SHARE = 2
"""One of so many parts of what may be spent goes into looking for them."""


def starting_up(guesses: Sequence[Ring], purse: Purse | None) -> list[Ring]:
    """Those of the guesses that a trainer's start-up bears out, in the order given; where that is
    the first one of all, no other is asked."""
    budget = None if purse is None else purse.budget
    if not guesses or _begins(guesses[0], Purse(MOST_TRIED, budget)):
        return list(guesses[:1])
    if not counts_seen(stream for edge in guesses[0].edges for stream in edge.streams):
        return []
    least = 0 if purse is None else purse.left - purse.left // SHARE
    begun: list[Ring] = []
    for ring in guesses[1:]:
        left = Purse(MOST_TRIED, budget)
        if purse is not None and purse.left <= least:
            break
        if _begins(ring, left):
            begun.append(ring)
        if purse is not None:
            purse.left -= MOST_TRIED - max(left.left, 0)
    return begun


def _begins(ring: Ring, purse: Purse) -> bool:
    told = _read(ring, MOST_STEPS, purse)
    pieces = len(told.pieces) if told.sent and not told.reduced else 0
    if pieces:  # weights of a large model come in many broadcasts
        more = Purse(MOST_TRIED + TRIED_EACH * pieces, purse.budget)
        told = _read(ring, MOST_STEPS + pieces, more)
    return bool(told.reduced)


def _read(ring: Ring, steps: int, purse: Purse) -> Habits:
    """What the first few collectives tell."""
    trainer = Trainer()
    cuts = cut_stream(ring, trainer, effort=(steps, 0), purse=purse, in_order=True)
    return trainer.habits(ring, cuts.found)


MOST_BEFORE = 256
"""Sends of the trainer's own that are passed over, on each connection, in search of a start-up: a
barrier or an exchange of names is a few each."""


def ranks_started(streams: Iterable[Stream]) -> tuple[int, ...]:
    """How many ranks the start-ups of DDP have that begin on these connections, by content: every
    rank but one passes on the count of its parameters, and behind these rank 0's list of their
    shapes, which that many parameters give. (): none is seen whole.

    torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes.
    """
    found = {ranks for stream in streams if stream.from_start for ranks in _starts(stream)}
    return tuple(sorted(found))


def _starts(stream: Stream) -> Iterator[int]:
    for at, run, count in count_runs(stream):
        if _shapes_follow(stream, at, count):
            yield run + 1
            return


def counts_seen(streams: Iterable[Stream]) -> bool:
    """A connection passed on what may be counts of parameters, or its start was not seen."""
    return any(not stream.from_start or any(count_runs(stream)) for stream in streams)


def count_runs(stream: Stream) -> Iterator[tuple[int, int, int]]:
    """(the send behind it, ranks less one, parameters) of each run of equal counts."""
    at = 0
    while at < min(stream.stop, MOST_BEFORE):
        protocol = stream.protocol_at(at) or stream.protocol
        slices = count_slices(stream, at, protocol)
        run, count = _counts(stream, at, protocol, slices)
        at += max(1, run * slices)
        if run:
            yield at, run, count


def _counts(stream: Stream, at: int, protocol: Protocol, slices: int) -> tuple[int, int]:
    """(sends of one and the same count of parameters from `at` on, the count); (0, 0): none."""
    size, run, told = wire_bytes(protocol, COUNT_BYTES), 0, b""
    while (send := stream.sends.get(at + run * slices)) is not None and send.wire_bytes == size:
        rest = stream.sends.get(at + run * slices + 1) if slices == 2 else None
        own = _data(send, protocol, COUNT_BYTES)
        if own is None or (slices == 2 and (rest is None or rest.wire_bytes)):
            break
        if run and own.tobytes() != told:
            break
        run, told = run + 1, own.tobytes()
    count = ddp_messages.parse_parameter_count(np.frombuffer(told, np.uint8)) if run else None
    return (run, count) if count is not None else (0, 0)


def _shapes_follow(stream: Stream, at: int, parameters: int) -> bool:
    """What is broadcast from `at` on is a list of shapes of so many parameters."""
    parts: list[NDArray[np.uint8]] = []
    left = parameters * MOST_SHAPE_BYTES
    while (send := stream.sends.get(at + len(parts))) is not None:
        protocol = send.protocol or stream.protocol
        room = data_bytes_of(protocol, send.wire_bytes)
        left -= room
        data = _data(send, protocol, room) if left + GRAIN_BYTES[protocol] > 0 else None
        if data is None or not room:
            return False
        parts.append(data)
        if room < full_chunk(CollectiveKind.BROADCAST, protocol):
            whole = np.concatenate(parts)
            if protocol is Protocol.LL128:
                return bool(ddp_messages.shapes_ends(whole, parameters, SLACK_BYTES[protocol]))
            values = ddp_messages.parse_shape_values(whole)
            return values is not None and bool(
                ddp_messages.parse_shapes(values, parameters, most=1)
            )
    return False


def _data(send: SendSeen, protocol: Protocol, size: int) -> NDArray[np.uint8] | None:
    """The first bytes of what a send carries; None where some of them were not captured."""
    if data_bytes_of(protocol, send.wire_bytes) < size:
        return None
    data, seen = unpacked(send, protocol, size)
    return data if seen.all() else None
