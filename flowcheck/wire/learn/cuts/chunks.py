"""How large the chunks of one loop are, by the sends of one connection."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol, data_bytes_of
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.flows.streams import PROTOCOLS, Stream


def hops_of(kind: CollectiveKind, ring: Ring) -> int:
    """Chunk steps per loop on one edge."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * ring.ranks - 2 + ring.extra_sends
    return 1 if kind is CollectiveKind.BROADCAST else ring.ranks - 1


def loop_chunks(
    ring: Ring, sender: int, stream: Stream, at: int, kind: CollectiveKind, protocol: Protocol
) -> Sequence[int | None] | None:
    """[chunk, by who writes] most data bytes of each chunk of the loop that starts at send `at`,
    None where no copy of the chunk has a known size; None if copies disagree."""
    lanes = ring.ranks if kind is CollectiveKind.ALL_REDUCE else hops_of(kind, ring)
    hops, per_hop = hops_of(kind, ring), sends_per_chunk(kind, protocol)
    name = (at, lanes, hops, per_hop, PROTOCOLS.index(protocol))
    if name not in stream.looked_up:
        stream.looked_up[name] = _lanes(stream, at, lanes, hops, per_hop, protocol)
    found = stream.looked_up[name]
    if found is None or kind is not CollectiveKind.ALL_REDUCE:
        return found
    # Hop n carries chunk `sender` - 1 - n.
    return [found[(sender - 1 - chunk) % lanes] for chunk in range(lanes)]


def _lanes(
    stream: Stream, at: int, lanes: int, hops: int, per_hop: int, protocol: Protocol
) -> list[int | None] | None:
    """[lane] most data bytes of what hops n, n + lanes, ... carry; None if they disagree."""
    sizes: list[int | None] = [None] * lanes
    for hop in range(hops):
        sends = [stream.sends.get(at + hop * per_hop + i) for i in range(per_hop)]
        if any(send is None for send in sends):
            continue
        size = sum(data_bytes_of(protocol, s.wire_bytes) for s in sends if s is not None)
        if sizes[hop % lanes] not in (None, size):
            return None
        sizes[hop % lanes] = size
    return sizes
