"""The trees' connections of the mirrored ranks, and what can happen on them when."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from support.netib.options import Options
from support.netib.reduction import Operation
from support.netib.transport import Connection
from support.netib.tree import children, tree_of

Connect = Callable[[str, int, int, int, int], Connection]
"""(communicator, sender, channel, source, target)."""


class Branches:
    """Of one communicator, of nodes with one rank each."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.connections: dict[tuple[int, int, int], Connection] = {}
        """(sender, channel, receiver); where the ring has the connection, it is that."""

    def join(self, ring: Mapping[tuple[str, int, int], Connection], connect: Connect) -> None:
        """The connections that touch a mirrored node. ring: (communicator, sender, channel)."""
        ranks = self.options.ranks
        for host in self.options.mirrored:
            near = [tree_of(self.options, channel) for channel in range(self.options.channels)]
            for peer in range(ranks):
                for source, target in ((peer, host), (host, peer)):
                    for channel, tree in enumerate(near):
                        place = source, channel, target
                        linked = peer in (*children(tree, host), tree[host])
                        if not linked or place in self.connections:
                            continue
                        around = target == (source + 1) % ranks
                        made = ring.get(("dp", source, channel)) if around else None
                        self.connections[place] = made or connect(
                            "tree", source, channel, source, target
                        )

    def fed(self, rank: int, channel: int, receiver: int, operation: Operation, count: int) -> bool:
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
