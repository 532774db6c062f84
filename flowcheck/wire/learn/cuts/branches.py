"""How large an all-reduce by a tree may be, by the sizes of the messages it would begin with."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.wire.collectives.double_binary_tree import tree_direction
from flowcheck.wire.collectives.nccl_parameters import Protocol, data_bytes_of
from flowcheck.wire.learn.cuts.totals import Channels, Positions
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import Stream

MOST_CHUNKS = 256
"""Of a channel, that are looked at."""


def tree_totals(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol
) -> Iterator[int]:
    """Most bytes that the next messages of the trees' own connections hold together, of as many
    channels as there may be."""
    if not ring.found:
        return
    next_of = _next_of(ring, positions, channels)
    told: dict[int, None] = {}
    for used in range(ring.channels, 0, -1):
        if not all(channel in next_of for channel in range(used)):
            continue
        runs = [_run(*next_of[channel], protocol) for channel in range(used)]
        if not all(runs):
            continue
        told.setdefault(sum(run[-1] for run in runs))
        # Chunks may be of one size to the last one: the next tensor may follow at any of them.
        for count in range(min(max(map(len, runs)), MOST_CHUNKS), 0, -1):
            told.setdefault(sum(run[min(count, len(run)) - 1] for run in runs))
    yield from (total for total in told if total > 0)


def _next_of(ring: Ring, positions: Positions, channels: Channels) -> dict[int, tuple[Stream, int]]:
    """[channel] (a connection of its tree that the ring has not, number of its next send)."""
    found: dict[int, tuple[Stream, int]] = {}
    for edge, at, names in zip(ring.edges, positions, channels, strict=True):
        if edge.receiver is None:
            continue
        own = [
            channel
            for channel in range(ring.channels)
            if tree_direction(edge, channel, ring) is not None
        ]
        left = iter([channel for channel in own if channel not in names])
        for stream, number, name in zip(edge.streams, at, names, strict=True):
            channel = next(left, None) if name is None else name
            if channel is not None:
                found.setdefault(channel, (stream, number))
    return found


def _run(stream: Stream, at: int, protocol: Protocol) -> list[int]:
    """[chunks] data of so many, up to the first that is smaller than those before it."""
    first = stream.sends.get(at)
    total, sums = 0, list[int]()
    while (send := stream.sends.get(at)) is not None and first is not None:
        if send.protocol not in (None, protocol) or send.wire_bytes > first.wire_bytes:
            break
        total += data_bytes_of(protocol, send.wire_bytes)
        sums.append(total)
        if send.wire_bytes < first.wire_bytes or len(sums) == MOST_CHUNKS:
            break
        at += 1
    return sums
