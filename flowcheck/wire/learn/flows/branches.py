"""The connections of a communicator whose all-reduces may go by NCCL's trees.

Trees run beside the ring, between other ranks and back: clear-to-send messages name who writes,
and which ranks are linked must be what the double binary tree of so many ranks links. Of nodes
with one rank each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from flowcheck.wire.collectives.double_binary_tree import is_second, sum_passes_down, tree_parents
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.nodes import MOST_RANKS
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream

Link = tuple[int, int]
"""Ranks: who writes, who reads."""
Links = dict[Link, list[Stream]]

MORE_CHANNELS = 2
"""Channels tried beside those of which connections were seen: small tensors use the first only."""
UNLIKELY = 1
"""Penalty for each of these, and for a number of ranks that the start-up tells less."""


def rings_with_trees(streams: Sequence[Stream], rules: tuple[NcclEra, ...]) -> Iterator[Ring]:
    """Rings and trees that these connections may be of, most plausible first; none where the ring
    explains all of them, or nothing names who writes."""
    counted = [ranks for ranks in ranks_counted(streams) if ranks > 2]
    every = dict.fromkeys((*counted, *range(3, MOST_RANKS + 1)))
    for place, ranks in enumerate(every):
        links = links_of_nodes(streams, ranks)
        if not links or not are_of_trees(links, ranks):
            continue
        penalty = min(place, len(counted)) * UNLIKELY
        used = channels_used(links, ranks)
        turns = list(turns_of_trees(links, ranks, used))
        least = max(used, *(len(own) for link, own in links.items() if around(link, ranks)))
        for channels in range(least, least + MORE_CHANNELS + 1):
            for found in turns:
                made = _made(links, ranks, channels, found, rules)
                more = penalty + (channels - least) * UNLIKELY
                # Of several ways to share the trees out all are compared.
                yield replace(made, penalty=more, borne_out=len(turns) == 1)


def may_branch(stream: Stream, ring: Ring) -> bool:
    """It may be a connection of trees beside this ring: more of them, or of what they carry, may
    still come."""
    if ring.ranks < 3 or ring.gpus > 1:
        return False
    rank_of: dict[str, int] = {}
    for edge in ring.around:
        for own in edge.streams:
            rank_of[own.key.source] = edge.sender
            rank_of[own.key.destination] = (edge.sender + 1) % ring.ranks
    writer = rank_of.get(stream.key.source, stream.tag)
    reader = rank_of.get(stream.key.destination)
    if writer is None or stream.tag not in (None, writer):
        return False
    readers = range(ring.ranks) if reader is None else (reader,)
    known = stream.key.source in rank_of or reader is not None
    return known and any(_trees((writer, other), ring.ranks) for other in readers)


def may_have_trees(streams: Sequence[Stream]) -> bool:
    """Several ranks write to one, or one to several, and nothing names them; or those named are
    linked by trees of some number of ranks."""
    into, out = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for stream in streams:
        into[stream.key.destination].add(stream.key.source)
        out[stream.key.source].add(stream.key.destination)
    if max(map(len, (*into.values(), *out.values())), default=0) < 2:
        return False
    if all(stream.tag is None for stream in streams):
        return True
    for ranks in range(3, MOST_RANKS + 1):
        links = links_of_nodes(streams, ranks)
        if links and all(around(link, ranks) or _trees(link, ranks) for link in links):
            return True
    return False


def channels_used(links: Links, ranks: int) -> int:
    """Channels on which trees carried something: on some of their links the ring has nothing.
    ranks: or nodes, of several each."""
    counts = {False: 0, True: 0}
    both = 0
    for link, own in links.items():
        trees = [] if around(link, ranks) else _trees(link, ranks)
        if len(trees) == 1:
            counts[trees[0]] = max(counts[trees[0]], len(own))
        elif trees:
            both = max(both, len(own))
    return max(both, sum(counts.values()))


def turns_of_trees(links: Links, ranks: int, used: int) -> Iterator[int]:
    """Channels that NCCL's search may have found: after so many the other tree has its turn."""
    apart = {link: own for link, own in links.items() if not around(link, ranks)}
    for found in range(1, used + 1):
        if all(len(own) == len(tree_channels(at, ranks, found, used)) for at, own in apart.items()):
            yield found


def tree_channels(link: Link, nodes: int, found: int, used: int) -> list[int]:
    """Channels, of so many, whose trees link these nodes. found: as `turns_of_trees` has it."""
    passing = _trees(link, nodes)
    return [channel for channel in range(used) if is_second(channel, found) in passing]


def links_of_nodes(streams: Sequence[Stream], ranks: int, gpus: int = 1) -> Links | None:
    """Connections by the nodes that they run between; None where these are no such nodes. gpus:
    ranks of a node, which lie node by node."""
    node_of: dict[str, int] = {}
    for stream in streams:
        if stream.tag is None or stream.tag >= ranks:
            return None
        node = stream.tag // gpus
        if node_of.setdefault(stream.key.source, node) != node:
            return None
    return linked(streams, node_of, ranks // gpus)


def linked(streams: Sequence[Stream], node_of: dict[str, int], nodes: int) -> Links | None:
    """Connections by the nodes that they run between; None where a node has several addresses. Who
    only reads is the next of the ring: of a tree's link both ends write. node_of: {address of who
    writes: node}, the others are added."""
    ends = {(s.key.source, s.key.destination) for s in streams}
    for source, target in sorted(ends):
        if target not in node_of:
            node_of[target] = (node_of[source] + 1) % nodes
    links: Links = {}
    for stream in sorted(streams, key=lambda s: s.key.dest_qp):
        link = node_of[stream.key.source], node_of[stream.key.destination]
        links.setdefault(link, []).append(stream)
    return links if len(links) == len(ends) else None


def are_of_trees(links: Links, ranks: int) -> bool:
    """Mirrored ranks have the ring's connections, all that the first tree has, and either all that
    the second has beside them or none."""
    ours = mirrored(links)
    ring = {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    first, second = (
        {
            (a, b)
            for a in range(ranks)
            for b in range(ranks)
            if {a, b} & ours and sum_passes_down(a, b, tree_parents(ranks, tree)) is not None
        }
        for tree in (False, True)
    )
    beside = links.keys() - ring
    own = {link for link in ring if ours & set(link)}
    return (
        bool(beside) and own <= links.keys() and beside in (first - ring, (first | second) - ring)
    )


def mirrored(links: Collection[Link]) -> set[int]:
    """The fewest ranks that all connections touch, busiest first."""
    left = set(links)
    found: set[int] = set()
    while left:
        touched = Counter(end for link in left for end in link)
        found.add(max(touched, key=lambda end: (touched[end], -end)))
        left = {link for link in left if not found & set(link)}
    return found


def around(link: Link, ranks: int) -> bool:
    """It is one to the next rank, or node."""
    return link[1] == (link[0] + 1) % ranks


def _trees(link: Link, ranks: int) -> list[bool]:
    """Which of the two trees link these ranks."""
    return [
        second
        for second in (False, True)
        if sum_passes_down(*link, tree_parents(ranks, second)) is not None
    ]


def _made(links: Links, ranks: int, channels: int, found: int, rules: tuple[NcclEra, ...]) -> Ring:
    order = sorted(links, key=lambda link: (not around(link, ranks), link))
    return Ring(
        ranks=ranks,
        edges=tuple(
            Edge(
                sender=link[0],
                receiver=None if around(link, ranks) else link[1],
                streams=tuple(links[link]),
            )
            for link in order
        ),
        channels=channels,
        extra_sends=0,
        rules=rules,
        penalty=0,
        found=found,
    )
