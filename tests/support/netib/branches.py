"""The trees' connections of the mirrored ranks, and what can happen on them when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from support.netib.options import Options
from support.netib.reduction import Operation
from support.netib.transport import Connection
from support.netib.tree import children, tree_of

Connect = Callable[[str, int, int, int, int, int], Connection]
"""(communicator, sender, channel, node of it, receiver's node, receiver)."""


class Branches:
    """Of one communicator."""

    def __init__(self, options: Options, name: str = "tree") -> None:
        """name: of the connections that the ring has not."""
        self.options, self.name = options, name
        self.connections: dict[tuple[int, int, int], Connection] = {}
        """(sender, channel, receiver) by rank; where the ring has the connection, it is that."""

    def join(self, ring: Mapping[tuple[str, int, int], Connection], connect: Connect) -> None:
        """The connections that touch a mirrored node. ring: (communicator, sender, channel)."""
        gpus = self.options.gpus
        shared = {
            (*one.ranks, channel): one for (of, _, channel), one in ring.items() if of == "dp"
        }
        trees = [tree_of(self.options, channel) for channel in range(self.options.channels)]
        for host in self.options.mirrored:
            for other in range(self.options.nodes):
                for ends in ((other, host), (host, other)):
                    for channel, tree in enumerate(trees):
                        for source, target in between(*ends, tree, gpus):
                            place = source, channel, target
                            if place not in self.connections:
                                made = shared.get((source, target, channel))
                                self.connections[place] = made or connect(
                                    self.name, source, channel, *ends, target
                                )

    def fed(self, rank: int, receiver: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether a rank has what its first `count` messages to another need."""
        if tree_of(self.options, channel)[receiver] == rank:
            return self.summed(rank, channel, operation, count)
        return self.told_up(rank, channel, operation, count)

    def told_up(self, rank: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether all children told a rank their part of so many chunks."""
        for child in children(tree_of(self.options, channel), rank):
            seen = self.connections.get((child, channel, rank))
            if seen is not None and seen.done[id(operation)] < count:
                return False
            if seen is None and not self.told_up(child, channel, operation, count):
                return False
        return True

    def summed(self, rank: int, channel: int, operation: Operation, count: int) -> bool:
        """Whether a rank has the sum of so many chunks."""
        above = tree_of(self.options, channel)[rank]
        if above is None:
            return self.told_up(rank, channel, operation, count)
        seen = self.connections.get((above, channel, rank))
        if seen is not None:
            return seen.done[id(operation)] >= count
        return self.summed(above, channel, operation, count)

    def done_with(self, rank: int, operation: Operation) -> bool:
        """Whether a rank has all of a tree's sum and passed it on."""
        for channel in operation.channels:
            count = max(len(m) for (_, c, _), m in operation.links.items() if c == channel)
            sends = (e for (s, c, _), e in self.connections.items() if (s, c) == (rank, channel))
            if any(each.done[id(operation)] < count for each in sends):
                return False
            if not self.summed(rank, channel, operation, count):
                return False
        return True


def between(
    source: int, target: int, tree: Sequence[int | None], gpus: int
) -> Iterator[tuple[int, int]]:
    """Ranks of one node that a tree links with those of another."""
    if source == target:
        return
    for rank, above in enumerate(tree):
        if above is not None and rank // gpus == source and above // gpus == target:
            yield rank, above
        if above is not None and rank // gpus == target and above // gpus == source:
            yield above, rank
