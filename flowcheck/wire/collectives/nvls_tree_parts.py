"""Which part of a tensor each message of an NVLS tree carries.

The switch of each node sums what its GPUs have; one GPU for each NIC, a head, sends the sum of its
share to the same head of other nodes, up a tree of nodes, and gets the final sum from above. Every
head does so on every channel: a channel's part is cut into loops, each loop into a chunk a head,
and each chunk is one message, an empty one too. What goes up comes down in the same pieces.

Sources: NCCL src/device/all_reduce.h (RunWorkColl of NVLS_TREE), src/enqueue.cc (calcCollChunking,
scheduleCollTasksToPlan), src/transport/nvls.cc (ncclNvlsTuning), src/graph/connect.cc
(connectNvls).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flowcheck.wire.collectives.chunk_partition import (
    Launch,
    ThreadRule,
    aligned_to,
    cell_parts,
    even_parts,
)
from flowcheck.wire.collectives.double_binary_tree import sum_passes_down, tree_parents
from flowcheck.wire.collectives.nccl_parameters import NcclEra, round_up
from flowcheck.wire.collectives.nvls_shape import NvlsShape

NVLS_THREADS = ThreadRule(ll_by_rank=False, sync_warps=0)
"""It never lowers its channels or threads for small tensors (src/enqueue.cc, ncclGetAlgoInfo)."""

_HALVED = ((32, 262_144), (16, 131_072), (4, 65_536), (1, 32_768))
"""While fewer chunks than so many fill all units, a chunk has at most so many bytes."""
_GRAIN = 512
_LAST_ALIGN = 16
"""Bytes that the chunks of a last loop are multiples of, from 2.22 on."""


HeadChunks = NDArray[np.int64]
"""[loop, head, (start byte, bytes)]."""


def nvls_chunks(launch: Launch, shape: NvlsShape) -> tuple[HeadChunks | None, ...]:
    """[channel] what each head carries in each loop; None: the channel has no part. launch: its
    channels are those of `shape`."""
    found: list[HeadChunks | None] = [None] * shape.channels
    if not launch.work_bytes:
        return tuple(found)
    first, total = shape.first_chunk(launch.era), launch.work_bytes
    if launch.era is NcclEra.V2_19:
        size = _chunk(first, total, shape.channels * shape.heads)
        return tuple(_by_turns(shape, channel, total, size) for channel in range(shape.channels))
    if launch.era is NcclEra.V2_20:
        align = aligned_to(launch.protocol, 0)
        size = _chunk(first, total, shape.channels * shape.heads)
        for channel, start, part in even_parts(total, shape.channels, align):
            found[channel] = _loops(shape.heads, start, part, size, align)
        return tuple(found)
    for channel, start, part in cell_parts(launch, shape.channels):
        size = _chunk(first, part, shape.heads)
        found[channel] = _loops(shape.heads, start, part, size, _LAST_ALIGN)
    return tuple(found)


def _chunk(size: int, total: int, units: int) -> int:
    """Bytes of a full chunk. total: bytes that so many units share."""
    for enough, most in _HALVED:
        if total < enough * units * size and size > most:
            size = most
    return size // _GRAIN * _GRAIN


def _loops(heads: int, start: int, size: int, chunk: int, align: int) -> HeadChunks:
    """From 2.20 on: of one channel's part; the last loop's chunks are smaller."""
    count = -(-size // (heads * chunk))
    each = np.full(count, chunk, np.int64)
    rest = size - (count - 1) * heads * chunk
    if rest < heads * chunk:
        each[-1] = round_up(-(-rest // heads), align)
    begins = np.arange(count, dtype=np.int64)[:, None] * heads * chunk
    starts = begins + each[:, None] * np.arange(heads)
    return _clipped(start, starts, each[:, None], size)


def _by_turns(shape: NvlsShape, channel: int, total: int, chunk: int) -> HeadChunks:
    """Up to 2.19: channels and heads take chunks by turns; where nothing is left one is empty."""
    loop = shape.channels * shape.heads * chunk
    begins = np.arange(0, total, loop, dtype=np.int64)[:, None]
    starts = begins + (channel * shape.heads + np.arange(shape.heads)) * chunk
    return _clipped(0, starts, np.full_like(starts, chunk), total)


def _clipped(
    start: int, starts: NDArray[np.int64], sizes: NDArray[np.int64], total: int
) -> HeadChunks:
    left = np.maximum(total - starts, 0)
    return np.stack((start + starts, np.minimum(sizes, left)), axis=-1)


def nvls_direction(sender: int, receiver: int, channel: int, nodes: int) -> bool | None:
    """Whether final sums pass from one node to another on a channel; False: partial ones go up
    there; None: no tree links them. Channels have the two trees by turns."""
    return sum_passes_down(sender, receiver, tree_parents(nodes, channel % 2 == 1))
