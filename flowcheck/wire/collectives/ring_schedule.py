"""Which bytes of a tensor each send of a ring collective carries.

A schedule is seen from one edge of the ring: `sender` is the ring index of who writes, [channel]
where that differs. They return [channel][send], in wire order, () for channels without work.

Sources: NCCL src/device/all_reduce.h, all_gather.h, reduce_scatter.h, broadcast.h (runRing),
src/device/prims_simple.h (genericOp: slices), prims_ll.h, prims_ll128.h (bytes per message).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, NotRequired, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.chunk_partition import Launch, ThreadRule, loop_table
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    Tuning,
    WriterRanks,
    wire_bytes,
)
from flowcheck.wire.collectives.send_table import Schedule, Send, SendTable, no_sends

__all__ = ["Schedule", "Send", "SendTable"]


_T = TypeVar("_T", bound=np.generic)


class _Hops(NamedTuple):
    """What one writer sends in each loop, [hop] each."""

    places: NDArray[np.int64]
    """Chunk of the loop."""
    names: NDArray[np.int64]
    """What the chunk is called."""
    final: NDArray[np.bool_]
    shifts: NDArray[np.int64] | None = None
    """Bytes to add to its start; None: none."""


class RingSetting(TypedDict):
    """What all collectives of one communicator share."""

    ranks: int
    channels: int
    """Of the communicator; a collective may use fewer."""
    protocol: Protocol
    era: NcclEra
    tuning: NotRequired[Tuning]
    gpus: NotRequired[int]
    thread_rule: NotRequired[ThreadRule]


def fifo_steps_per_send(kind: CollectiveKind, protocol: Protocol) -> int:
    """Connection steps per message: a slice of a Simple chunk is two steps long, except in a
    broadcast (NCCL src/include/collectives.h, *_SLICESTEPS)."""
    return 2 if protocol is Protocol.SIMPLE and not kind.in_single_steps else 1


def sends_per_chunk(kind: CollectiveKind, protocol: Protocol) -> int:
    """A chunk of Simple, of four steps, goes in two slices, except in a broadcast."""
    return 2 if protocol is Protocol.SIMPLE and not kind.in_single_steps else 1


def hops_per_loop(kind: CollectiveKind, ranks: int, extra_sends: int = 0) -> int:
    """Chunks that one rank sends in each loop. extra_sends: as of `all_reduce`."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * ranks - 2 + extra_sends
    return 1 if kind is CollectiveKind.BROADCAST else ranks - 1


def chunk_of(hop: int, *, sender: int, ranks: int) -> tuple[int, bool]:
    """(chunk, final?) of the `hop`-th write of a ring all-reduce loop, 0 .. 2 * ranks - 3.
    NCCL src/device/all_reduce.h, runRing."""
    return (sender - 1 - hop) % ranks, hop >= ranks - 1


def all_reduce(
    total_bytes: int,
    *,
    sender: WriterRanks,
    element_bytes: int = 4,
    extra_sends: int = 0,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """2 * (ranks - 1) writes per loop. `extra_sends=1`: a trainer patched to forward one result
    more per loop, which makes one direction of one edge complete."""
    launch = _launch(CollectiveKind.ALL_REDUCE, total_bytes, element_bytes, sender, ring)
    steps = hops_per_loop(launch.kind, launch.ranks, extra_sends)
    return _schedule(launch, sender, lambda writer: _reduce_hops(writer, launch.ranks, steps))


@lru_cache(maxsize=1024)
def _reduce_hops(writer: int, ranks: int, steps: int) -> _Hops:
    every = [chunk_of(hop, sender=writer, ranks=ranks) for hop in range(steps)]
    chunks = np.array([chunk for chunk, _ in every], np.int64)
    return _Hops(chunks, chunks, np.array([final for _, final in every], np.bool_))


_ONE_HOP = _Hops(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_))
_NO_HOP = _Hops(np.zeros(0, np.int64), np.zeros(0, np.int64), np.ones(0, np.bool_))


def broadcast(
    total_bytes: int, *, sender: WriterRanks, root: int = 0, **ring: Unpack[RingSetting]
) -> Schedule:
    """One write per loop; the rank before the root (both ring indices) sends nothing."""
    launch = _launch(CollectiveKind.BROADCAST, total_bytes, 1, sender, ring)
    last = (root - 1) % launch.ranks
    return _schedule(launch, sender, lambda at: _NO_HOP if at == last else _ONE_HOP)


def all_gather(
    bytes_per_rank: int,
    *,
    sender: WriterRanks,
    order: Sequence[int] | None = None,
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """ranks - 1 writes per loop, own block first. `order`: rank at each ring index; it places
    the blocks in the gathered tensor. None: rank = ring index. kind: ALL_GATHER_V for grouped
    broadcasts of as many bytes each (NCCL src/device/all_gather_v.h, runAllGatherV)."""
    launch = _launch(kind, bytes_per_rank, 1, sender, ring)
    return _schedule(launch, sender, lambda at: _block_hops(launch, at, order, final=True))


def reduce_scatter(
    bytes_per_rank: int,
    *,
    sender: WriterRanks,
    element_bytes: int = 4,
    order: Sequence[int] | None = None,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """ranks - 1 writes per loop, partial sums only: no block's result is ever on the wire."""
    launch = _launch(CollectiveKind.REDUCE_SCATTER, bytes_per_rank, element_bytes, sender, ring)
    return _schedule(launch, sender, lambda at: _block_hops(launch, at - 1, order, final=False))


def collective(
    kind: CollectiveKind,
    work_bytes: int,
    *,
    sender: WriterRanks,
    element_bytes: int = 4,
    extra_sends: int = 0,
    root: int = 0,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """The schedule of any kind, for callers that hold the kind as data. `work_bytes`: the tensor
    of an all-reduce or broadcast, one rank's block of a gather or scatter."""
    if kind is CollectiveKind.BROADCAST:
        return broadcast(work_bytes, sender=sender, root=root, **ring)
    if kind.is_gather:
        return all_gather(work_bytes, sender=sender, kind=kind, **ring)
    if kind is CollectiveKind.REDUCE_SCATTER:
        return reduce_scatter(work_bytes, sender=sender, element_bytes=element_bytes, **ring)
    return all_reduce(
        work_bytes, sender=sender, element_bytes=element_bytes, extra_sends=extra_sends, **ring
    )


def _launch(
    kind: CollectiveKind,
    work_bytes: int,
    element_bytes: int,
    sender: WriterRanks,
    ring: RingSetting,
) -> Launch:
    launch = Launch(kind=kind, work_bytes=work_bytes, element_bytes=element_bytes, **ring)
    for writer in (sender,) if isinstance(sender, int) else sender:
        if not 0 <= writer < launch.ranks:
            raise ValueError(f"no ring index {writer} among {launch.ranks} ranks")
    return launch


def _block_hops(launch: Launch, first: int, order: Sequence[int] | None, *, final: bool) -> _Hops:
    """first: ring index whose block goes out first; those before it follow."""
    owners = (first - np.arange(launch.ranks - 1)) % launch.ranks
    ranks = owners if order is None else np.array(order, np.int64)[owners]
    whole = np.full(len(owners), final)
    return _Hops(np.zeros(len(owners), np.int64), owners, whole, ranks * launch.work_bytes)


def _schedule(launch: Launch, sender: WriterRanks, hops: Callable[[int], _Hops]) -> Schedule:
    writers = (sender,) * launch.channels if isinstance(sender, int) else sender
    of = {writer: hops(writer) for writer in set(writers)}
    return tuple(
        _channel_sends(launch, channel, loops, of[writer])
        for channel, (loops, writer) in enumerate(zip(_loops(launch), writers, strict=True))
    )


_loops = lru_cache(maxsize=256)(loop_table)
"""Every edge of a communicator has the same."""


def _channel_sends(
    launch: Launch, channel: int, loops: NDArray[np.int64] | None, hops: _Hops
) -> SendTable:
    if loops is None or not len(hops.places):
        return no_sends(channel)
    chunks = loops[:, hops.places]
    starts, sizes = chunks[..., 0], chunks[..., 1]
    if hops.shifts is not None:
        starts = starts + hops.shifts
    final, parts = hops.final, sends_per_chunk(launch.kind, launch.protocol)
    if parts == 2:
        first = np.minimum(_slice_bytes(launch, sizes), sizes)
        starts = _interleaved(starts, starts + first)
        sizes = _interleaved(first, sizes - first)
        final = _interleaved(final, final)
    sizes = sizes.reshape(-1)
    return SendTable(
        channel,
        fifo_steps_per_send(launch.kind, launch.protocol),
        chunks=hops.names,
        parts=parts,
        start_bytes=starts.reshape(-1),
        data_bytes=sizes,
        wire_bytes=wire_bytes(launch.protocol, sizes),
        final=np.tile(final.reshape(-1), len(loops)) if len(loops) > 1 else final.reshape(-1),
    )


def _interleaved(first: NDArray[_T], second: NDArray[_T]) -> NDArray[_T]:
    """[..., two] of two arrays."""
    both = np.empty((*first.shape, 2), first.dtype)
    both[..., 0], both[..., 1] = first, second
    return both


def _slice_bytes(launch: Launch, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the first of the two Simple slices of chunks of `sizes`, where they hold so much; the
    other one has the rest, nothing too. NCCL src/device/prims_simple.h, genericOp (sliceSize)."""
    element = launch.element_bytes
    half = (sizes // element + 31) // 32 * 16
    return np.maximum(half, launch.step_bytes * 2 // element // 32) * element
