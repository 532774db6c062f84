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
    linked,
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
            links = None if ranks % gpus else _links(streams, ranks, gpus)
            if links and are_of_trees(links, ranks // gpus):
                yield from _shared_out(links, ranks, gpus)


def _links(streams: Sequence[Stream], ranks: int, gpus: int) -> Links | None:
    """Connections by the nodes that they run between; None where these are no such nodes."""
    node_of: dict[str, int] = {}
    for stream in streams:
        if stream.tag is None or stream.tag >= ranks:
            return None
        node = stream.tag // gpus
        if node_of.setdefault(stream.key.source, node) != node:
            return None
    return linked(streams, node_of, ranks // gpus)


def _shared_out(links: Links, ranks: int, gpus: int) -> Iterator[Fork]:
    nodes = ranks // gpus
    used = channels_used(links, nodes)
    for found in turns_of_trees(links, nodes, used):
        roles = _roles(links, gpus, nodes, found, used)
        if roles is None:
            continue
        near = [link for link in links if around(link, nodes)]
        chosen: list[tuple[dict[Link, PerTree], Roles]] = [({}, roles)]
        for link in near:
            chosen = [
                ({**before, link: shared}, known)
                for before, roles in chosen
                for shared, known in _ways(link, links[link], gpus, nodes, found, used, roles)
            ]
        for shared, _ in chosen[:MOST_WAYS]:
            yield _fork(links, shared, ranks, gpus, found, used)


def _roles(links: Links, gpus: int, nodes: int, found: int, used: int) -> Roles | None:
    """By the links that trees alone have; None where two of them contradict each other."""
    roles: Roles = {}
    for link, own in links.items():
        channels = _channels(link, nodes, found, used)
        if around(link, nodes) or len(channels) != len(own):
            continue
        if not _agree(roles, link, channels, own, gpus, nodes, found):
            return None
    return roles


def _channels(link: Link, nodes: int, found: int, used: int) -> list[int]:
    """Channels whose trees link these nodes."""
    return [
        c
        for c in range(used)
        if sum_passes_down(*link, tree_parents(nodes, is_second(c, found))) is not None
    ]


def _agree(
    roles: Roles,
    link: Link,
    channels: Sequence[int],
    own: Sequence[Stream],
    gpus: int,
    nodes: int,
    found: int,
) -> bool:
    """Who writes on these is who writes elsewhere in the same role; `roles` learns of new ones."""
    for channel, stream in zip(channels, own, strict=True):
        second = is_second(channel, found)
        above, below = link
        role = "up"
        if sum_passes_down(*link, tree_parents(nodes, second)):
            role = "first" if stands_before(below, above, nodes, second) else "other"
        if not _is_of(roles, role, channel % found, stream, gpus):
            return False
    return True


def _is_of(roles: Roles, role: str, channel: int, stream: Stream, gpus: int) -> bool:
    """Both trees of a channel found, and its copies, have the same chain in every node."""
    gpu = None if stream.tag is None else stream.tag % gpus
    return gpu is not None and roles.setdefault((role, channel), gpu) == gpu


def _ways(
    link: Link,
    own: Sequence[Stream],
    gpus: int,
    nodes: int,
    found: int,
    used: int,
    roles: Roles,
) -> Iterator[tuple[PerTree, Roles]]:
    """(which trees may share the ring's connections from a node to the next one, who then writes
    what)."""
    channels = _channels(link, nodes, found, used)
    here = {is_second(c, found) for c in channels}
    for shared in product(*((True, False) if second in here else (True,) for second in (0, 1))):
        apart = [c for c in channels if not shared[is_second(c, found)]]
        ring = own[: len(own) - len(apart)]
        with_ring = [c for c in channels if c not in apart and c < len(ring)]
        known = dict(roles)
        both = [ring[c] for c in with_ring]
        if (
            ring
            and all(_is_of(known, EXIT, c % found, s, gpus) for c, s in enumerate(ring))
            and _agree(known, link, apart, own[len(ring) :], gpus, nodes, found)
            and _agree(known, link, with_ring, both, gpus, nodes, found)
        ):
            yield (shared[0], shared[1]), known


def _fork(
    links: Links, shared: Mapping[Link, PerTree], ranks: int, gpus: int, found: int, used: int
) -> Fork:
    nodes = ranks // gpus
    edges: list[Edge] = []
    ring: dict[Link, Sequence[Stream]] = {}
    for link, own in sorted(links.items()):
        passing, rest = (True, True), own
        if link in shared:
            passing = (not shared[link][0], not shared[link][1])
            channels = _channels(link, nodes, found, used)
            least = len(own) - sum(passing[is_second(c, found)] for c in channels)
            ring[link], rest = own[:least], own[least:]
        if rest:
            edges.append(
                Edge(
                    sender=link[0] * gpus,
                    receiver=link[1] * gpus,
                    streams=tuple(rest),
                    trees=passing,
                )
            )
    hosts = {
        end: f"host {node}"
        for link, own in links.items()
        for stream in own
        for end, node in zip((stream.key.source, stream.key.destination), link, strict=True)
    }
    return Fork(
        ranks=ranks,
        gpus=gpus,
        found=found,
        used=used,
        ring=grouped([s for own in ring.values() for s in own], (), hosts, 0),
        edges=tuple(edges),
        shared={link[0]: both for link, both in shared.items()},
        nodes={f"host {node}": node for node in range(nodes)},
    )
