"""NCCL's double binary tree: who stands above whom, and how a channel's part is cut for it.

Of nodes with one rank each: there a rank's place in the ring is its node's in the tree. A rank
sends its parent all it has of a chunk, and the root's sum comes down; each chunk is one message.

Sources: NCCL src/graph/trees.cc (ncclGetBtree, ncclGetDtree), src/graph/connect.cc (connectTrees,
copyChannels), src/device/all_reduce.h (runTreeSplit), src/enqueue.cc (calcCollChunking).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from flowcheck.wire.partition import (
    Launch,
    Span,
    aligned_to,
    cell_parts,
    channels_and_threads,
    even_parts,
)
from flowcheck.wire.terms import GRAIN_BYTES, Protocol, Rule, round_up

Parents = tuple[int | None, ...]
"""[rank] the one above it; None: it is the root."""

_GRAIN_BYTES = {**GRAIN_BYTES, Protocol.LL: 16, Protocol.SIMPLE: 512}
_LEAST_TURN = {Protocol.SIMPLE: 64, Protocol.LL: 8}
"""Bytes that each thread reads at least, up to 2.19."""


@lru_cache(maxsize=256)
def parents(ranks: int, second: bool) -> Parents:
    """The first tree, or the second: its mirror, or of an odd number of ranks the first one shifted
    by a rank. Each rank that has children in one of them has none in the other, but for roots."""
    first = tuple(_above(rank, ranks) for rank in range(ranks))
    if not second:
        return first
    if ranks % 2:
        own = (first[rank - 1] for rank in range(ranks))
        return tuple(None if above is None else (above + 1) % ranks for above in own)
    own = (first[ranks - 1 - rank] for rank in range(ranks))
    return tuple(None if above is None else ranks - 1 - above for above in own)


def _above(rank: int, ranks: int) -> int | None:
    """Leaves are the odd ranks; a rank's lowest bit tells its height."""
    if not rank:
        return None
    lowest = rank & -rank
    above = (rank - lowest) | 2 * lowest
    return above if above < ranks else rank - lowest


def tree_of(channel: int, ranks: int, found: int) -> Parents:
    """The tree of a channel. found: channels of NCCL's search, which it doubles: the later half has
    the second tree, and what more channels there are copy these."""
    return parents(ranks, channel // found % 2 == 1)


def down(sender: int, receiver: int, tree: Parents) -> bool | None:
    """Whether the sum passes from one to the other; False: partial sums do; None: no link."""
    if tree[receiver] == sender:
        return True
    return False if tree[sender] == receiver else None


def tree_chunks(launch: Launch) -> tuple[tuple[Span, ...], ...]:
    """[channel] what each message carries on every link of its tree, empty ones too."""
    chunks: list[tuple[Span, ...]] = [()] * launch.channels
    if not launch.work_bytes:
        return tuple(chunks)
    used, threads = channels_and_threads(launch)
    if launch.rule is Rule.V2_19:
        chunks[:used] = _by_turns(launch, used, threads)
        return tuple(chunks)
    if launch.rule is Rule.V2_20:
        size = _chunk(launch, launch.step_data_bytes, launch.work_bytes, used)
        for channel, start, part in even_parts(
            launch.work_bytes, used, aligned_to(launch.protocol, threads)
        ):
            chunks[channel] = _spans(start, part, size)
        return tuple(chunks)
    for channel, start, part in cell_parts(launch, used):
        size = _chunk(launch, launch.step_data_bytes, part, 1)
        grain = _GRAIN_BYTES[launch.protocol]
        chunks[channel] = _spans(start, part, size // grain * grain)
    return tuple(chunks)


def _spans(start: int, size: int, chunk: int) -> tuple[Span, ...]:
    return tuple((start + at, min(chunk, size - at)) for at in range(0, size, chunk))


def _chunk(launch: Launch, size: int, total: int, used: int) -> int:
    """Bytes of a chunk: as many as a step of the buffer holds, halved while too few of them fill
    the pipeline."""
    depth = launch.ranks.bit_length()
    rules: Sequence[tuple[int, int]] = ()
    if launch.protocol is Protocol.LL128:
        # NCCL compares with 64 and 16 times depth + 0.1.
        rules = ((64 * depth + 7, 131_072), (16 * depth + 2, 32_768))
    elif launch.protocol is Protocol.SIMPLE and launch.rule is Rule.V2_19:
        height = depth - 1
        rules = ((8 * height, 131_072), (4 * height, 65_536), (height, 32_768))
    for enough, least in rules:
        while total // (used * size) < enough and size > least:
            size //= 2
    return size


def _by_turns(launch: Launch, used: int, threads: int) -> Iterator[tuple[Span, ...]]:
    """<= 2.19: channels take chunks by turns; where nothing is left one is empty."""
    total, each = launch.work_bytes, launch.element_bytes
    if launch.protocol is Protocol.LL128:
        step = _chunk(launch, launch.step_bytes, total, used)
        size = step * 15 // (16 * each) * each
        least = threads * (60 // each) // 8 * each
    else:
        size = _chunk(launch, launch.step_data_bytes, total, used)
        least = (threads - 64 * (launch.protocol is Protocol.SIMPLE)) * _LEAST_TURN[launch.protocol]
    loop = used * size
    if loop > total:
        size = round_up(-(-total // used), least)
    for channel in range(used):
        starts = (at + channel * size for at in range(0, total, loop))
        yield tuple((start, min(size, max(0, total - start))) for start in starts)
