"""All-reduces by NCCL's double binary tree: who stands where, what each link carries.

NCCL src/graph/trees.cc (ncclGetBtree, ncclGetDtree), src/graph/connect.cc (connectTrees),
src/device/all_reduce.h (runTreeSplit), src/enqueue.cc (chunk sizes, threads and channels).
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from support.netib.nodes import order_of
from support.netib.options import LL, LL128, SIMPLE, Collective, Options
from support.netib.partition import Chunk, Shape, cells, over, up

STEP_BYTES = {LL: 32768, LL128: 576000, SIMPLE: 524288}
"""Of data: a chunk of a tree is one FIFO step at most, and one message."""

Links = dict[tuple[int, int, int], list[bytes]]
"""(sender, channel, receiver) -> the data of each of its messages, in order."""


@cache
def parents(ranks: int, second: bool) -> tuple[int | None, ...]:
    """[rank] the one above it, of the first tree or of the second."""
    first: list[int | None] = [None]
    for rank in range(1, ranks):
        low = rank & -rank
        above = (rank - low) | (2 * low)
        first.append(above if above < ranks else rank - low)
    if not second:
        return tuple(first)
    found: list[int | None] = []
    for rank in range(ranks):
        if ranks % 2:
            above_it = first[(rank - 1) % ranks]
            found.append(None if above_it is None else (above_it + 1) % ranks)
        else:
            above_it = first[ranks - 1 - rank]
            found.append(None if above_it is None else ranks - 1 - above_it)
    return tuple(found)


@cache
def tree_of(options: Options, channel: int) -> tuple[int | None, ...]:
    """[rank] the one above it. NCCL doubles the channels it found, and the later half has the
    second tree; more channels are copies of these. Trees run over nodes: inside one each rank of
    a chain tells the one before it."""
    second = channel // options.tree_found % 2 == 1
    nodes = parents(options.nodes, second)
    chain = order_of(options, channel)
    if options.tree_chain == "back":
        chain = (chain[0], *chain[:0:-1])
    found: list[int | None] = [None] * options.ranks
    for node, above in enumerate(nodes):
        for one, other in pairwise(chain):
            found[node * options.gpus + other] = node * options.gpus + one
        if above is not None:
            end = chain[above_end(options, first_child(node, above, options.nodes, second))]
            found[node * options.gpus + chain[0]] = above * options.gpus + end
    return tuple(found)


def first_child(node: int, above: int, nodes: int, second: bool) -> bool:
    """Whether a node is the first of its parent's children: in the tree as it is drawn it stands
    before it. The second tree is drawn with its nodes renamed."""
    if second and nodes % 2:
        return (node - 1) % nodes < (above - 1) % nodes
    return node > above if second else node < above


def above_end(options: Options, first: bool) -> int:
    """Place in its chain of the GPU that a parent's child is linked with."""
    if options.tree_pattern == "tree" or options.gpus == 1:
        return 0
    return int(first or options.tree_pattern == "split")


def children(tree: tuple[int | None, ...], rank: int) -> list[int]:
    return [below for below, above in enumerate(tree) if above == rank]


def used(shape: Shape) -> tuple[int, int]:
    """(channels, threads): a tree of LL earns a channel by 4096 bytes, whatever the ranks."""
    most = {LL: 512, LL128: 640, SIMPLE: 512}[shape.protocol]
    each = 64 if shape.protocol == SIMPLE else 8
    channels, threads, size = shape.channels, most, shape.whole_bytes
    while channels > 1 and size < channels * threads * each:
        channels -= 1
    while size < channels * threads * each and threads % 128 == 0:
        threads //= 2
    if shape.protocol == SIMPLE:
        threads += 128
    return channels, max(96, threads)


def halved(size: int, total: int, channels: int, rules: list[tuple[int, int]]) -> int:
    """Chunks are halved until the pipeline is deep enough. rules: (enough of them, least size)."""
    for enough, least in rules:
        while total // (channels * size) < enough and size > least:
            size //= 2
    return size


def deep(shape: Shape) -> list[tuple[int, int]]:
    """LL128's rules: 64 and 16 times a depth and a tenth for each GPU of a node, over them."""
    depth = (shape.ranks // shape.gpus).bit_length()
    rules = []
    for enough, least in ((64, 131072), (16, 32768)):
        # Exactly: as many as enough * (depth + gpus / 10) / gpus, or more.
        rules.append((over(enough * (10 * depth + shape.gpus), 10 * shape.gpus), least))
    return rules if shape.protocol == LL128 else []


def plan(shape: Shape) -> dict[int, list[Chunk]]:
    """Channel -> (first element, elements) of its chunks."""
    if shape.version >= (2, 22):
        return by_cells(shape)
    if shape.version >= (2, 20):
        return in_parts(shape)
    return in_turns(shape)


def by_cells(shape: Shape) -> dict[int, list[Chunk]]:
    """2.22 and later: each channel's chunks by its own part."""
    each, step = shape.element_bytes, STEP_BYTES[shape.protocol]
    grain = {LL: 16, LL128: 1920, SIMPLE: 512}[shape.protocol]
    planned = {}
    for channel, first, length in cells(shape, used(shape)[0]):
        size = halved(step, length * each, 1, deep(shape)) // grain * grain
        planned[channel] = pieces(first, length, size // each)
    return planned


def in_parts(shape: Shape) -> dict[int, list[Chunk]]:
    """2.20 and 2.21: parts are multiples of what the threads of a block read."""
    each = shape.element_bytes
    channels, threads = used(shape)
    step = STEP_BYTES[shape.protocol]
    size = halved(step, shape.whole_bytes, channels, deep(shape)) // each
    even = {LL: 8 * threads, LL128: 480 * (threads // 32), SIMPLE: 4096}[shape.protocol] // each
    share = over(up(over(shape.whole_bytes, channels), 16), each)
    planned: dict[int, list[Chunk]] = {}
    first = 0
    for channel in range(channels):
        length = min(up(min(share, shape.count - first), even), shape.count - first)
        if length:
            planned[channel] = pieces(first, length, size)
        first += length
    return planned


def in_turns(shape: Shape) -> dict[int, list[Chunk]]:
    """Up to 2.19: channels take chunks by turns; what a channel lacks it sends empty."""
    each, count = shape.element_bytes, shape.count
    channels, threads = used(shape)
    nodes, total = shape.ranks // shape.gpus, shape.whole_bytes
    depth = shape.gpus - 1 + nodes.bit_length() - 1
    if shape.protocol == SIMPLE:
        rules = [(8 * depth, 131072), (4 * depth, 65536), (depth, 32768)]
        size = halved(524288, total, channels, rules) // each
        least = (threads - 64) * 64 // each
    elif shape.protocol == LL128:
        size = halved(614400, total, channels, deep(shape)) * 15 // (16 * each)
        least = threads * (60 // each) // 8
    else:
        size, least = 32768 // each, threads * (8 // each)
    loop = channels * size
    if loop > count:
        size = over(count, channels * least) * least
    planned: dict[int, list[Chunk]] = {}
    for channel in range(channels):
        starts = [at + channel * size for at in range(0, count, loop)]
        planned[channel] = [(min(at, count), max(0, min(size, count - at))) for at in starts]
    return planned


def pieces(first: int, length: int, size: int) -> list[Chunk]:
    return [(first + at, min(size, length - at)) for at in range(0, length, size)]


def summed(parts: list[torch.Tensor], tree: tuple[int | None, ...]) -> dict[int, torch.Tensor]:
    """[rank] what it has of the sum once its children told theirs."""
    found: dict[int, torch.Tensor] = {}

    def of(rank: int) -> torch.Tensor:
        total = parts[rank]
        for child in children(tree, rank):
            total = total + of(child)
        found[rank] = total
        return total

    of(tree.index(None))
    return found


def tree_links(
    options: Options, parts: list[torch.Tensor], shape: Shape
) -> tuple[Links, bytes, float]:
    """(what each link of every channel carries, the sum, the share of it that mirrors see)."""
    result = torch.empty_like(parts[0])
    links: Links = {}
    seen = 0
    for channel, chunks in plan(shape).items():
        tree = tree_of(options, channel)
        sums = summed(parts, tree)
        total = sums[tree.index(None)]
        for at, length in chunks:
            where = slice(at, at + length)
            result[where] = total[where]
            seen += length * final_seen(options, tree)
            for rank, above in enumerate(tree):
                if above is not None:
                    links.setdefault((rank, channel, above), []).append(octets(sums[rank][where]))
                    links.setdefault((above, channel, rank), []).append(octets(total[where]))
    return links, octets(result), seen / max(1, len(result))


def final_seen(options: Options, tree: tuple[int | None, ...]) -> bool:
    """A mirrored node receives the sum, or sends it down."""
    for rank, above in enumerate(tree):
        if above is None or rank // options.gpus == above // options.gpus:
            continue
        into = rank // options.gpus in options.mirrored and options.directions != "tx"
        if into or (above // options.gpus in options.mirrored and options.directions != "rx"):
            return True
    return False


def octets(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def told(result: bytes, protocol: str, visible: float) -> Collective:
    return Collective("all_reduce", "dp", protocol, result, visible=visible)
