"""How many ranks there are, by what each of them sends first."""

from __future__ import annotations

from collections.abc import Iterable

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, wire_bytes
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.flows.streams import Stream

COUNT_BYTES = 8
"""Of what each rank gathers first: the count of its parameters."""


def ranks_counted(streams: Iterable[Stream]) -> tuple[int, ...]:
    """Ring sizes by the all-gather that starts a trainer up: every rank but one sends on each
    link, on the channel that is used first. What follows it may be as large, so that it may be one
    or two sends shorter."""
    first: dict[tuple[str, str], Stream] = {}
    for stream in streams:
        link = stream.key.source, stream.key.destination
        if link not in first or stream.flow.first_ns < first[link].flow.first_ns:
            first[link] = stream
    least = min((run for stream in first.values() if (run := counts_first(stream))), default=0)
    return tuple(ranks for ranks in (least + 1, least, least - 1) if ranks >= 2) if least else ()


def count_slices(stream: Stream, at: int, protocol: Protocol) -> int:
    """Sends that each count would come in from `at` on: a chunk of Simple has an empty second
    slice, but for a gather that broadcasts make."""
    behind = stream.sends.get(at + 1)
    gathered = protocol is Protocol.SIMPLE and (behind is None or not behind.wire_bytes)
    return sends_per_chunk(
        CollectiveKind.ALL_GATHER if gathered else CollectiveKind.ALL_GATHER_V, protocol
    )


def counts_first(stream: Stream) -> int:
    """Sends, each of one count, with which the connection begins."""
    if not stream.from_start or 0 not in stream.sends:
        return 0
    protocol = stream.protocol_at(0) or stream.protocol
    slices = count_slices(stream, 0, protocol)
    size = wire_bytes(protocol, COUNT_BYTES)
    run = 0
    while (send := stream.sends.get(run * slices)) is not None and send.wire_bytes == size:
        rest = stream.sends.get(run * slices + 1)
        if slices == 2 and (rest is None or rest.wire_bytes):
            break
        run += 1
    return run
