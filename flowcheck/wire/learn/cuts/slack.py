"""How much less than its sizes allow a collective may hold."""

from __future__ import annotations

from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, Protocol
from flowcheck.wire.learn.flows.rings import Ring

LL_SLACK = (0, 4, 2, 6, 1, 3, 5, 7)
"""Data bytes the last LL line may lack; four-byte elements are the common case."""
LEAST_CHUNK_BYTES = 16
"""Chunks are cut by multiples of it at least (NCCL src/device/all_reduce.h, 16 / sizeof(T))."""


def slacks(ring: Ring, kind: CollectiveKind, total: int, protocol: Protocol) -> tuple[int, ...]:
    """What an all-reduce may lack of the most its sizes allow."""
    if protocol is Protocol.LL and kind is CollectiveKind.ALL_REDUCE:
        return LL_SLACK
    groups, rest = divmod(total, GRAIN_BYTES[Protocol.LL128])
    few = protocol is Protocol.LL128 and kind is CollectiveKind.ALL_REDUCE and not rest
    if few and groups < ring.ranks:
        # Chunks without a byte: those before them are as short as any are cut.
        return 0, total - groups * LEAST_CHUNK_BYTES
    return (0,)
