"""How NCCL cuts a collective over channels, loops and chunks, by version."""

from __future__ import annotations

from dataclasses import dataclass

from support.netib.options import LL, LL128, SIMPLE

STEP_BYTES = {LL: 32768, LL128: 576000, SIMPLE: 524288}
"""Data bytes of one FIFO slot."""
GRAIN_BYTES = {LL: 16, LL128: 1920, SIMPLE: 512}
MOST_THREADS = {LL: 512, LL128: 640, SIMPLE: 512}

Chunk = tuple[int, int]
"""(first element, elements)."""


@dataclass(frozen=True)
class Shape:
    """What the rules need to know of a collective."""

    kind: str
    """all_reduce, reduce_scatter, all_gather or broadcast; the last two count bytes. Of gathers and
    reduce-scatters one rank's block is counted, and the latter only from 2.22 on."""
    count: int
    element_bytes: int
    ranks: int
    channels: int
    protocol: str
    version: tuple[int, int]
    halving: bool = True
    """Threads are halved for tiny operations."""
    gpus: int = 1
    """Ranks of a node."""

    @property
    def whole_bytes(self) -> int:
        blocks = self.ranks if self.kind in ("all_gather", "reduce_scatter") else 1
        return self.count * self.element_bytes * blocks

    @property
    def slices(self) -> int:
        return 2 if self.protocol == SIMPLE and self.kind != "broadcast" else 1

    @property
    def chunk_bytes(self) -> int:
        steps = 4 if self.slices == 2 else 1
        return steps * STEP_BYTES[self.protocol]


def up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def over(value: int, parts: int) -> int:
    return -(-value // parts)


def channels_and_threads(shape: Shape) -> tuple[int, int]:
    """(channels used, threads of the kernel)."""
    threads = MOST_THREADS[shape.protocol]
    threshold = {LL: 8 * shape.ranks, LL128: 8, SIMPLE: 64}[shape.protocol]
    size = shape.whole_bytes
    used = shape.channels
    while used > 1 and size < used * threads * threshold:
        used -= 1
    while shape.halving and size < used * threads * threshold and threads % 128 == 0:
        threads //= 2
    if shape.protocol == SIMPLE:
        threads += 32
    return used, max(96, threads)


def plan(shape: Shape) -> dict[int, list[list[Chunk]]]:
    """Channel -> its loops -> chunks. A broadcast's and an all-gather's loop is of one chunk."""
    if shape.version >= (2, 22):
        return parts_to_loops(shape, cells(shape), even=16 // shape.element_bytes)
    if shape.version >= (2, 20):
        parts, align = contiguous(shape)
        return parts_to_loops(shape, parts, even=align)
    return interleaved(shape)


def full_chunk(shape: Shape) -> int:
    """Elements of a full chunk."""
    if shape.version < (2, 22):
        return shape.chunk_bytes // shape.element_bytes
    grain = GRAIN_BYTES[shape.protocol]
    return shape.chunk_bytes // grain * (grain // shape.element_bytes)


def parts_to_loops(
    shape: Shape, parts: list[tuple[int, int, int]], even: int
) -> dict[int, list[list[Chunk]]]:
    full = full_chunk(shape)
    planned: dict[int, list[list[Chunk]]] = {}
    for channel, start, length in parts:
        loops = planned.setdefault(channel, [])
        done = 0
        while done < length:
            left = length - done
            if shape.kind != "all_reduce":
                loops.append([(start + done, min(full, left))])
                done += full
                continue
            size = full if left >= shape.ranks * full else up(over(left, shape.ranks), even)
            loops.append(
                [
                    (start + done + k * size, max(0, min(size, left - k * size)))
                    for k in range(shape.ranks)
                ]
            )
            done += shape.ranks * full
    return planned


def cells(shape: Shape, used: int = 0) -> list[tuple[int, int, int]]:
    """2.22 and later: (channel, first element, elements) of a launch of one collective. used:
    channels, where they are not a ring's."""
    each, version = shape.element_bytes, shape.version
    used = min(used or channels_and_threads(shape)[0], shape.channels)
    traffic = {"all_reduce": 2, "broadcast": 1}.get(shape.kind, shape.ranks)
    if shape.protocol == LL and version >= (2, 26):
        traffic *= 4
    total = shape.count * each * traffic
    if version < (2, 23):
        cell, target = 16, max(512, total // used)
    else:
        least = 32768 if version >= (2, 29) else 16384
        total = max(least, total)
        cell = up(over(least, traffic), 16)
        target = up(total // used, 16) if version >= (2, 29) else max(least, total // used)
    number, cell_traffic = over(shape.count * each, cell), cell * traffic
    per = min(number, over(target, cell_traffic))
    if shape.channels == 1:
        low = number
    elif version < (2, 23):
        low = min(number, target // cell_traffic)
    else:
        low = min(number, over(target, cell_traffic))
    middle, high = divmod(number - low, per)
    if (low > 0) + middle + (high > 0) > shape.channels:
        middle = shape.channels - 2
        per, rest = divmod(number - low, middle + 1)
        high = per + rest
    if high == 0 and middle > 0:
        high, middle = per, middle - 1
    first = 0
    if low == 0:
        first = 1
        if middle > 0:
            low, middle = per, middle - 1
        else:
            low, high = high, 0
    counts = [low] + [per] * middle + ([high] if high else [])
    sizes = [number_of_cells * (cell // each) for number_of_cells in counts]
    sizes[-1] -= sum(sizes) - shape.count
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [
        (first + n, start, size) for n, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def contiguous(shape: Shape) -> tuple[list[tuple[int, int, int]], int]:
    """2.20 and 2.21: parts as in `cells`, and the alignment of parts and last chunks."""
    used, threads = channels_and_threads(shape)
    each = shape.element_bytes
    align = {
        SIMPLE: 4096 // each,
        LL: 8 // each * threads,
        LL128: 480 // each * (threads // 32),
    }[shape.protocol]
    per = up(over(shape.count * each, used), 16)
    parts, start = [], 0
    for channel in range(used):
        left = shape.count - start
        if left <= 0:
            break
        length = min(up(over(min(per, left * each), each), align), left)
        parts.append((channel, start, length))
        start += length
    return parts, align


def interleaved(shape: Shape) -> dict[int, list[list[Chunk]]]:
    """Up to 2.19: every loop runs over all channels."""
    used, threads = channels_and_threads(shape)
    planned: dict[int, list[list[Chunk]]] = {channel: [] for channel in range(used)}
    width = shape.ranks if shape.kind == "all_reduce" else 1
    full = full_chunk(shape)
    for start in range(0, shape.count, used * width * full):
        left = shape.count - start
        size = interleaved_chunk(shape, left, used, threads, full)
        for channel, loops in planned.items():
            chunks = []
            for k in range(width):
                place = channel * width + k if shape.protocol == SIMPLE else k * used + channel
                at = start + place * size
                chunks.append((at, max(0, min(size, shape.count - at))))
            loops.append(chunks)
    return planned


def interleaved_chunk(shape: Shape, left: int, used: int, threads: int, full: int) -> int:
    each, protocol = shape.element_bytes, shape.protocol
    if shape.kind == "all_reduce":
        lanes = used * shape.ranks
        if protocol == SIMPLE:
            return up(min(full, over(left, lanes)), (threads - 32) * 8 // each)
        least = threads * (8 // each) if protocol == LL else threads * (60 // each) // 2
        return min(full, over(left, lanes * least) * least)
    if protocol == SIMPLE:
        return up(min(full, over(left, used)), (threads - 32) * 8)
    if protocol == LL:
        if left >= used * full:
            return full
        lanes = used * (shape.ranks if shape.kind == "all_gather" else 1)
        return up(over(shape.whole_bytes % (lanes * 32768), lanes), threads * 8)
    least = threads * (60 if shape.kind == "broadcast" else 30)
    return min(full, over(left, used * least) * least)
