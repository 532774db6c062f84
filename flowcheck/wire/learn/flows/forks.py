"""The connections of trees over nodes of several GPUs, told apart from those of the ring.

A tree ends at a node's first GPU of its chain, or at the second one, and the ring at others, so
that between two nodes trees mostly have connections of their own; where both end at the same GPUs
they share the ring's. NCCL makes a ring's connections first, and each in the order of channels.
Ranks lie node by node, and all nodes are alike.

Source: NCCL src/graph/connect.cc, ncclTopoPreset and connectTrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from flowcheck.wire.collectives.double_binary_tree import (
    PerTree,
    is_second,
    stands_before,
    sum_passes_down,
    tree_parents,
)
from flowcheck.wire.learn.flows.branches import (
    Link,
    Links,
    are_of_trees,
    around,
    channels_used,
    links_of_nodes,
    tree_channels,
    turns_of_trees,
)
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group, grouped
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream

LEAST_NODES = 3
"""Of two each is the root of every second channel."""

MORE_CHANNELS = 2
"""Channels tried beside those of which connections were seen."""

MOST_WAYS = 8
"""In which connections are shared out between ring and trees, of those with as many channels."""
EXIT = "exit"

Roles = dict[tuple[str, int], int]
"""(what a node's GPU writes, of a tree or as the ring's exit; channel found) -> which GPU it is."""


@dataclass(frozen=True, slots=True)
class Fork:
    """One way to share connections out between a ring and trees."""

    ranks: int
    gpus: int
    found: int
    used: int
    """Channels on which trees carried something."""
    ring: Group
    edges: tuple[Edge, ...]
    """Of trees alone."""
    shared: Mapping[int, PerTree]
    """{node: which trees pass on the ring's connections to the next one}."""
    nodes: Mapping[str, int]
    """{host of `ring`: which node it is}."""

    def beside(self, ring: Ring, *, lead: str = "") -> Ring:
        """The ring with the trees beside it. lead: host that writes on its only edge, of which
        the ring index is not known yet."""
        edges = []
        for edge in ring.edges:
            node = self.nodes[lead] if lead else edge.sender_of(0) // self.gpus
            sender = node * self.gpus if lead else edge.sender
            trees = self.shared.get(node, (True, True))
            edges.append(replace(edge, sender=sender, trees=trees))
        return replace(
            ring,
            edges=(*edges, *self.edges),
            channels=max(ring.channels, self.used),
            gpus=self.gpus,
            found=self.found,
        )

    def rings(self, ring: Ring) -> Iterator[Ring]:
        """The ring with the trees beside it, of as many channels as were seen or a few more: small
        tensors use the first ones only."""
        made = self.beside(ring)
        for more in range(MORE_CHANNELS + 1):
            channels = made.channels + more
            edges = (replace(edge, senders=_of_copies(edge, channels)) for edge in made.edges)
            penalty = ring.penalty + more
            yield replace(made, edges=tuple(edges), channels=channels, penalty=penalty)


def _of_copies(edge: Edge, channels: int) -> tuple[int, ...]:
    """Who writes on more channels: NCCL makes copies of those that it found, in order."""
    own = edge.senders
    return tuple(own[c % len(own)] for c in range(channels)) if own else ()


def forks(streams: Sequence[Stream]) -> Iterator[Fork]:
    """Ways in which these may be of a ring and of trees over nodes of several GPUs."""
    for ranks in ranks_counted(streams):
        for gpus in range(2, ranks // LEAST_NODES + 1):
            links = None if ranks % gpus else links_of_nodes(streams, ranks, gpus)
            if links and are_of_trees(links, ranks // gpus):
                yield from _shared_out(links, ranks, gpus)


def _shared_out(links: Links, ranks: int, gpus: int) -> Iterator[Fork]:
    nodes = ranks // gpus
    used = channels_used(links, nodes)
    for found in turns_of_trees(links, nodes, used):
        trees = _Trees(links, gpus, nodes, found, used)
        roles = trees.roles()
        if roles is None:
            continue
        chosen: list[tuple[dict[Link, PerTree], Roles]] = [({}, roles)]
        for link in (link for link in links if around(link, nodes)):
            chosen = [
                ({**before, link: shared}, known)
                for before, roles in chosen
                for shared, known in trees.ways(link, roles)
            ]
        for shared, _ in chosen[:MOST_WAYS]:
            yield trees.fork(shared)


@dataclass(frozen=True, slots=True)
class _Trees:
    """Connections as of trees over so many nodes of so many GPUs."""

    links: Links
    gpus: int
    nodes: int
    found: int
    used: int

    def channels(self, link: Link) -> list[int]:
        """Those whose trees link these nodes."""
        return tree_channels(link, self.nodes, self.found, self.used)

    def roles(self) -> Roles | None:
        """By the links that trees alone have; None where two of them contradict each other."""
        roles: Roles = {}
        for link, own in self.links.items():
            channels = self.channels(link)
            if around(link, self.nodes) or len(channels) != len(own):
                continue
            if not self._agree(roles, link, channels, own):
                return None
        return roles

    def ways(self, link: Link, roles: Roles) -> Iterator[tuple[PerTree, Roles]]:
        """(which trees may share the ring's connections from a node to the next one, who then
        writes what)."""
        own, channels = self.links[link], self.channels(link)
        here = {is_second(c, self.found) for c in channels}
        for shared in product(*((True, False) if second in here else (True,) for second in (0, 1))):
            apart = [c for c in channels if not shared[is_second(c, self.found)]]
            ring = own[: len(own) - len(apart)]
            with_ring = [c for c in channels if c not in apart and c < len(ring)]
            known = dict(roles)
            both = [ring[c] for c in with_ring]
            if (
                ring
                and all(self._is_of(known, EXIT, c, s) for c, s in enumerate(ring))
                and self._agree(known, link, apart, own[len(ring) :])
                and self._agree(known, link, with_ring, both)
            ):
                yield (shared[0], shared[1]), known

    def _agree(
        self, roles: Roles, link: Link, channels: Sequence[int], own: Sequence[Stream]
    ) -> bool:
        """Who writes on these is who writes elsewhere in the same role; `roles` learns of new
        ones."""
        above, below = link
        for channel, stream in zip(channels, own, strict=True):
            second = is_second(channel, self.found)
            role = "up"
            if sum_passes_down(*link, tree_parents(self.nodes, second)):
                role = "first" if stands_before(below, above, self.nodes, second) else "other"
            if not self._is_of(roles, role, channel, stream):
                return False
        return True

    def _is_of(self, roles: Roles, role: str, channel: int, stream: Stream) -> bool:
        """Both trees of a channel found, and its copies, have the same chain in every node."""
        gpu = None if stream.tag is None else stream.tag % self.gpus
        return gpu is not None and roles.setdefault((role, channel % self.found), gpu) == gpu

    def fork(self, shared: Mapping[Link, PerTree]) -> Fork:
        """With trees that share the ring's connections so."""
        edges: list[Edge] = []
        ring: list[Stream] = []
        for link, own in sorted(self.links.items()):
            passing, rest = (True, True), own
            if link in shared:
                passing = (not shared[link][0], not shared[link][1])
                apart = sum(passing[is_second(c, self.found)] for c in self.channels(link))
                ring += own[: len(own) - apart]
                rest = own[len(own) - apart :]
            if rest:
                sender, receiver = (node * self.gpus for node in link)
                edges.append(
                    Edge(sender=sender, receiver=receiver, streams=tuple(rest), trees=passing)
                )
        hosts = {
            end: f"host {node}"
            for link, own in self.links.items()
            for stream in own
            for end, node in zip((stream.key.source, stream.key.destination), link, strict=True)
        }
        return Fork(
            ranks=self.nodes * self.gpus,
            gpus=self.gpus,
            found=self.found,
            used=self.used,
            ring=grouped(ring, (), hosts, 0),
            edges=tuple(edges),
            shared={link[0]: both for link, both in shared.items()},
            nodes={f"host {node}": node for node in range(self.nodes)},
        )
