"""Grouped broadcasts, one of each rank's block: what torch's nccl2 makes of the list form of an
all-gather (torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.cpp, all_gather).

From 2.29 on NCCL fuses them: src/scheduler/allgatherv_sched.cc cuts every block into as many parts
as channels, and the kernel (src/device/all_gather_v.h) goes round the blocks, the rank's own first,
then that of the rank before it, a chunk of each. Otherwise each is a broadcast: src/enqueue.cc,
scheduleCollTasksToPlan, fills one channel after the other, the broadcasts in the order of roots.
"""

from __future__ import annotations

from support.netib.nodes import ranks_of
from support.netib.options import Collective, Options
from support.netib.partition import (
    GRAIN_BYTES,
    STEP_BYTES,
    channels_and_threads,
    over,
    up,
)
from support.netib.reduction import Loads, Operation, all_gather, shape_of

ALIGN_BYTES = 256


def listed(options: Options, blocks: list[bytes]) -> list[Operation]:
    """The list form of an all-gather. Blocks of nccl2 may differ in size where they are fused."""
    if not options.nccl2:
        return [all_gather(options, blocks)]
    return [fused(options, blocks)] if options.fuses else one_by_one(options, blocks)


def fused(options: Options, blocks: list[bytes]) -> Operation:
    ranks = options.ranks
    largest = max(map(len, blocks))
    protocol = options.protocol_for(largest * ranks)
    shape = shape_of(options, "all_gather", largest, 1, protocol)
    parts, _ = channels_and_threads(shape)
    chunk = STEP_BYTES[protocol] // GRAIN_BYTES[protocol] * GRAIN_BYTES[protocol]
    loads: Loads = {}
    for channel in range(parts):
        order = ranks_of(options, channel)
        own = {rank: part_of(blocks[rank], channel, parts) for rank in range(ranks)}
        rounds = max(over(len(part), chunk) for part in own.values())
        for sender in range(ranks):
            load = []
            for number in range(rounds):
                for depth in range(ranks - 1):
                    part = own[order[(sender - depth) % ranks]]
                    if piece := part[number * chunk : (number + 1) * chunk]:
                        load.append(piece)
            if load:
                loads[sender, channel] = load
    told = Collective("all_gather", "dp", protocol, b"".join(blocks))
    used = sorted({channel for _, channel in loads})
    return Operation(told, loads, 1, 1, used)


def part_of(block: bytes, part: int, parts: int) -> bytes:
    each = over(len(block), parts)
    return block[up(part * each, ALIGN_BYTES) : up((part + 1) * each, ALIGN_BYTES)]


def one_by_one(options: Options, blocks: list[bytes]) -> list[Operation]:
    """Of blocks that are a message each; from 2.22 on."""
    ranks, protocol = options.ranks, options.protocol_for(sum(map(len, blocks)))
    assert max(map(len, blocks)) <= STEP_BYTES[protocol] and options.version >= (2, 22)
    made = []
    for root, channel in enumerate(dealt(options, ranks)):
        first = ranks_of(options, channel).index(root)
        senders = [(first + place) % ranks for place in range(ranks - 1)]
        loads: Loads = {(sender, channel): [blocks[root]] for sender in senders}
        told = Collective("broadcast", "dp", protocol, blocks[root])
        made.append(Operation(told, loads, 1, 0, [channel], root=root))
    return made


def dealt(options: Options, tasks: int) -> list[int]:
    """The channel of each of so many broadcasts of a few bytes: one cell each, whose traffic is
    NCCL's least."""
    used = min(tasks, options.channels)
    if options.version < (2, 23):
        least, cell = 512, 16
    else:
        least = cell = 32768 if options.version >= (2, 29) else 16384
    target = max(least, tasks * least // used)
    if options.version >= (2, 29):
        target = up(tasks * least // used, 16)
    found, channel, filled = [], 0, 0
    for _ in range(tasks):
        found.append(channel)
        filled += cell
        if filled >= target and channel + 1 < options.channels:
            channel, filled = channel + 1, 0
    return found
