"""The connections of a communicator whose all-reduces may go by NCCL's trees.

Trees run beside the ring, between other nodes and back: clear-to-send messages name who writes, and
which nodes are linked must be what the double binary tree of so many nodes links.

Over nodes of one rank each (`rings_with_trees`) trees and ring share a link's connections. Of
several GPUs (`forks`) a tree ends at a node's first GPU of its chain, or at the second one, and the
ring at others, so that between two nodes trees mostly have connections of their own; where both end
at the same GPUs they share the ring's. NCCL makes a ring's connections first, and each in the order
of channels. Ranks lie node by node, and all nodes are alike.

Source: NCCL src/graph/connect.cc, ncclTopoPreset and connectTrees.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.double_binary_tree import (
    PerTree,
    is_second,
    stands_before,
    sum_passes_down,
    tree_parents,
)
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.collectives.nvls_shape import NO_HEAD, NO_NVLS, NvlsShape
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.groups import Group, grouped
from flowcheck.wire.learn.flows.nodes import MOST_RANKS
from flowcheck.wire.learn.flows.rings import Edge, Ring
from flowcheck.wire.learn.flows.streams import Stream

Link = tuple[int, int]
"""Ranks or nodes: who writes, who reads."""
Links = dict[Link, list[Stream]]

RingHeads = tuple[tuple[int, ...], tuple[int, ...]]
"""([channel] head whose NVLS tree passes on a connection of the ring, [connection] channel)."""

MORE_CHANNELS = 2
"""Channels tried beside those of which connections were seen: small tensors use the first only."""
UNLIKELY = 1
"""Penalty for each of these, and for a number of ranks that the start-up tells less."""

LEAST_NODES = 3
"""Of two each is the root of every second channel."""

MOST_WAYS = 8
"""In which connections are shared out between ring and trees, of those with as many channels."""
EXIT = "exit"

Roles = dict[tuple[str, int], int]
"""(what a node's GPU writes, of a tree or as the ring's exit; channel found) -> which GPU it is."""


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
    node_of = nodes_named(streams, ranks, gpus)
    return None if node_of is None else linked(streams, node_of, ranks // gpus)


def nodes_named(streams: Sequence[Stream], ranks: int, gpus: int) -> dict[str, int] | None:
    """{address: the node of who writes there}, by the ranks that clear-to-send messages name; None
    where one is not named, or an address is of several nodes."""
    node_of: dict[str, int] = {}
    for stream in streams:
        if stream.tag is None or stream.tag >= ranks:
            return None
        node = stream.tag // gpus
        if node_of.setdefault(stream.key.source, node) != node:
            return None
    return node_of


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


def links_of_trees(ranks: int, ours: set[int]) -> tuple[set[tuple[int, int]], ...]:
    """(links of the first tree, of the second) between ranks of which one at least is ours."""
    return tuple(
        {
            (a, b)
            for a in range(ranks)
            for b in range(ranks)
            if {a, b} & ours and sum_passes_down(a, b, tree_parents(ranks, tree)) is not None
        }
        for tree in (False, True)
    )


def are_of_trees(links: Links, ranks: int) -> bool:
    """Mirrored ranks have the ring's connections, all that the first tree has, and either all that
    the second has beside them or none."""
    ours = mirrored(links)
    ring = {(rank, (rank + 1) % ranks) for rank in range(ranks)}
    first, second = links_of_trees(ranks, ours)
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
    nvls: NvlsShape = NO_NVLS
    """Of NVLS trees beside the ring."""
    heads: Mapping[int, RingHeads] = field(default_factory=dict)
    """{node: which heads the ring's connections to the next node join}."""
    heads_open: bool = False
    """As of `Ring`."""
    fixed: bool = False
    """The channels of the ring's connections are those of `heads`, whatever sizes say."""
    unused: frozenset[int] = frozenset()
    """Identities of connections of the ring that its start-up did not use."""
    by_gpu: tuple[Finding, ...] = ()
    """What the channels of plain trees rest on."""
    penalty: int = 0

    def beside(self, ring: Ring, *, lead: str = "") -> Ring:
        """The ring with the trees beside it. lead: host that writes on its only edge, of which
        the ring index is not known yet."""
        edges = []
        for edge in ring.edges:
            node = self.nodes[lead] if lead else edge.sender_of(0) // self.gpus
            sender = node * self.gpus if lead else edge.sender
            trees = self.shared.get(node, (True, True))
            heads, own = self.heads.get(node, ((), ()))
            own = own if self.fixed else ()
            edges.append(replace(edge, sender=sender, trees=trees, heads=heads, own_channels=own))
        made = replace(
            ring,
            edges=(*edges, *self.edges),
            channels=max(ring.channels, self.used),
            gpus=self.gpus,
            found=self.found,
            nvls=self.nvls,
            heads_open=self.heads_open,
            by_gpu=(*ring.by_gpu, *self.by_gpu),
            penalty=ring.penalty + self.penalty,
        )
        return replace(made, edges=tuple(_of_width(edge, made.width) for edge in made.edges))

    def agrees(self, ring: Ring) -> bool:
        """Each of its connections starts at the node that it is known to be of."""
        node_of = {id(s): self.nodes[link[0]] for link, of in self.ring.links.items() for s in of}
        return all(
            node_of[id(stream)] == edge.sender_of(0) // self.gpus
            for edge in ring.edges
            for stream in edge.streams
        )

    def by_silence(self, rules: tuple[NcclEra, ...]) -> Iterator[Ring]:
        """Beside trees: the ring by where broadcasts do not come, which is whom rank 0 reads from;
        who else writes is no matter but to sums round the ring, and is left open."""
        into, counts = ("host 0",), {link: len(of) for link, of in self.ring.links.items()}
        nodes, channels = self.ranks // self.gpus, max(counts.values())
        there = {
            channel
            for link, own in self.ring.links.items()
            if link[1] in into
            for stream, channel in zip(own, self.heads[self.nodes[link[0]]][1], strict=True)
            if id(stream) not in self.unused
        }
        silent = {c for c in range(channels) if there and c not in there}
        for also in (frozenset({0}), frozenset[int]()):
            exits = [self.gpus - 1 - (c not in silent | also) for c in range(channels)]
            edges = []
            for node in range(nodes):
                link = f"host {node}", f"host {(node + 1) % nodes}"
                if link in self.ring.links:
                    own = tuple((place + node * self.gpus) % self.ranks for place in exits)
                    edges.append(Edge(sender=own[0], senders=own, streams=self.ring.links[link]))
            made = Ring(
                ranks=self.ranks,
                edges=tuple(edges),
                channels=channels,
                extra_sends=0,
                rules=rules,
                penalty=self.ring.penalty,
                gpus=self.gpus,
                order=self.ring.order,
                borne_out=True,
                turns=frozenset(range(channels)),
            )
            yield from self.rings(made) if self.found else (self.beside(made),)

    def rings(self, ring: Ring) -> Iterator[Ring]:
        """The ring with the trees beside it, of as many channels as were seen or a few more: small
        tensors use the first ones only."""
        made = self.beside(ring)
        for more in range(MORE_CHANNELS + 1):
            channels = made.channels + more
            edges = (
                _of_width(
                    replace(edge, senders=_of_copies(edge, channels)),
                    max(channels, made.nvls.channels),
                )
                for edge in made.edges
            )
            penalty = made.penalty + more
            yield replace(made, edges=tuple(edges), channels=channels, penalty=penalty)


def _of_width(edge: Edge, width: int) -> Edge:
    """Of so many channels of any algorithm."""
    missing = width - len(edge.heads)
    return replace(edge, heads=edge.heads + (NO_HEAD,) * missing) if edge.heads else edge


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
        trees = TreesOver(links, gpus, nodes, found, used)
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
class TreesOver:
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
        if len(channels) != len(own):
            return False
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
