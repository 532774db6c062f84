"""How NCCL splits one collective into channel parts, loops and chunks, for every release since
2.12.

Pure arithmetic in bytes: a tensor is one flat byte range. One collective per launch, as
DistributedDataParallel issues them. Rings, and what trees (double_binary_tree.py) have in common
with them.
Every formula counts elements in NCCL; where the element size drops out of it, it is left out here.

Sources: NCCL src/enqueue.cc (getAlgoInfo, scheduleCollTasksToPlan, calcCollChunking),
src/device/{all_reduce,all_gather,reduce_scatter,broadcast}.h, src/include/{device,collectives}.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.nccl_parameters import (
    BUFFER_BYTES,
    DEFAULT_TUNING,
    NCCL_STEPS,
    CollectiveKind,
    NcclEra,
    Protocol,
    Tuning,
    round_up,
)

Span = tuple[int, int]
"""(start byte, bytes); bytes may be 0: an empty chunk is still sent."""

Loop = tuple[Span, ...]
"""The chunks of one loop: `ranks` of them in an all-reduce, else one."""


_THREADS = {Protocol.LL: 512, Protocol.LL128: 640, Protocol.SIMPLE: 512}
_GRAIN_BYTES = {Protocol.LL: 16, Protocol.LL128: 1920, Protocol.SIMPLE: 512}
_WARP = 32
"""Threads of a warp (src/include/device.h, WARP_SIZE)."""
_PART_ALIGN_BYTES = 256
"""Each channel's part of a block begins at a multiple (NCCL src/scheduler/allgatherv_sched.cc)."""
_ELEMENT_ERAS = (NcclEra.V2_19, NcclEra.V2_20)
"""The eras before cells: chunks are not cut to grains, threads matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadRule:
    """What of NCCL's choice of channels and threads each algorithm has for itself."""

    ll_by_rank: bool
    """In LL each thread has 8 bytes for every rank at least; False: 8 bytes in all."""
    sync_warps: int
    """Warps of a Simple block that only synchronise."""


RING_THREADS = ThreadRule(ll_by_rank=True, sync_warps=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One collective, alone in its launch. `work_bytes`: what the channels share out, that is
    the tensor of an all-reduce or broadcast, one rank's block of a gather or scatter."""

    kind: CollectiveKind
    work_bytes: int
    element_bytes: int
    ranks: int
    channels: int
    protocol: Protocol
    era: NcclEra
    tuning: Tuning = DEFAULT_TUNING
    thread_rule: ThreadRule = RING_THREADS
    """Of the algorithm that it goes by."""
    gpus: int = 1
    """Ranks of a node."""

    def __post_init__(self) -> None:
        if self.ranks < 2 or self.channels < 1:
            raise ValueError(f"no ring of {self.ranks} ranks and {self.channels} channels")
        if self.element_bytes not in (1, 2, 4, 8):
            raise ValueError(f"no NCCL type has {self.element_bytes} bytes")
        if self.work_bytes < 0 or self.work_bytes % self.element_bytes:
            raise ValueError(f"{self.work_bytes} bytes are no elements of {self.element_bytes}")

    @property
    def lanes(self) -> int:
        """Chunks per loop."""
        return self.ranks if self.kind is CollectiveKind.ALL_REDUCE else 1

    @property
    def step_bytes(self) -> int:
        """One slot of the connection's buffer."""
        return (self.tuning.buffer_bytes or BUFFER_BYTES[self.protocol]) // NCCL_STEPS

    @property
    def step_data_bytes(self) -> int:
        """Data that a slot holds."""
        if self.protocol is Protocol.LL:
            return self.step_bytes // 2
        return self.step_bytes * 15 // 16 if self.protocol is Protocol.LL128 else self.step_bytes

    @property
    def chunk_bytes(self) -> int:
        """Data bytes of a full chunk of a ring."""
        size = self.step_data_bytes
        if self.protocol is Protocol.SIMPLE and not self.kind.in_single_steps:
            size *= 4
        grain = self.element_bytes if self.era in _ELEMENT_ERAS else _GRAIN_BYTES[self.protocol]
        return size // grain * grain


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def channels_and_threads(launch: Launch) -> tuple[int, int]:
    """(channels used, threads of each block). NCCL src/enqueue.cc, getAlgoInfo: first channels
    are given up while each thread has too little, then threads are halved."""
    threads = launch.tuning.threads or _THREADS[launch.protocol]
    threshold = (
        launch.tuning.threshold
        or {
            Protocol.LL: 8 * (launch.ranks if launch.thread_rule.ll_by_rank else 1),
            Protocol.LL128: 8,
            Protocol.SIMPLE: 64,
        }[launch.protocol]
    )
    total = launch.work_bytes * (launch.ranks if launch.kind.in_blocks else 1)
    channels = max(1, min(launch.channels, total // (threads * threshold)))
    while total < channels * threads * threshold and threads % 128 == 0:
        threads //= 2
    if launch.protocol is Protocol.SIMPLE:
        threads += launch.thread_rule.sync_warps * _WARP
    return channels, max(3 * _WARP, threads)


def split(launch: Launch) -> tuple[tuple[Loop, ...], ...]:
    """[channel][loop][chunk] -> (start byte, bytes), one entry per channel of the communicator;
    channels without work, and every channel of an empty tensor, have no loops."""
    return tuple(
        () if loops is None else tuple(tuple(map(tuple, loop)) for loop in loops.tolist())
        for loops in loop_table(launch)
    )


def loop_table(launch: Launch) -> tuple[NDArray[np.int64] | None, ...]:
    """[channel] the [loop, chunk, (start byte, bytes)] of `split`; None: it has no loops."""
    loops: list[NDArray[np.int64] | None] = [None] * launch.channels
    if not launch.work_bytes:
        return tuple(loops)
    used, threads = channels_and_threads(launch)
    if launch.era is NcclEra.V2_19:
        for channel in range(used):
            loops[channel] = np.array(list(_interleaved(launch, channel, used, threads)), np.int64)
        return tuple(loops)
    if launch.era is NcclEra.V2_20:
        align = aligned_to(launch.protocol, threads)
        parts = even_parts(launch.work_bytes, used, align)
    else:
        align = 16
        gathered = launch.kind is CollectiveKind.ALL_GATHER_V
        parts = (_gathered_parts if gathered else cell_parts)(launch, used)
    for channel, start, size in parts:
        loops[channel] = _part_loops(launch, start, size, align)
    return tuple(loops)


def _interleaved(launch: Launch, channel: int, used: int, threads: int) -> Iterator[Loop]:
    """<= 2.19: all channels share every loop (NCCL 2.19 src/device/all_reduce.h, runRing)."""
    full, lanes = launch.chunk_bytes, launch.lanes
    for start in range(0, launch.work_bytes, used * lanes * full):
        chunk = _interleaved_chunk(launch, launch.work_bytes - start, used, threads)
        if launch.protocol is Protocol.SIMPLE:
            starts = [start + (channel * lanes + k) * chunk for k in range(lanes)]
        else:
            starts = [start + (k * used + channel) * chunk for k in range(lanes)]
        yield tuple((s, min(chunk, max(0, launch.work_bytes - s))) for s in starts)


def _interleaved_chunk(launch: Launch, rest: int, used: int, threads: int) -> int:
    full, share = launch.chunk_bytes, _ceil_div(rest, used * launch.lanes)
    if launch.protocol is Protocol.SIMPLE:
        return round_up(min(full, share), (threads - _WARP) * 8)
    if launch.protocol is Protocol.LL128:
        whole = launch.kind is CollectiveKind.BROADCAST
        element = (
            1
            if launch.kind in (CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER)
            else launch.element_bytes
        )
        quantum = threads * (60 // element) // (1 if whole else 2) * element
        return min(full, round_up(share, quantum))
    if launch.kind is CollectiveKind.ALL_REDUCE:
        return min(full, round_up(share, threads * 8))
    return full if rest >= used * full else round_up(share, threads * 8)


def aligned_to(protocol: Protocol, threads: int) -> int:
    """NCCL 2.20 src/enqueue.cc, addCBDCollToPlan and computeCollAlignCount."""
    if protocol is Protocol.SIMPLE:
        return 4096
    return 8 * threads if protocol is Protocol.LL else 480 * (threads // _WARP)


def even_parts(total: int, used: int, align: int) -> Iterator[tuple[int, int, int]]:
    """2.20-2.21: (channel, start, bytes), one contiguous part per channel."""
    share = round_up(_ceil_div(total, used), 16)
    start = 0
    for channel in range(used):
        size = min(round_up(min(share, total - start), align), total - start)
        if size:
            yield channel, start, size
        start += size


def cell_parts(launch: Launch, used: int) -> Iterator[tuple[int, int, int]]:
    """>= 2.22: (channel, start, bytes); whole cells are dealt out by the traffic they cause
    (NCCL src/enqueue.cc, scheduleCollTasksToPlan)."""
    cell, cell_traffic, share = _cell_and_share(launch, used)
    cells = _ceil_div(launch.work_bytes, cell)
    each = min(cells, _ceil_div(share, cell_traffic))
    first = each if launch.era is not NcclEra.V2_22 else min(cells, share // cell_traffic)
    counts = _deal(cells, cells if launch.channels == 1 else first, each, launch.channels)
    start = 0
    for channel, count in enumerate(counts):
        size = min(count * cell, launch.work_bytes - start)
        if size:
            yield channel, start, size
        start += size


def _gathered_parts(launch: Launch, used: int) -> Iterator[tuple[int, int, int]]:
    """(channel, start, bytes) of each rank's block (NCCL src/scheduler/allgatherv_sched.cc,
    ncclScheduleBcastTasksToPlan)."""
    share = _ceil_div(launch.work_bytes, used)
    ends = [min(round_up(n * share, _PART_ALIGN_BYTES), launch.work_bytes) for n in range(used + 1)]
    for channel, (start, stop) in enumerate(pairwise(ends)):
        if stop > start:
            yield channel, start, stop - start


def _cell_and_share(launch: Launch, used: int) -> tuple[int, int, int]:
    """(bytes of a cell, its traffic, traffic due to each channel); traffic in bytes moved."""
    per_byte = {CollectiveKind.ALL_REDUCE: 2, CollectiveKind.BROADCAST: 1}.get(
        launch.kind, launch.ranks
    )
    if launch.protocol is Protocol.LL and launch.era in (NcclEra.V2_26, NcclEra.V2_29):
        per_byte *= 4
    traffic = launch.work_bytes * per_byte
    if launch.era is NcclEra.V2_22:
        return 16, 16 * per_byte, max(512, traffic // used)
    least = 32_768 if launch.era is NcclEra.V2_29 else 16_384
    traffic = max(least, traffic)
    cell = round_up(_ceil_div(least, per_byte), 16)
    if launch.era is NcclEra.V2_29:
        return cell, cell * per_byte, round_up(traffic // used, 16)
    return cell, cell * per_byte, max(least, traffic // used)


def _deal(cells: int, first: int, each: int, channels: int) -> list[int]:
    """Cells per channel: `first`, then `each`, then what is left."""
    middle, last = divmod(cells - first, each)
    if (first > 0) + middle + (last > 0) > channels:
        middle = channels - 2
        each, over = divmod(cells - first, middle + 1)
        last = each + over
    return [first, *[each] * middle, last]


def _part_loops(launch: Launch, start: int, size: int, align: int) -> NDArray[np.int64]:
    """>= 2.20: [loop, chunk, (start byte, bytes)] inside one channel's part. Only the all-reduce
    shrinks its last loop."""
    full, lanes = launch.chunk_bytes, launch.lanes
    count = _ceil_div(size, lanes * full)
    begin = (count - 1) * lanes * full
    last = full
    if launch.kind is CollectiveKind.ALL_REDUCE and size - begin < lanes * full:
        last = round_up(_ceil_div(size - begin, lanes), align)
    loops = np.empty((count, lanes, 2), np.int64)
    if count > 1:
        loops[:-1, :, 0] = (start + np.arange((count - 1) * lanes) * full).reshape(-1, lanes)
        loops[:-1, :, 1] = full
    rest = np.arange(size - begin, size - begin - lanes * last, -last)
    loops[-1, :, 0] = start + size - rest
    loops[-1, :, 1] = np.minimum(np.maximum(rest, 0), last)
    return loops
