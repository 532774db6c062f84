"""The connections of a communicator whose all-reduces may go by NVLS trees, by plain trees over
several NIC ports of a node, or by both in turns.

On every channel each head of a node, the GPU nearest to a NIC, is linked with the same head of the
nodes above and below its own; clear-to-send messages name who writes. Such a connection is the
ring's too where the ring of that channel joins the same two GPUs (NCCL src/transport.cc,
ncclTransportP2pSetup: a connection is of a channel and a peer). Those of the ring were used first,
in the start-up. Where so many channels are NVLS's, each head has as many connections to each node
above and below it: that, and the count of ranks, tells the heads. Plain trees' connections
(`tree_lanes.py`) are among a head's too where they join the same two GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from flowcheck.findings.catalog.connections import CHANNELS_BY_NUMBER, TREES_BY_GPU
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.collectives.nvls_shape import NO_HEAD, NO_NVLS, NvlsShape
from flowcheck.wire.collectives.nvls_tree_parts import nvls_direction
from flowcheck.wire.learn.flows.channels import in_order, of_several_gpus
from flowcheck.wire.learn.flows.counted import ranks_counted
from flowcheck.wire.learn.flows.grants import Grants
from flowcheck.wire.learn.flows.groups import Group, grouped
from flowcheck.wire.learn.flows.port_orders import by_gpus, by_turns
from flowcheck.wire.learn.flows.ring_lanes import Lane, RingLanes, node_names
from flowcheck.wire.learn.flows.rings import Edge
from flowcheck.wire.learn.flows.streams import CODE_OF, NOT_SEEN, Stream
from flowcheck.wire.learn.flows.tree_lanes import (
    MOST_CHANNELS,
    NO_TREES,
    TreeLanes,
    tree_lanes,
)
from flowcheck.wire.learn.flows.trees import Fork, Link, around, mirrored, nodes_named

USUAL_CHANNELS = (16, 24, 32)
"""Of NVLS (src/transport/nvls.cc, ncclNvlsTuning): tried where small tensors used fewer."""
MOST_BEGINS = 8
"""Times tried at which the start-up may have ended."""
CHUNKS = (0, 65_536, 131_072, 262_144, 524_288)
"""Largest chunks that are tried, the usual one of the release first."""
LEAST_MESSAGES = 8
"""Each behind its part, before it is no chance."""
UNLIKELY = 1
"""Penalty for a chunk or a number of channels that is not the first thought of."""

STEP_BYTES = 524_288
"""What a receive of NVLS trees grants: one step of Simple's buffer, by default (NCCL
src/init.cc, DEFAULT_BUFFSIZE; src/include/device.h, NCCL_STEPS). A ring's sums grant two."""


def may_be_of_nvls(streams: Sequence[Stream], grants: Sequence[Grants]) -> bool:
    """Somewhere two addresses wrote to each other in Simple, into receives of one step: what of
    NVLS trees goes up comes down. Of a ring's connections only broadcasts are granted so little."""
    stepwise = {grant.flow.key for grant in grants if STEP_BYTES in grant.capacities_bytes}
    simple = CODE_OF[Protocol.SIMPLE]
    ways = {
        (stream.key.source, stream.key.destination)
        for stream in streams
        if stream.peer in stepwise and simple in stream.columns.protocol_codes
    }
    return any((target, source) in ways for source, target in ways)


def nvls_forks(streams: Sequence[Stream]) -> Iterator[Fork]:
    """Ways in which these may be of a ring and of NVLS trees over nodes of several GPUs, the
    likeliest first."""
    for nodes in _nodes(streams):
        yield from nodes.forks()


def port_forks(streams: Sequence[Stream]) -> Iterator[Fork]:
    """The same of plain trees over several ports of a node, without NVLS trees."""
    for nodes in _nodes(streams):
        if nodes.has_ports:
            yield from nodes.plain_forks()


def forks_in_turns(streams: Sequence[Stream]) -> Iterator[Fork]:
    """The same of plain trees and NVLS trees."""
    for nodes in _nodes(streams):
        yield from nodes.forks_in_turns()


def _nodes(streams: Sequence[Stream]) -> Iterator[_Nodes]:
    for ranks in ranks_counted(streams):
        for gpus in range(2, ranks // 2 + 1):
            links = None if ranks % gpus else _links(streams, ranks, gpus)
            if links and _are_of_nvls(links, ranks // gpus):
                yield _Nodes(links, gpus, ranks // gpus)


def heads_seen(streams: Sequence[Stream]) -> tuple[int, tuple[int, ...]] | None:
    """(GPUs of a node, which of them write as heads of NVLS trees), where what these connections
    carried went up trees and came down them; None: it did not."""
    for fork in nvls_forks(streams):
        named = {(s.tag or 0) % fork.gpus for edge in fork.edges for s in edge.streams}
        if named and _up_and_down(fork):
            return fork.gpus, tuple(sorted(named))
    return None


def _up_and_down(fork: Fork) -> bool:
    """What each head's connections carried one way they carried the other way, in Simple, and each
    message of it later than its part: a ring's pass at any times."""
    of = {
        (edge.sender, edge.receiver or 0, head, channel): stream
        for edge in fork.edges
        for head in set(edge.heads) - {NO_HEAD}
        for channel, stream in zip(edge.own_channels, edge.streams, strict=True)
    }
    messages = 0
    for (sender, receiver, head, channel), stream in of.items():
        back = of.get((receiver, sender, head, channel))
        if back is None or sender > receiver:
            continue
        one, two = stream.columns, back.columns
        if one.sizes != two.sizes or one.protocol_codes != two.protocol_codes:
            return False
        if one.protocol_codes.strip(bytes((CODE_OF[Protocol.SIMPLE],))):
            return False
        behind = one.times_ns > two.times_ns
        if behind.any() and not behind.all():
            return False
        messages += len(behind)
    return messages >= LEAST_MESSAGES


def _links(streams: Sequence[Stream], ranks: int, gpus: int) -> dict[Link, list[Stream]] | None:
    """Connections by the nodes that they run between, which may have several addresses; None where
    these are no such nodes, or one of them is not known to write."""
    node_of = nodes_named(streams, ranks, gpus)
    if node_of is None:
        return None
    for stream in streams:
        # Who only reads is the next of the ring: of a tree's link both ends write.
        if (target := stream.key.destination) not in node_of:
            node_of[target] = (node_of[stream.key.source] + 1) % (ranks // gpus)
    links: dict[Link, list[Stream]] = defaultdict(list)
    for stream in sorted(streams, key=lambda s: s.key.dest_qp):
        ends = node_of[stream.key.source], node_of[stream.key.destination]
        if ends[0] == ends[1]:
            return None
        links[ends].append(stream)
    return dict(links)


def _are_of_nvls(links: Mapping[Link, object], nodes: int) -> bool:
    """Mirrored nodes have all of the ring's links and all of both trees', and no others."""
    ours = mirrored(links)
    near = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and {a, b} & ours]
    ring = {link for link in near if around(link, nodes)}
    trees = {link for link in near if _channels(link, nodes, 2)}
    return links.keys() == ring | trees


def _channels(link: Link, nodes: int, count: int) -> list[int]:
    """Channels, of so many, whose trees link these nodes."""
    return [c for c in range(count) if nvls_direction(*link, c, nodes) is not None]


def _first_ns(stream: Stream) -> int:
    columns = stream.columns
    return int(columns.times_ns[columns.wire_bytes != NOT_SEEN].min(initial=1 << 62))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Connections as of nodes of so many GPUs."""

    links: dict[Link, list[Stream]]
    gpus: int
    nodes: int

    def forks(self) -> Iterator[Fork]:
        """By where the start-up may have ended and how many channels there are."""
        known = set[tuple[object, ...]]()
        for ring in self._rings():
            for channels in range(MOST_CHANNELS, 0, -1):
                shared = self._shared(ring, channels)
                name = channels, *sorted(map(id, ring)), *sorted(shared or ())
                if shared and name not in known:
                    known.add(name)
                    yield from self._of_chunks(ring, channels, shared)

    @property
    def has_ports(self) -> bool:
        """Two nodes are linked by several pairs of addresses."""
        return any(
            len({(s.key.source, s.key.destination) for s in of}) > 1 for of in self.links.values()
        )

    def plain_forks(self) -> Iterator[Fork]:
        """By where the start-up may have ended, without NVLS trees."""
        for ring in self._rings():
            for lanes in self._trees(ring, with_nvls=False):
                for place, group in enumerate(self._groups([*ring, *lanes.late], lanes)):
                    made = self._fork(group, NO_NVLS, {}, lanes)
                    if made is not None:
                        yield replace(made, penalty=place * UNLIKELY)

    def forks_in_turns(self) -> Iterator[Fork]:
        """With NVLS trees: what these have is in Simple, and of plain trees some is not."""
        for ring in self._rings():
            for lanes in self._trees(ring, with_nvls=True):
                trees = [stream for own in lanes.own.values() for stream in own.values()]
                both = [*ring, *lanes.late]
                for channels in range(MOST_CHANNELS, 0, -1):
                    if shared := self._shared([*both, *trees], channels):
                        yield from self._of_chunks(both, channels, shared, lanes)

    def _trees(self, ring: Sequence[Stream], *, with_nvls: bool) -> Iterator[TreeLanes]:
        """Plain trees of what the ring has not, or of that what carried anything not in Simple."""
        own, code = set(map(id, ring)), bytes((CODE_OF[Protocol.SIMPLE],))
        of_ring = {link: [s for s in of if id(s) in own] for link, of in self.links.items()}
        beside = {
            link: [
                stream
                for stream in of
                if id(stream) not in own
                and (not with_nvls or stream.columns.protocol_codes.strip(code))
            ]
            for link, of in self.links.items()
        }
        yield from tree_lanes(of_ring, beside, self.gpus, self.nodes, with_nvls=with_nvls)

    def _groups(self, ring: Sequence[Stream], trees: TreeLanes = NO_TREES) -> list[Group]:
        """The ring's connections in the ways in which they may be ordered."""
        groups = [grouped(ring, (), self._hosts(), 0)]
        if any(map(of_several_gpus, groups[0].links.values())):
            names = {link: node_names(link) for link in self.links}
            told = (
                (group, RingLanes(group, self.gpus, trees.joined))
                for group in by_gpus(groups[0], names, self.links, self.gpus)
            )
            by_gpu = [group for group, lanes in told if lanes.agrees and lanes.ascends]
            if by_gpu:
                # Of two that differ neither is told.
                return by_gpu[:1] if all(g.links == by_gpu[0].links for g in by_gpu) else []
            groups.append(grouped(ring, (), self._hosts(), 0, by_number=False))
            groups.append(by_turns(groups[-1]))
        return groups

    def _rings(self) -> Iterator[list[Stream]]:
        """Connections that the ring may have, the likeliest first: those to the next node that were
        used before a pause."""
        every = sorted(
            (
                (_first_ns(s), around(link, self.nodes), s)
                for link, of in self.links.items()
                for s in of
            ),
            key=lambda one: one[0],
        )
        most = next((i for i, (_, next_one, _) in enumerate(every) if not next_one), len(every))
        times = [at for at, _, _ in every]
        pauses = sorted(range(1, min(most + 1, len(every))), key=lambda i: times[i - 1] - times[i])
        for count in pauses[:MOST_BEGINS]:
            yield [stream for _, _, stream in every[:count]]

    def _lanes(self, link: Link) -> dict[Lane, list[Stream]]:
        found: dict[Lane, list[Stream]] = defaultdict(list)
        for stream in self.links[link]:
            gpu = (stream.tag or 0) % self.gpus
            found[stream.key.source, stream.key.destination, gpu].append(stream)
        return found

    def _shared(
        self, ring: Sequence[Stream], channels: int
    ) -> dict[tuple[Link, Lane], bool] | None:
        """{connections of a head between two nodes: whether the ring's among them are NVLS's too}
        with so many channels; None: they are no such."""
        own = set(map(id, ring))
        found: dict[tuple[Link, Lane], bool] = {}
        heads: dict[Link, set[int]] = {}
        for link in self.links:
            due = len(_channels(link, self.nodes, channels))
            counted = [
                (sum(id(stream) in own for stream in streams), len(streams), lane)
                for lane, streams in self._lanes(link).items()
            ]
            # Where all are the ring's they are a head's too only if it has no others there.
            for rings, count, lane in sorted(counted, key=lambda one: one[0] == one[1]):
                if count == rings and (count != due or lane[2] in heads.get(link, ())):
                    continue
                if due not in (count, count - rings) or not due:
                    return None
                if lane[2] in heads.setdefault(link, set()):
                    return None
                heads[link].add(lane[2])
                found[link, lane] = count == due and rings > 0
        expected = [link for link in self.links if _channels(link, self.nodes, channels)]
        told = [heads.get(link, set()) for link in expected]
        return found if told and told[0] and all(one == told[0] for one in told) else None

    def _of_chunks(
        self,
        ring: Sequence[Stream],
        channels: int,
        shared: Mapping[tuple[Link, Lane], bool],
        trees: TreeLanes = NO_TREES,
    ) -> Iterator[Fork]:
        heads = len({lane[2] for _, lane in shared})
        shape = NvlsShape(heads=heads, channels=channels, nodes=self.nodes)
        groups = self._groups(ring, trees)
        for place, (chunk, (later, group)) in enumerate(product(CHUNKS, enumerate(groups))):
            made = self._fork(group, replace(shape, chunk_bytes=chunk), shared, trees)
            if made is None:
                continue  # Ports' numbers may contradict each other, and another order not.
            yield replace(made, penalty=place * UNLIKELY)
            for count in (n for n in USUAL_CHANNELS if n > channels and not later):
                wider = replace(made, nvls=replace(made.nvls, channels=count))
                yield replace(wider, penalty=(place + len(groups) * len(CHUNKS)) * UNLIKELY)

    def _fork(
        self,
        group: Group,
        shape: NvlsShape,
        shared: Mapping[tuple[Link, Lane], bool],
        trees: TreeLanes = NO_TREES,
    ) -> Fork | None:
        heads = sorted({lane[2] for _, lane in shared})
        lanes = RingLanes(group, self.gpus, trees.joined)
        if not lanes.agrees:
            return None
        channel_of = {id(s): c for own in trees.own.values() for c, s in own.items()}
        edges, head_of, open_ = [], dict[int, int](), False
        for (link, lane), both in shared.items():
            head, streams = heads.index(lane[2]), self._lanes(link)[lane]
            if not both:
                earlier = lanes.known.keys() | channel_of.keys()
                streams = [stream for stream in streams if id(stream) not in earlier]
            told = self._channels_of(link, lane, streams, (lanes, channel_of), shape)
            if told is None:
                return None
            of, unsure = told
            # Connections that were not used yet may be among them, in other places.
            open_ |= unsure or (both and lanes.count < shape.channels)
            open_ |= both and 0 < trees.used < shape.channels
            head_of |= {id(s): head for s in streams if id(s) in lanes.known.keys() | channel_of}
            rest = [stream for stream in streams if id(stream) not in head_of]
            if rest:
                rest.sort(key=lambda stream: of[id(stream)])
                edges.append(self._edge(link, head, [of[id(s)] for s in rest], rest, shape))
        next_ones = [link for link in self.links if around(link, self.nodes)]
        return Fork(
            ranks=self.nodes * self.gpus,
            gpus=self.gpus,
            found=trees.found,
            used=trees.used,
            ring=group,
            edges=(*self._tree_edges(trees, head_of, shape), *edges),
            shared={link[0]: trees.shared.get(link, (False, False)) for link in next_ones},
            nodes={f"host {node}": node for node in range(self.nodes)},
            nvls=shape,
            heads={
                link[0]: lanes.heads(node_names(link), head_of, joined=shape.heads > 0)
                for link in next_ones
            },
            heads_open=open_,
            fixed=shape.heads > 0 or any(trees.joined.values()),
            unused=frozenset(map(id, trees.late)),
            by_gpu=(TREES_BY_GPU(),) if trees.used > 1 else (),
        )

    def _channels_of(
        self,
        link: Link,
        lane: Lane,
        streams: Sequence[Stream],
        known: tuple[RingLanes, Mapping[int, int]],
        shape: NvlsShape,
    ) -> tuple[dict[int, int], bool] | None:
        """({id of a head's connection: its channel}, whether that is open): those of the ring were
        made first, then those of plain trees or of NVLS trees; None: trees' are elsewhere."""
        ring, trees = known
        channels = _channels(link, self.nodes, shape.channels)
        first = (
            ring.channels(node_names(link), lane)
            if any(id(s) in ring.known for s in streams)
            else []
        )
        unsure = first is None or not set(first) <= set(channels)
        first = [] if unsure or first is None else first
        rows, order = in_order({node_names(link): streams})
        unsure |= len(streams) > 1 and not order.is_any_of(CHANNELS_BY_NUMBER)
        of_trees = sorted(trees[id(s)] for s in streams if id(s) in trees)
        for then in ([*first, *of_trees], first):
            made = dict.fromkeys((*then, *channels))
            of = dict(zip(map(id, rows[node_names(link)]), made, strict=False))
            if len(made) == len(of) == len(streams) and all(
                trees.get(one, channel) == channel for one, channel in of.items()
            ):
                unsure |= any(ring.known.get(one, c) != c for one, c in of.items())
                return of, unsure
        return None

    def _tree_edges(
        self, trees: TreeLanes, head_of: Mapping[int, int], shape: NvlsShape
    ) -> Iterator[Edge]:
        """Connections of plain trees that the ring has not."""
        for link, own in sorted(trees.own.items()):
            if not own:
                continue
            heads = {channel: head_of.get(id(own[channel]), NO_HEAD) for channel in sorted(own)}
            yield Edge(
                sender=link[0] * self.gpus,
                receiver=link[1] * self.gpus,
                streams=tuple(own[channel] for channel in heads),
                trees=trees.passing(link),
                heads=tuple(heads.get(c, NO_HEAD) for c in range(shape.channels)),
                own_channels=tuple(heads),
            )

    def _edge(
        self,
        link: Link,
        head: int,
        channels: Sequence[int],
        streams: Sequence[Stream],
        shape: NvlsShape,
    ) -> Edge:
        """Connections of one head that ring and plain trees have not."""
        return Edge(
            sender=link[0] * self.gpus,
            receiver=link[1] * self.gpus,
            streams=tuple(streams),
            trees=(False, False),
            heads=tuple(head if c in channels else NO_HEAD for c in range(shape.channels)),
            own_channels=tuple(channels),
        )

    def _hosts(self) -> dict[str, str]:
        return {
            end: f"host {node}"
            for link, own in self.links.items()
            for stream in own
            for end, node in zip((stream.key.source, stream.key.destination), link, strict=True)
        }
