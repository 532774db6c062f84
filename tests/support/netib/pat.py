"""All-gathers by PAT, NCCL's parallel aggregated trees: over ceil(log2 ranks) dimensions, in each
of which a rank sends to the rank so many before it (1, 2, 4, ...) and receives from the one as far
behind. Small chunks of several ranks go in one message.

NCCL src/include/collectives.h, PatAGAlgorithm; src/proxy.cc, ncclPatternPatDown.
"""

from __future__ import annotations

from collections.abc import Iterator

from support.netib.options import SIMPLE, Collective, Options
from support.netib.partition import STEP_BYTES, cells, channels_and_threads
from support.netib.reduction import Loads, Operation, shape_of

SLOTS = 8
Sent = tuple[int, int, bool]
"""(dimension, how many ranks behind the sender the block's owner is, it ends a message)."""


def name_of(dimension: int) -> str:
    return f"pat{dimension}"


def dimensions(ranks: int) -> int:
    return (ranks - 1).bit_length()


def gathered(options: Options, blocks: list[bytes]) -> list[Operation]:
    """Every rank's block to all; an operation for each dimension."""
    ranks = options.ranks
    shape = shape_of(options, "all_gather", len(blocks[0]), 1, SIMPLE)
    used, _ = channels_and_threads(shape)
    loads: list[Loads] = [{} for _ in range(dimensions(ranks))]
    for channel, start, length in cells(shape, used):
        chunk = STEP_BYTES[SIMPLE]
        while chunk * 32 > length * ranks and chunk > 65536:
            chunk //= 2
        for sender in range(ranks):
            held: list[bytes] = [b""] * len(loads)
            for at in range(start, start + length, chunk):
                stop = min(at + chunk, start + length)
                for dimension, shift, ends in sends(ranks, chunk, length):
                    held[dimension] += blocks[(sender + shift) % ranks][at:stop]
                    if ends:
                        load = loads[dimension].setdefault((sender, channel), [])
                        load.append(held[dimension])
                        held[dimension] = b""
    return [
        Operation(Collective("all_gather", name_of(n), SIMPLE, b""), load, 1, 1, [])
        for n, load in enumerate(loads)
    ]


def lowest(value: int, most: int) -> int:
    """Place of its lowest bit that is set; `most` of zero."""
    return (value & -value).bit_length() - 1 if value else most


def sends(ranks: int, chunk: int, size: int) -> Iterator[Sent]:
    """What a rank sends of one chunk of `size` bytes of every block, in order."""
    whole = 1 << dimensions(ranks)
    factor, apart = 1, whole
    while chunk // (size * factor) >= 2 and factor < ranks // 2:
        factor, apart = factor * 2, apart // 2
    together, depth = factor, SLOTS
    while depth > 1 and factor < ranks // 2:
        depth, factor, apart = depth // 2, factor * 2, apart // 2
    scale = factor // 2
    while scale:  # the far ranks first, each to the next nearer one
        for a in range(factor // (2 * scale)):
            shift = (2 * a + 1) * scale * apart
            if shift < ranks:
                last = a % together == together - 1 or (2 * a + 3) * scale * apart >= ranks
                dimension = lowest(shift, whole)
                yield dimension, shift - (1 << dimension), last
        scale //= 2
    for step in order(apart):
        for a in range(factor):
            shift = a * apart + step
            if shift < ranks:
                last = a % together == together - 1 or (a + 1) * apart + step >= ranks
                dimension = lowest(shift, whole)
                yield dimension, shift - (1 << dimension), last


def order(apart: int) -> list[int]:
    """Steps between 0 and `apart`, those of high dimensions as early as what they forward is
    there."""
    found, bits = [], dimensions(apart) if apart > 1 else 0

    def below(step: int, bit: int) -> None:
        for place in range(bit - 1, -1, -1):
            found.append(step | 1 << place)
            below(step | 1 << place, place)

    below(0, bits)
    return found
