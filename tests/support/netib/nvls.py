"""NVLS trees: how NCCL cuts a sum over channels, heads and loops, and who is above whom.

Elements, in NCCL's own terms: each channel has a part (up to 2.19 channels take turns instead),
each loop of a part a chunk for each head. What goes up an edge comes down it in equal pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from support.netib.options import Options
from support.netib.partition import Chunk, Shape, cells, over, up
from support.netib.tree import Links, octets, parents, summed

if TYPE_CHECKING:
    from support.netib.reduction import Operation
    from support.netib.transport import Connection

HALVINGS = ((32, 262144), (16, 131072), (4, 65536), (1, 32768))


@dataclass(frozen=True)
class Machine:
    """What a communicator is like."""

    heads: int
    channels: int
    nodes: int
    start: int = 0
    """Bytes of a chunk to begin with: NCCL_NVLS_CHUNKSIZE or what stands for it, and not more than
    NCCL_NVLSTREE_MAX_CHUNKSIZE; 0: by release."""


def start_of(machine: Machine, version: tuple[int, int]) -> int:
    if machine.start:
        return machine.start
    old = version <= (2, 20)
    many = machine.nodes >= 4 and version >= (2, 19)
    return 65536 if many else 524288 if old else 131072


def chunk(machine: Machine, version: tuple[int, int], size: int, units: int) -> int:
    """Bytes."""
    found = start_of(machine, version)
    for times, limit in HALVINGS:
        if found > limit and size < times * units * found:
            found = limit
    return found - found % 512


def pieces_of(
    count: int, each: int, version: tuple[int, int], machine: Machine
) -> dict[tuple[int, int], list[Chunk]]:
    """(channel, head) -> (first element, elements) of its messages."""
    found: dict[tuple[int, int], list[Chunk]] = {}
    heads, total = machine.heads, machine.heads * machine.channels
    if version < (2, 20):
        size = chunk(machine, version, count * each, total) // each
        for channel in range(machine.channels):
            for head in range(heads):
                places = range((channel * heads + head) * size, 1 << 62, total * size)
                rounds = over(count, total * size)
                found[channel, head] = [
                    (min(at, count), max(0, min(size, count - at))) for at in places[:rounds]
                ]
        return found
    if version < (2, 22):
        parts, even = even_parts(count, each, machine.channels), 4096 // each
    else:
        shape = Shape("all_reduce", count, each, 2, machine.channels, "Simple", version)
        parts, even = cells(shape, machine.channels), 16 // each
    for channel, first, length in parts:
        size = chunk(machine, version, length * each, heads)
        if version < (2, 22):
            size = chunk(machine, version, count * each, total)
        size //= each
        done = 0
        while done < length:
            own, left = size, length - done
            if left < heads * size:
                own = up(over(left, heads), even)
            for head in range(heads):
                some = max(0, min(own, left - head * own))
                at = first + done + head * own
                found.setdefault((channel, head), []).append((min(at, first + length), some))
            done += heads * size
    return found


def even_parts(count: int, each: int, channels: int) -> list[tuple[int, int, int]]:
    """2.20 and 2.21: (channel, first element, elements)."""
    share, parts, first = up(over(count * each, channels), 16), [], 0
    for channel in range(channels):
        left = count - first
        length = min(up(over(min(share, left * each), each), 4096 // each), left)
        if length > 0:
            parts.append((channel, first, length))
        first += length
    return parts


def above(node: int, channel: int, nodes: int) -> int | None:
    """The node's parent; None: it is the root."""
    return parents(nodes, channel % 2 == 1)[node]


def machine_of(options: Options) -> Machine:
    return Machine(options.heads, options.nvls_channels, options.nodes, start=options.nvls_start)


def gpu_of(options: Options, head: int) -> int:
    """Which of a node's GPUs it is."""
    return head * options.gpus // options.heads


def nvls_links(options: Options, parts: list[torch.Tensor]) -> tuple[Links, torch.Tensor, float]:
    """(what each link of every channel and head carries, the sum, the share of it that mirrors
    see): each node's own sum by its switch, then up the tree and down."""
    machine, gpus = machine_of(options), options.gpus
    within = [sum_of(parts[node * gpus : (node + 1) * gpus]) for node in range(options.nodes)]
    links: Links = {}
    result, seen = torch.empty_like(parts[0]), 0
    planned = pieces_of(len(parts[0]), parts[0].element_size(), options.version, machine)
    for (channel, head), chunks in planned.items():
        tree = parents(options.nodes, channel % 2 == 1)
        sums = summed(within, tree)
        total, gpu = sums[tree.index(None)], gpu_of(options, head)
        for at, length in chunks:
            where = slice(at, at + length)
            result[where] = total[where]
            seen += length * final_seen(options, tree)
            for node, above_it in enumerate(tree):
                if above_it is not None:
                    ends = node * gpus + gpu, above_it * gpus + gpu
                    links.setdefault((ends[0], channel, ends[1]), []).append(
                        octets(sums[node][where])
                    )
                    links.setdefault((ends[1], channel, ends[0]), []).append(octets(total[where]))
    return links, result, seen / max(1, len(result))


def sum_of(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def final_seen(options: Options, tree: tuple[int | None, ...]) -> bool:
    """A mirrored node receives the sum, or sends it down."""
    for node, above_it in enumerate(tree):
        if above_it is not None and (
            (node in options.mirrored and options.directions != "tx")
            or (above_it in options.mirrored and options.directions != "rx")
        ):
            return True
    return False


class Heads:
    """The connections of the mirrored nodes' heads, and what can happen on them when."""

    def __init__(self, options: Options, name: str) -> None:
        """name: of the connections that ring and trees have not."""
        self.options, self.name = options, name
        self.connections: dict[tuple[int, int, int], Connection] = {}
        """(sender, channel, receiver) by rank; where the ring has the connection, it is that."""

    def trees(self) -> list[tuple[int | None, ...]]:
        nodes, channels = self.options.nodes, self.options.nvls_channels
        return [parents(nodes, channel % 2 == 1) for channel in range(channels)]

    def join(
        self,
        made: Mapping[tuple[int, int, int], Connection],
        connect: Callable[[str, int, int, int, int, int, int], Connection],
    ) -> None:
        """made: those there are, (sender, channel, receiver). A rank's partners come in the order
        of their distance, with each the receiving ones first, channel by channel."""
        gpus, trees = self.options.gpus, self.trees()
        for host in self.options.mirrored:
            for away in range(1, self.options.nodes):
                near = (host - away) % self.options.nodes, (host + away) % self.options.nodes
                for ends in ((near[0], host), (host, near[1])):
                    for head in range(self.options.heads):
                        for channel, tree in enumerate(trees):
                            if tree[ends[1]] != ends[0] and tree[ends[0]] != ends[1]:
                                continue
                            gpu = gpu_of(self.options, head)
                            ranks = ends[0] * gpus + gpu, ends[1] * gpus + gpu
                            place = ranks[0], channel, ranks[1]
                            if place not in self.connections:
                                self.connections[place] = made.get(place) or connect(
                                    self.name, ranks[0], channel, *ends, ranks[1], head
                                )

    def fed(self, rank: int, receiver: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether a rank has what its first `count` messages to another need."""
        gpus = self.options.gpus
        node, other, gpu = rank // gpus, receiver // gpus, rank % gpus
        if self.trees()[channel][other] == node:
            return self.has_sum(node, gpu, channel, operation, count)
        return self.told_up(node, gpu, channel, operation, count)

    def told_up(self, node: int, gpu: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether all children told a node their part of so many chunks."""
        for child, above_it in enumerate(self.trees()[channel]):
            if above_it != node:
                continue
            seen = self._between(child, node, gpu, channel)
            if seen is not None and seen.done[id(operation)] < count:
                return False
            if seen is None and not self.told_up(child, gpu, channel, operation, count):
                return False
        return True

    def has_sum(self, node: int, gpu: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether a node has the sum of so many chunks."""
        above_it = self.trees()[channel][node]
        if above_it is None:
            return self.told_up(node, gpu, channel, operation, count)
        seen = self._between(above_it, node, gpu, channel)
        if seen is not None:
            return seen.done[id(operation)] >= count
        return self.has_sum(above_it, gpu, channel, operation, count)

    def _between(self, source: int, target: int, gpu: int, channel: int) -> Connection | None:
        gpus = self.options.gpus
        return self.connections.get((source * gpus + gpu, channel, target * gpus + gpu))

    def done_with(self, rank: int, operation: Operation) -> bool:
        """Whether a head has all of its share and passed it on; for another GPU, whether all heads
        of its node have."""
        node, gpus = rank // self.options.gpus, self.options.gpus
        own = [gpu_of(self.options, head) for head in range(self.options.heads)]
        for gpu in [rank % gpus] if rank % gpus in own else own:
            for channel in operation.channels:
                counts = [
                    len(sent)
                    for (s, c, _), sent in operation.links.items()
                    if c == channel and s % gpus == gpu
                ]
                count = max(counts, default=0)
                if not self.has_sum(node, gpu, channel, operation, count):
                    return False
                mine = (
                    one
                    for (sender, c, receiver), one in self.connections.items()
                    if (sender, c) == (node * gpus + gpu, channel)
                    and (sender, c, receiver) in operation.links
                )
                if any(one.done[id(operation)] < count for one in mine):
                    return False
        return True
