"""NCCL's double binary tree over two ranks."""

from __future__ import annotations

import torch
from support.netib.options import LL, LL128, SIMPLE, Collective, Options
from support.netib.partition import Shape, plan

STEP_BYTES = {LL: 32768, LL128: 576000, SIMPLE: 524288}
"""Of data: a chunk of a tree is one FIFO step, and one message."""

Loads = dict[tuple[int, int], list[bytes]]


def tree_loads(options: Options, parts: list[torch.Tensor], shape: Shape) -> Loads:
    """On each channel one rank is the root: the other sends it all that it has of a chunk, and the
    root sends back the sum. The root of every second channel is the other rank. The parts of
    channels are those of a ring."""
    each = parts[0].element_size()
    total = parts[0] + parts[1]
    loads: Loads = {}
    for channel, loops in plan(shape).items():
        places = [(at, at + length) for loop in loops for at, length in loop if length]
        first, stop = min(a for a, _ in places), max(b for _, b in places)
        chunk, root = STEP_BYTES[shape.protocol] // each, channel % 2
        for at in range(first, stop, chunk):
            where = slice(at, min(at + chunk, stop))
            for rank, values in ((root, total), (1 - root, parts[1 - root])):
                content = values[where].contiguous().view(torch.uint8).numpy().tobytes()
                loads.setdefault((rank, channel), []).append(content)
    return loads


def about(options: Options, parts: list[torch.Tensor], protocol: str) -> Collective:
    result = (parts[0] + parts[1]).contiguous().view(torch.uint8).numpy().tobytes()
    return Collective("all_reduce", "dp", protocol, result)
