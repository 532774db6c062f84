"""Rings over nodes of several GPUs: whose turn is when, and which hops leave a node.

Inside a node NVLink carries the hops; only its last GPU in a channel's ring writes to the next
node, to the first GPU there. Ring index 0 is rank 0, wherever it stands in its node.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from support.netib.options import Options


@cache
def order_of(options: Options, channel: int, node: int = 0) -> tuple[int, ...]:
    """A node's GPUs from the one that receives to the one that sends, by local rank."""
    if options.ring_exits:
        first = channel % options.ports * options.gpus // options.ports
        last = first ^ 1 if options.gpus % 2 == 0 else (first + 1) % options.gpus
        if options.ring_exits == "crossed" and node % 2:
            first, last = last, first
        return (first, *(gpu for gpu in range(options.gpus) if gpu not in (first, last)), last)
    if not options.orders:
        return tuple(range(options.gpus))
    drawn = np.random.default_rng((options.seed, 77, channel % options.orders))
    return tuple(int(n) for n in drawn.permutation(options.gpus))


@cache
def ranks_of(options: Options, channel: int) -> tuple[int, ...]:
    """[ring index] the rank that stands there."""
    nodes = list(range(options.ranks // options.gpus))
    if options.manners.ring:
        seed = options.seed, 78, channel * (options.manners.ring == "each")
        nodes = [int(n) for n in np.random.default_rng(seed).permutation(len(nodes))]
    whole = [
        node * options.gpus + local for node in nodes for local in order_of(options, channel, node)
    ]
    first = whole.index(0)
    return (*whole[first:], *whole[:first])


def visible(options: Options, channel: int) -> list[int]:
    """Ring indices whose sends some mirrored node's port carries, in one direction or the other."""
    ranks, found = ranks_of(options, channel), []
    for index in range(len(ranks)):
        ends = ranks[index] // options.gpus, ranks[(index + 1) % len(ranks)] // options.gpus
        if ends[0] != ends[1] and set(ends) & set(options.mirrored):
            found.append(index)
    return found


def log_of(options: Options, *, cut_at: int | None = None) -> str:
    """What NCCL prints of these rings on rank 0 (src/graph/rings.cc: ncclBuildRings), among other
    lines; cut_at: releases up to 2.21 print so many ranks of a ring."""
    who, version = "host0:81:97 [0] NCCL INFO", ".".join(map(str, options.version))
    lines = [f"{who[:-10]}NCCL version {version}.5+cuda12.4"]
    for channel in range(options.channels):
        ranks = "".join(f" {rank:3d}" for rank in ranks_of(options, channel)[:cut_at])
        lines.append(f"{who} Channel {channel:02d}/{options.channels:02d} : {ranks}")
    lines.append(f"{who} Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read")
    return "\n".join(lines) + "\n"
