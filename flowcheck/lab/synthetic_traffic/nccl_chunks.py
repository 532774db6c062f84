"""How NCCL splits a tensor over channels, loops and chunks, release by release (NCCL
src/device/all_reduce.h and broadcast.h). It shares no code with the decoder's schedule, so that
tests find an error in either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LL_CHUNK_BYTES = 32768
"""Data bytes of one LL FIFO step: NCCL_LL_BUFFSIZE / NCCL_STEPS / 2 (src/include/device.h)."""
LL_THREADS = 512
"""NCCL_LL_MAX_NTHREADS (src/include/device.h)."""


def _up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def ll_channels(total_bytes: int, ranks: int, channels: int) -> int:
    """Channels that an LL ring all-reduce uses (src/enqueue.cc, nc and nt by thread threshold)."""
    return max(1, min(channels, total_bytes // (LL_THREADS * 8 * ranks)))


def _ll_threads(total_bytes: int, ranks: int) -> int:
    threads = LL_THREADS
    while total_bytes < threads * 8 * ranks and threads % 128 == 0:
        threads //= 2
    return max(96, threads)


@dataclass(frozen=True, slots=True)
class Chunking:
    """[channel][loop] byte range of each chunk of a ring all-reduce."""

    loops: list[list[list[tuple[int, int]]]]


def chunks_2_19(total_bytes: int, ranks: int, channels: int) -> Chunking:
    """NCCL up to 2.19: channels are interleaved inside every chunk (all_reduce.h, chunkOffset)."""
    used = ll_channels(total_bytes, ranks, channels)
    minimum = _ll_threads(total_bytes, ranks) * 8
    loops: list[list[list[tuple[int, int]]]] = [[] for _ in range(channels)]
    start = 0
    while start < total_bytes:
        size = min(LL_CHUNK_BYTES, _ceil(total_bytes - start, used * ranks * minimum) * minimum)
        for channel in range(used):
            ranges = []
            for chunk in range(ranks):
                begin = start + (chunk * used + channel) * size
                ranges.append((min(begin, total_bytes), min(begin + size, total_bytes)))
            loops[channel].append(ranges)
        start += used * ranks * LL_CHUNK_BYTES
    return Chunking(loops)


def _part_loops(begin: int, end: int, ranks: int, align: int) -> list[list[tuple[int, int]]]:
    """Loops over one channel's contiguous part; the last one's chunks shrink, aligned."""
    loops = []
    at = begin
    while at < end:
        full = end - at >= ranks * LL_CHUNK_BYTES
        size = LL_CHUNK_BYTES if full else _up(_ceil(end - at, ranks), align)
        ranges = [(min(at + k * size, end), min(at + (k + 1) * size, end)) for k in range(ranks)]
        loops.append(ranges)
        at += ranks * LL_CHUNK_BYTES
    return loops


def chunks_2_20(total_bytes: int, ranks: int, channels: int) -> Chunking:
    """NCCL 2.20 and 2.21: one contiguous part per channel, aligned to the bytes that a block
    reads."""
    used = ll_channels(total_bytes, ranks, channels)
    align = 8 * _ll_threads(total_bytes, ranks)
    loops: list[list[list[tuple[int, int]]]] = [[] for _ in range(channels)]
    for channel, begin, end in _aligned_parts(total_bytes, used, align):
        loops[channel] = _part_loops(begin, end, ranks, align)
    return Chunking(loops)


def parts_by_cells(
    total_bytes: int, used: int, channels: int, traffic: int, floor_bytes: int
) -> list[tuple[int, int, int]]:
    """[part] (channel, begin, end) in bytes, in whole cells of traffic: NCCL 2.23 and later
    (scheduleCollTasksToPlan)."""
    work = max(floor_bytes, total_bytes * traffic)
    cell = _up(_ceil(floor_bytes, traffic), 16)
    share = work // min(used, channels)
    share = _up(share, 16) if floor_bytes == 32768 else max(floor_bytes, share)
    cells = _ceil(total_bytes, cell)
    each = min(cells, _ceil(share, cell * traffic))
    low = cells if channels == 1 else each
    middle, high = divmod(cells - low, each)
    if (low > 0) + middle + (high > 0) > channels:
        middle = channels - 2
        each, rest = divmod(cells - low, middle + 1)
        high = each + rest
    sizes = [low] + [each] * middle + ([high] if high else [])
    parts, at = [], 0
    for channel, count in enumerate(sizes):
        end = min(at + count * cell, total_bytes)
        parts.append((channel, at, end))
        at = end
    return parts


def chunks_by_cells(factor: int, floor_bytes: int) -> Callable[[int, int, int], Chunking]:
    """Chunk function for NCCL 2.23 and later. factor: LL traffic counts this many times (4 from
    2.26 on); floor_bytes: smallest cell."""

    def chunks(total_bytes: int, ranks: int, channels: int) -> Chunking:
        used = ll_channels(total_bytes, ranks, channels)
        loops: list[list[list[tuple[int, int]]]] = [[] for _ in range(channels)]
        for channel, begin, end in parts_by_cells(
            total_bytes, used, channels, 2 * factor, floor_bytes
        ):
            loops[channel] = _part_loops(begin, end, ranks, 16)
        return Chunking(loops)

    return chunks


CHUNKS: dict[str, Callable[[int, int, int], Chunking]] = {
    "2.19": chunks_2_19,
    "2.20": chunks_2_20,
    "2.23": chunks_by_cells(1, 16384),
    "2.26": chunks_by_cells(4, 16384),
    "2.29": chunks_by_cells(4, 32768),
}
"""First NCCL release of each partition rule -> its chunk function (total bytes, ranks,
channels)."""


def broadcast_pieces(
    total: int, ranks: int, channels: int, version: str
) -> list[list[tuple[int, int]]]:
    """[channel] byte ranges of a broadcast's messages; broadcast traffic counts once."""
    used = ll_channels(total, ranks, channels)
    if version == "2.19":
        return _interleaved_pieces(total, used, channels, _ll_threads(total, ranks) * 8)
    if version == "2.20":
        parts = _aligned_parts(total, used, _ll_threads(total, ranks) * 8)
    else:
        factor, floor_bytes = {"2.23": (1, 16384), "2.26": (4, 16384), "2.29": (4, 32768)}[version]
        parts = parts_by_cells(total, used, channels, factor, floor_bytes)
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(channels)]
    for channel, begin, end in parts:
        pieces[channel] = [
            (at, min(at + LL_CHUNK_BYTES, end)) for at in range(begin, end, LL_CHUNK_BYTES)
        ]
    return pieces


def _aligned_parts(total: int, used: int, align: int) -> list[tuple[int, int, int]]:
    """(channel, begin, end): NCCL 2.20 and 2.21 give each channel one aligned part."""
    share, at = _up(_ceil(total, used), 16), 0
    parts = []
    for channel in range(used):
        end = min(at + _up(min(share, total - at), align), total)
        parts.append((channel, at, end))
        at = end
    return parts


def _interleaved_pieces(
    total: int, used: int, channels: int, align: int
) -> list[list[tuple[int, int]]]:
    """NCCL up to 2.19: full steps round robin over channels, then one shrunken round."""
    pieces: list[list[tuple[int, int]]] = [[] for _ in range(channels)]
    start = 0
    while start < total:
        size = LL_CHUNK_BYTES
        if total - start < used * LL_CHUNK_BYTES:
            size = _up(_ceil(total % (used * LL_CHUNK_BYTES), used), align)
        for channel in range(used):
            begin = min(start + channel * size, total)
            # A channel with nothing left still takes its turn: an empty message.
            pieces[channel].append((begin, min(begin + size, total)))
        start += used * size
    return pieces
