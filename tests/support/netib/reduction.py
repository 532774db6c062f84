"""Ring collectives executed hop by hop: what every rank sends, what it stores."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from support.netib.layouts import slices
from support.netib.nodes import ranks_of, visible
from support.netib.nvls import nvls_links
from support.netib.options import Collective, Options
from support.netib.partition import Shape, over, plan, up
from support.netib.tree import Links, told, tree_links

Loads = dict[tuple[int, int], list[bytes]]
"""(sender, channel) -> the data of each of its messages, in order."""


@dataclass
class Operation:
    """One collective as connections carry it."""

    about: Collective
    loads: Loads
    slices: int
    shift: int
    """Chunk steps a rank's send lies behind the receive that feeds it: 1; broadcast 0."""
    channels: list[int] = field(default_factory=list)
    root: int = 0
    """Of a broadcast."""
    links: Links = field(default_factory=dict)
    """In place of `loads`, of a tree: what each of its links carries."""
    nvls: bool = False
    """The tree is an NVLS tree."""
    gap_us: int = 0
    """Quiet time before; 0: it may begin while other channels end the one before."""
    first_frame: int = -1


def octets(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def cut(tensor: torch.Tensor, number: int) -> list[bytes]:
    """The messages of one chunk."""
    whole = slices(len(tensor), tensor.element_size(), number)
    return [octets(tensor[at : at + count]) for at, count in whole]


def shape_of(options: Options, kind: str, count: int, each: int, protocol: str) -> Shape:
    halving = options.manners.halving
    return Shape(
        kind, count, each, options.ranks, options.channels, protocol, options.version, halving,
        options.gpus,
    )  # fmt: skip


def all_reduce(options: Options, parts: list[torch.Tensor]) -> Operation:
    """Sum of `parts`, one flat tensor a rank, rounded at every hop as the ring does."""
    count, each = len(parts[0]), parts[0].element_size()
    if count * each < options.tree_below:
        return tree(options, parts)
    if options.nvls_above and count * each >= options.nvls_above:
        links, total, visible = nvls_links(options, parts)
        about = told(octets(total), "Simple", visible)
        used = sorted({channel for _, channel, _ in links})
        return Operation(about, {}, 1, 0, used, links=links, nvls=True)
    protocol = options.protocol_for(count * each)
    shape = shape_of(options, "all_reduce", count, each, protocol)
    result = torch.empty_like(parts[0])
    loads: Loads = {}
    planned = plan(shape)
    final = 0
    for channel, loops in planned.items():
        turn = torch.stack([parts[rank] for rank in ranks_of(options, channel)])
        for chunks in loops:
            hop_by_hop(options, turn, result, chunks, channel, shape.slices, loads)
            final += sum(n for k, (_, n) in enumerate(chunks) if seen(options, k, channel))
    about = told(octets(result), protocol, final / count)
    return Operation(about, loads, shape.slices, 1, list(planned))


def tree(options: Options, parts: list[torch.Tensor]) -> Operation:
    """The same by a tree."""
    count, each = len(parts[0]), parts[0].element_size()
    protocol = options.protocol_for(count * each)
    shape = shape_of(options, "all_reduce", count, each, protocol)
    links, result, visible = tree_links(options, parts, shape)
    channels = sorted({channel for _, channel, _ in links})
    return Operation(told(result, protocol, visible), {}, 1, 0, channels, links=links)


def seen(options: Options, chunk: int, channel: int) -> bool:
    """Whether some mirror point passes the chunk in final form."""
    ranks = ranks_of(options, channel)
    for sender in visible(options, channel):
        after = (sender + 1) % len(ranks)
        out = ranks[sender] // options.gpus in options.mirrored and options.directions != "rx"
        into = ranks[after] // options.gpus in options.mirrored and options.directions != "tx"
        if (out or into) and chunk != after:
            return True
    return False


def hop_by_hop(
    options: Options,
    turn: torch.Tensor,
    result: torch.Tensor,
    chunks: list[tuple[int, int]],
    channel: int,
    number: int,
    loads: Loads,
) -> None:
    """One loop of an all-reduce. turn: [ring index, element]; the sum of chunk k begins at ring
    index k + 1 and ends at k."""
    ranks = len(turn)
    wide = max(length for _, length in chunks)
    own = turn.new_zeros((ranks, ranks, wide))
    for chunk, (at, length) in enumerate(chunks):
        own[:, chunk, :length] = turn[:, at : at + length]
    every = torch.arange(ranks)
    sums = [own[(every + 1) % ranks, every]]
    for step in range(1, ranks):
        sums.append(sums[-1] + own[(every + step + 1) % ranks, every])
    if options.manners.values == "bytes":
        size = turn.element_size()
        for at in range(ranks):
            drawn = torch.randint(0, 256, (*sums[at].shape, size), dtype=torch.uint8)
            sums[at] = drawn.view(turn.dtype).reshape(sums[at].shape)
    for chunk, (at, length) in enumerate(chunks):
        result[at : at + length] = sums[-1][chunk, :length]
    watched = set(visible(options, channel))
    for sender in range(ranks):
        load = loads.setdefault((sender, channel), [])
        for step in range(2 * (ranks - 1)):
            if sender not in watched:
                load.extend([b""] * number)
                continue
            chunk = (sender - step - 1) % ranks
            value = sums[min(step, ranks - 1)][chunk, : chunks[chunk][1]]
            load.extend(cut(value, number))


def all_gather(options: Options, blocks: list[bytes]) -> Operation:
    """Every rank's block to all, by ring."""
    ranks = options.ranks
    protocol = options.protocol_for(len(blocks[0]) * ranks)
    shape = shape_of(options, "all_gather", len(blocks[0]), 1, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        for [(at, length)] in loops:
            order = ranks_of(options, channel)
            for step in range(ranks - 1):
                for rank in range(ranks):
                    block = blocks[order[(rank - step) % ranks]][at : at + length]
                    whole = slices(length, 1, shape.slices)
                    messages = [block[a : a + n] for a, n in whole]
                    loads.setdefault((rank, channel), []).extend(messages)
    told = Collective("all_gather", "dp", protocol, b"".join(blocks))
    return Operation(told, loads, shape.slices, 1, list(planned))


def reduce_scatter(options: Options, parts: list[torch.Tensor]) -> Operation:
    """Each rank's block of the sum of `parts` stays with it: nobody sends what is whole."""
    ranks, each = options.ranks, parts[0].element_size()
    count = len(parts[0]) // ranks
    protocol = options.protocol_for(len(parts[0]) * each)
    shape = shape_of(options, "reduce_scatter", count, each, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        order = ranks_of(options, channel)
        for [(at, length)] in loops:
            arriving: list[torch.Tensor] = []
            for step in range(ranks - 1):
                leaving = []
                for rank in range(ranks):
                    first = order[(rank - step - 1) % ranks] * count + at
                    value = parts[order[rank]][first : first + length]
                    leaving.append(value + arriving[rank] if step else value)
                    loads.setdefault((rank, channel), []).extend(cut(leaving[-1], shape.slices))
                arriving = [leaving[rank - 1] for rank in range(ranks)]
    told = Collective("reduce_scatter", "dp", protocol, b"")
    return Operation(told, loads, shape.slices, 1, list(planned))


def broadcast(options: Options, content: bytes, root: int = 0) -> Operation:
    """The root's bytes down the ring; the rank before it sends nothing."""
    protocol = options.protocol_for(len(content))
    shape = shape_of(options, "broadcast", len(content), 1, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        pieces = [content[at : at + length] for [(at, length)] in loops]
        first = ranks_of(options, channel).index(root)
        for place in range(options.ranks - 1):
            loads[(first + place) % options.ranks, channel] = pieces
    told = Collective("broadcast", "dp", protocol, content)
    return Operation(told, loads, 1, 0, list(planned), root=root)


def transfer(content: bytes, sender: int, communicator: str = "pp") -> Operation:
    """A send of a communicator of two ranks; in the second communicator 0 is the mirrored rank and
    1 its neighbour."""
    parts = 1
    while over(len(content), parts) > 131072 and parts < 2:
        parts *= 2
    each = up(over(len(content), parts), 4096)
    size = 131072
    if len(content) < 1 << 20:
        size = 32768 if len(content) < 1 << 17 else 65536
    loads: Loads = {}
    for channel in range(parts):
        part = content[channel * each : (channel + 1) * each]
        loads[sender, channel] = [part[at : at + size] for at in range(0, len(part), size)]
    told = Collective("send", communicator, "Simple", content)
    return Operation(told, loads, 1, 0, list(range(parts)))
