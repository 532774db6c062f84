"""Which rank of a ring writes on a connection, by the sizes of an all-reduce on it alone.

In every loop a connection carries all chunks, each rank's beginning with another one: a chunk that
is shorter than the others tells who writes. Where all are alike, any rank may.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, Protocol
from flowcheck.wire.collectives.ring_schedule import Send, sends_per_chunk
from flowcheck.wire.learn.flows.streams import Stream


def everyone(ranks: int) -> int:
    """Bit r: ring index r may write."""
    return (1 << ranks) - 1


def writers(
    stream: Stream,
    number: int,
    sends: Sequence[Send],
    kind: CollectiveKind,
    protocol: Protocol,
    ranks: int,
) -> tuple[int, int]:
    """(bits of the ring indices that may write `sends` from `number` on, sends seen); no bits: a
    size or a protocol contradicts it whoever does. sends: as ring index 0 would."""
    whole = everyone(ranks)
    if kind is CollectiveKind.BROADCAST and sends:
        whole ^= 1 << (ranks - 1)  # it would write to the root
    slices = sends_per_chunk(kind, protocol)
    chunks = _chunks_by_size(sends, slices) if kind is CollectiveKind.ALL_REDUCE else None
    matched = 0
    for i, send in enumerate(sends):
        seen = stream.sends.get(number + i)
        if seen is None:
            continue
        if seen.protocol not in (None, protocol):
            return 0, 0
        if chunks is None:
            alike = whole if seen.wire_bytes == send.wire_bytes else 0
        else:
            bits = chunks.get((send.loop, i % slices, seen.wire_bytes), 0)
            alike = bits >> send.chunk | bits << (ranks - send.chunk)
        whole &= alike
        if not whole:
            return 0, 0
        matched += 1
    return whole, matched


def _chunks_by_size(sends: Sequence[Send], slices: int) -> dict[tuple[int, int, int], int]:
    """{(loop, slice, wire bytes): bits of the chunks of which that slice is as large}."""
    found: dict[tuple[int, int, int], int] = {}
    for i, send in enumerate(sends):
        name = (send.loop, i % slices, send.wire_bytes)
        found[name] = found.get(name, 0) | 1 << send.chunk
    return found


def ring_indices(bits: int) -> list[int]:
    """Those that may write, ascending."""
    return [i for i in range(bits.bit_length()) if bits >> i & 1]
