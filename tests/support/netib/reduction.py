"""Ring collectives executed hop by hop: what every rank sends, what it stores."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from support.netib.layouts import slices
from support.netib.options import Collective, Options
from support.netib.partition import Shape, over, plan, up

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
    return Shape(kind, count, each, options.ranks, options.channels, protocol, options.version)


def all_reduce(options: Options, parts: list[torch.Tensor]) -> Operation:
    """Sum of `parts`, one flat tensor a rank, rounded at every hop as the ring does."""
    ranks, count, each = options.ranks, len(parts[0]), parts[0].element_size()
    protocol = options.protocol_for(count * each)
    shape = shape_of(options, "all_reduce", count, each, protocol)
    stored = [part.clone() for part in parts]
    loads: Loads = {}
    planned = plan(shape)
    final = 0
    for channel, loops in planned.items():
        for chunks in loops:
            hop_by_hop(parts, stored, chunks, channel, shape.slices, loads)
            final += sum(n for k, (_, n) in enumerate(chunks) if seen(options, k, channel))
    for other in stored[1:]:
        assert octets(other) == octets(stored[0])
    result = octets(stored[ranks - 1])
    about = Collective("all_reduce", "dp", protocol, result, visible=final / count)
    return Operation(about, loads, shape.slices, 1, list(planned))


def seen(options: Options, chunk: int, channel: int) -> bool:
    """Whether some mirror point passes the chunk in final form."""
    for rank in options.mirrored:
        if options.directions != "rx" and chunk != (rank + 1) % options.ranks:
            return True
        if options.directions != "tx" and chunk != rank:
            return True
    return False


def hop_by_hop(
    parts: list[torch.Tensor],
    stored: list[torch.Tensor],
    chunks: list[tuple[int, int]],
    channel: int,
    number: int,
    loads: Loads,
) -> None:
    """One loop of an all-reduce: all ranks in lock-step."""
    ranks = len(parts)
    arriving: list[torch.Tensor] = []
    for step in range(2 * (ranks - 1)):
        leaving = []
        for rank in range(ranks):
            chunk = (rank - step - 1) % ranks
            at, length = chunks[chunk]
            where = slice(at, at + length)
            if step == 0:
                value = parts[rank][where]
            elif step < ranks:
                value = arriving[rank] + parts[rank][where]
            else:
                value = arriving[rank]
            if step >= ranks - 1:
                stored[rank][where] = value
            leaving.append(value)
            loads.setdefault((rank, channel), []).extend(cut(value, number))
        arriving = [leaving[rank - 1] for rank in range(ranks)]
    for rank in range(ranks):
        at, length = chunks[(rank + 1) % ranks]
        stored[rank][at : at + length] = arriving[rank]


def all_gather(options: Options, blocks: list[bytes]) -> Operation:
    """Every rank's block to all, by ring."""
    ranks = options.ranks
    protocol = options.protocol_for(len(blocks[0]) * ranks)
    shape = shape_of(options, "all_gather", len(blocks[0]), 1, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        for [(at, length)] in loops:
            for step in range(ranks - 1):
                for rank in range(ranks):
                    block = blocks[(rank - step) % ranks][at : at + length]
                    whole = slices(length, 1, shape.slices)
                    messages = [block[a : a + n] for a, n in whole]
                    loads.setdefault((rank, channel), []).extend(messages)
    about = Collective("all_gather", "dp", protocol, b"".join(blocks))
    return Operation(about, loads, shape.slices, 1, list(planned))


def reduce_scatter(options: Options, parts: list[torch.Tensor]) -> Operation:
    """Each rank's block of the sum of `parts` stays with it: nobody sends what is whole."""
    ranks, each = options.ranks, parts[0].element_size()
    count = len(parts[0]) // ranks
    protocol = options.protocol_for(len(parts[0]) * each)
    shape = shape_of(options, "reduce_scatter", count, each, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        for [(at, length)] in loops:
            arriving: list[torch.Tensor] = []
            for step in range(ranks - 1):
                leaving = []
                for rank in range(ranks):
                    first = (rank - step - 1) % ranks * count + at
                    value = parts[rank][first : first + length]
                    leaving.append(value + arriving[rank] if step else value)
                    loads.setdefault((rank, channel), []).extend(cut(leaving[-1], shape.slices))
                arriving = [leaving[rank - 1] for rank in range(ranks)]
    about = Collective("reduce_scatter", "dp", protocol, b"")
    return Operation(about, loads, shape.slices, 1, list(planned))


def broadcast(options: Options, content: bytes, root: int = 0) -> Operation:
    """The root's bytes down the ring; the rank before it sends nothing."""
    protocol = options.protocol_for(len(content))
    shape = shape_of(options, "broadcast", len(content), 1, protocol)
    loads: Loads = {}
    planned = plan(shape)
    for channel, loops in planned.items():
        pieces = [content[at : at + length] for [(at, length)] in loops]
        for place in range(options.ranks - 1):
            loads[(root + place) % options.ranks, channel] = pieces
    about = Collective("broadcast", "dp", protocol, content)
    return Operation(about, loads, 1, 0, list(planned), root=root)


def transfer(content: bytes, sender: int) -> Operation:
    """A send of the second communicator, in which 0 is the mirrored rank and 1 its neighbour."""
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
    about = Collective("send", "pp", "Simple", content)
    return Operation(about, loads, 1, 0, list(range(parts)))
