"""Which bytes of a tensor each send of a ring collective carries.

A schedule is seen from one edge of the ring: `sender` is the ring index of who writes, [channel]
where that differs. They return [channel][send], in wire order, () for channels without work.

Sources: NCCL src/device/all_reduce.h, all_gather.h, reduce_scatter.h, broadcast.h (runRing),
src/device/prims_simple.h (genericOp: slices), prims_ll.h, prims_ll128.h (bytes per message).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict, Unpack

from flowcheck.wire.collectives.chunk_partition import Launch, Loop, ThreadRule, split
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    Tuning,
    WriterRanks,
    wire_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One message of one connection."""

    channel: int
    send: int
    """Ordinal within the collective on this edge and channel."""
    fifo_step: int
    """Connection steps since the collective began; LL flag = absolute step + 1."""
    loop: int
    chunk: int
    """Chunk of the loop; in a gather or scatter the ring index whose block it is."""
    start_byte: int
    data_bytes: int
    wire_bytes: int
    final: bool
    """Holds the result, not a partial sum."""


Schedule = tuple[tuple[Send, ...], ...]
_Hop = tuple[int, int, int, bool]
"""(chunk of the loop, name of the chunk, bytes to add to its start, final?)"""


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
    return 2 if protocol is Protocol.SIMPLE and kind is not CollectiveKind.BROADCAST else 1


def sends_per_chunk(kind: CollectiveKind, protocol: Protocol) -> int:
    """A chunk of Simple, of four steps, goes in two slices, except in a broadcast."""
    return 2 if protocol is Protocol.SIMPLE and kind is not CollectiveKind.BROADCAST else 1


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
    steps = range(2 * launch.ranks - 2 + extra_sends)

    def hops(writer: int) -> list[_Hop]:
        every = (chunk_of(hop, sender=writer, ranks=launch.ranks) for hop in steps)
        return [(chunk, chunk, 0, final) for chunk, final in every]

    return _schedule(launch, sender, hops)


def broadcast(
    total_bytes: int, *, sender: WriterRanks, root: int = 0, **ring: Unpack[RingSetting]
) -> Schedule:
    """One write per loop; the rank before the root (both ring indices) sends nothing."""
    launch = _launch(CollectiveKind.BROADCAST, total_bytes, 1, sender, ring)
    last = (root - 1) % launch.ranks
    return _schedule(launch, sender, lambda at: [] if at == last else [(0, 0, 0, True)])


def all_gather(
    bytes_per_rank: int,
    *,
    sender: WriterRanks,
    order: Sequence[int] | None = None,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """ranks - 1 writes per loop, own block first. `order`: rank at each ring index; it places
    the blocks in the gathered tensor. None: rank = ring index."""
    launch = _launch(CollectiveKind.ALL_GATHER, bytes_per_rank, 1, sender, ring)
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
    if kind is CollectiveKind.ALL_GATHER:
        return all_gather(work_bytes, sender=sender, **ring)
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


def _block_hops(
    launch: Launch, first: int, order: Sequence[int] | None, *, final: bool
) -> list[_Hop]:
    """first: ring index whose block goes out first; those before it follow."""
    ranks = range(launch.ranks) if order is None else order
    owners = ((first - hop) % launch.ranks for hop in range(launch.ranks - 1))
    return [(0, owner, ranks[owner] * launch.work_bytes, final) for owner in owners]


def _schedule(
    launch: Launch, sender: WriterRanks, hops: Callable[[int], Sequence[_Hop]]
) -> Schedule:
    writers = (sender,) * launch.channels if isinstance(sender, int) else sender
    of = {writer: hops(writer) for writer in set(writers)}
    return tuple(
        tuple(_channel_sends(launch, channel, loops, of[writer]))
        for channel, (loops, writer) in enumerate(zip(split(launch), writers, strict=True))
    )


def _channel_sends(
    launch: Launch, channel: int, loops: Sequence[Loop], hops: Sequence[_Hop]
) -> Iterator[Send]:
    send, fifo_steps = 0, fifo_steps_per_send(launch.kind, launch.protocol)
    for number, chunks in enumerate(loops):
        for index, chunk, shift, final in hops:
            start, size = chunks[index]
            for offset, piece in _slices(launch, size):
                yield Send(
                    channel=channel,
                    send=send,
                    fifo_step=send * fifo_steps,
                    loop=number,
                    chunk=chunk,
                    start_byte=shift + start + offset,
                    data_bytes=piece,
                    wire_bytes=wire_bytes(launch.protocol, piece),
                    final=final,
                )
                send += 1


def _slices(launch: Launch, size: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of each message of a chunk: one, or two Simple slices, empty ones too.
    NCCL src/device/prims_simple.h, genericOp (sliceSize)."""
    if sends_per_chunk(launch.kind, launch.protocol) == 1:
        yield 0, size
        return
    element = launch.element_bytes
    half = max(
        -(-(size // element) // 32) * 16,
        launch.step_bytes * 2 // element // 32,
    )
    first = min(half * element, size)
    yield 0, first
    yield first, size - first
