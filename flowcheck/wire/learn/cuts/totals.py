"""How large a collective may be by the sizes of the sends it would begin with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.collectives.ring_schedule import sends_per_chunk
from flowcheck.wire.learn.cuts.chunks import hops_of, loop_chunks
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream

Positions = tuple[tuple[int, ...], ...]
"""[edge][stream] -> number of the next send."""
Channels = tuple[tuple[int | None, ...], ...]
"""[edge][stream] -> channel; None: not told yet."""

FULL_CHUNK_BYTES = {Protocol.LL: 32_768, Protocol.LL128: 576_000, Protocol.SIMPLE: 2_097_152}
"""Data of a full chunk with default buffers: after it, another loop may follow."""
BROADCAST_SIMPLE_CHUNK_BYTES = 524_288
MOST_OPTIONS = 16


def totals_of(
    ring: Ring,
    positions: Positions,
    channels: Channels,
    kind: CollectiveKind,
    protocol: Protocol,
    root: int = 0,
) -> Iterator[int]:
    """Totals of `kind` that fit the parts of the channels, by any edge that shows them all. root:
    of a broadcast."""
    found: dict[int, None] = {}
    for edge, at, names in zip(ring.edges, positions, channels, strict=True):
        if edge.receiver is not None:
            continue
        parts = [
            _parts(ring, s, n, kind, protocol) if _writes(ring, edge, name, kind, root) else []
            for s, n, name in zip(edge.streams, at, names, strict=True)
        ]
        for taking_part in _subsets(parts, names):
            for choice in product(*taking_part):
                found.setdefault(sum(choice))
                if len(found) >= MOST_OPTIONS:
                    break
    if not found and kind is CollectiveKind.ALL_REDUCE:
        found.update(dict.fromkeys(_united(ring, positions, channels, protocol)))
    for total in sorted(found, reverse=True):
        if total > 0:
            yield total


def _subsets(
    parts: Sequence[Sequence[int]], names: Sequence[int | None]
) -> Iterator[list[Sequence[int]]]:
    """All streams of an edge, then fewer: small tensors use the first channels only."""
    order = sorted(range(len(parts)), key=lambda i: (names[i] is None, names[i] or 0))
    for count in range(len(parts), 0, -1):
        chosen = [parts[i] for i in order[:count]]
        if all(chosen):
            yield chosen
    if any(name is None for name in names):
        for i in order[1:]:
            if parts[i]:
                yield [parts[i]]


def _writes(ring: Ring, edge: Edge, channel: int | None, kind: CollectiveKind, root: int) -> bool:
    """False where no broadcast passes: whoever writes there does so to the root."""
    if kind is not CollectiveKind.BROADCAST or ring.sounding or (edge.senders and channel is None):
        return True
    return (edge.sender_of(channel or 0) + 1) % ring.ranks != root


def _parts(
    ring: Ring, stream: Stream, at: int, kind: CollectiveKind, protocol: Protocol
) -> list[int]:
    """Most data bytes a collective starting at send `at` may have on this channel: one entry for
    each number of loops it may have; () where a size is not known."""
    if stream.protocol_at(at) not in (None, protocol):
        return []
    options: list[int] = []
    total = 0
    while at < stream.stop and len(options) < MOST_OPTIONS:
        chunks = loop_chunks(ring, 0, stream, at, kind, protocol)
        if chunks is None or any(size is None for size in chunks):
            break
        known = [size or 0 for size in chunks]
        if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
            if len(set(known)) > 1:
                break
            known = known[:1]
        total += sum(known)
        full = full_chunk(kind, protocol)
        options.append(total)
        if any(size < full for size in known):
            return [*options[-1:], *options[:-1]]
        at += hops_of(kind, ring) * sends_per_chunk(kind, protocol)
    return options[::-1]


def full_chunk(kind: CollectiveKind, protocol: Protocol) -> int:
    """Data bytes of a full chunk, behind which another loop may follow."""
    if kind is CollectiveKind.BROADCAST and protocol is Protocol.SIMPLE:
        return BROADCAST_SIMPLE_CHUNK_BYTES
    return FULL_CHUNK_BYTES[protocol]


def _united(ring: Ring, positions: Positions, channels: Channels, protocol: Protocol) -> list[int]:
    """The total of a one-loop all-reduce whose chunks no single edge shows, but all together."""
    total = 0
    for channel in range(ring.channels):
        united: list[int | None] = [None] * ring.ranks
        for edge, at, names in zip(ring.edges, positions, channels, strict=True):
            if edge.receiver is not None:
                continue
            order = sorted(range(len(at)), key=lambda i: (names[i] is None, names[i] or 0))
            if channel >= len(order):
                continue
            i = order[channel]
            chunks = loop_chunks(
                ring,
                edge.sender_of(channel),
                edge.streams[i],
                at[i],
                CollectiveKind.ALL_REDUCE,
                protocol,
            )
            for lane, size in enumerate(chunks or []):
                if size is not None and united[lane] not in (None, size):
                    return []
                united[lane] = size if size is not None else united[lane]
        if any(size is None for size in united):
            return []
        total += sum(size or 0 for size in united)
    return [total]
