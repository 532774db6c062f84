"""NCCL's double binary tree: parent of each node, and the chunks a tree all-reduce sends over
each link.

It runs over nodes, in the order of their ring; inside a node its ranks form a chain, whose first
one or two are linked with other nodes. A node sends its parent all it has of a chunk, and the
root's sum comes down; each chunk is one message.

Sources: NCCL src/graph/trees.cc (ncclGetBtree, ncclGetDtree), src/graph/connect.cc
(ncclTopoPreset, connectTrees, copyChannels), src/device/all_reduce.h (runTreeSplit),
src/enqueue.cc (calcCollChunking).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol as Shape

from flowcheck.wire.collectives.chunk_partition import (
    Launch,
    Span,
    ThreadRule,
    aligned_to,
    cell_parts,
    channels_and_threads,
    even_parts,
)
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, NcclEra, Protocol, round_up

Parents = tuple[int | None, ...]
"""[node] the one above it; None: it is the root."""
PerTree = tuple[bool, bool]
"""Whether the first tree's, the second tree's ... ."""
TREE_THREADS = ThreadRule(ll_by_rank=False, sync_warps=4)

_GRAIN_BYTES = {**GRAIN_BYTES, Protocol.LL: 16, Protocol.SIMPLE: 512}
_LEAST_TURN = {Protocol.SIMPLE: 64, Protocol.LL: 8}
"""Bytes that each thread reads at least, up to 2.19."""


class TreeCommunicator(Shape):
    """What a communicator's trees are made of."""

    @property
    def ranks(self) -> int: ...
    @property
    def gpus(self) -> int:
        """Ranks of a node."""
        ...

    @property
    def found(self) -> int:
        """Channels of NCCL's search."""
        ...


class TreeEdge(Shape):
    """An edge: connections from one node to another."""

    @property
    def writers(self) -> int | tuple[int, ...]:
        """Ring index of who writes; several: [channel]."""
        ...

    @property
    def receiver(self) -> int | None:
        """Any ring index of the node that reads; None: it is the next one."""
        ...

    @property
    def trees(self) -> PerTree:
        """Which of the two trees pass there."""
        ...


@lru_cache(maxsize=256)
def tree_parents(nodes: int, second: bool) -> Parents:
    """The first tree, or the second: its mirror, or of an odd number of nodes the first one shifted
    by a node. Each node that has children in one of them has none in the other, but for roots."""
    first = tuple(_above(node, nodes) for node in range(nodes))
    if not second:
        return first
    if nodes % 2:
        own = (first[node - 1] for node in range(nodes))
        return tuple(None if above is None else (above + 1) % nodes for above in own)
    own = (first[nodes - 1 - node] for node in range(nodes))
    return tuple(None if above is None else nodes - 1 - above for above in own)


def _above(node: int, nodes: int) -> int | None:
    """Leaves are the odd nodes; a node's lowest bit tells its height."""
    if not node:
        return None
    lowest = node & -node
    above = (node - lowest) | 2 * lowest
    return above if above < nodes else node - lowest


def stands_before(node: int, above: int, nodes: int, second: bool) -> bool:
    """Whether a node is the first of its parent's children: as the tree is drawn it stands before
    it. The second tree is the first one with its nodes renamed."""
    if not second:
        return node < above
    return (node - 1) % nodes < (above - 1) % nodes if nodes % 2 else node > above


def is_second(channel: int, found: int) -> bool:
    """Which tree a channel has. found: channels of NCCL's search, which it doubles: the later half
    has the second tree, and what more channels there are copy these."""
    return channel // found % 2 == 1


def tree_direction(edge: TreeEdge, channel: int, own: TreeCommunicator) -> bool | None:
    """Whether sums come down an edge's connection of a channel; False: partial sums go up there;
    None: the channel's tree does not pass."""
    writer = edge.writers if isinstance(edge.writers, int) else edge.writers[0]
    nodes, node = own.ranks // own.gpus, writer // own.gpus
    other = (node + 1) % nodes if edge.receiver is None else edge.receiver // own.gpus
    second = is_second(channel, own.found)
    return sum_passes_down(node, other, tree_parents(nodes, second)) if edge.trees[second] else None


def sum_passes_down(sender: int, receiver: int, tree: Parents) -> bool | None:
    """Whether the sum passes from one to the other; False: partial sums do; None: no link."""
    if tree[receiver] == sender:
        return True
    return False if tree[sender] == receiver else None


def tree_chunks(launch: Launch) -> tuple[tuple[Span, ...], ...]:
    """[channel] what each message carries on every link of its tree, empty ones too. The launch
    has TREE_THREADS."""
    chunks: list[tuple[Span, ...]] = [()] * launch.channels
    if not launch.work_bytes:
        return tuple(chunks)
    used, threads = channels_and_threads(launch)
    if launch.era is NcclEra.V2_19:
        chunks[:used] = _by_turns(launch, used, threads)
        return tuple(chunks)
    if launch.era is NcclEra.V2_20:
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
    gpus, depth = launch.gpus, (launch.ranks // launch.gpus).bit_length()
    rules: list[tuple[int, int]] = []
    if launch.protocol is Protocol.LL128:
        # NCCL compares with 64 and 16 times (depth + gpus / 10) / gpus.
        tenths = 10 * depth + gpus
        rules = [
            (-(-enough * tenths // (10 * gpus)), least)
            for enough, least in ((64, 131_072), (16, 32_768))
        ]
    elif launch.protocol is Protocol.SIMPLE and launch.era is NcclEra.V2_19:
        height = gpus - 1 + depth - 1
        rules = [(8 * height, 131_072), (4 * height, 65_536), (height, 32_768)]
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
