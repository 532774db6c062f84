"""What ring the connections of one communicator may form: guesses, best first.

A guess is only where the search starts: the sizes on the wire decide (cut.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowcheck.findings.catalog.connections import CHANNELS_BY_NUMBER, PLACES_BY_LOG
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import HasWriters, NcclEra, Protocol
from flowcheck.wire.collectives.nvls_shape import NO_NVLS, NvlsShape
from flowcheck.wire.learn.flows.groups import Group, Link, is_circle, path_of
from flowcheck.wire.learn.flows.nodes import MOST_RANKS, otherwise
from flowcheck.wire.learn.flows.streams import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(HasWriters):
    """The mirrored connections from one rank to another, in the likeliest order of channels."""

    sender: int
    streams: tuple[Stream, ...]
    receiver: int | None = None
    """Ring index of who reads, where only trees pass: it is not the next one, or connections of
    theirs are beside the ring's. Any of its node, where nodes have several ranks."""
    trees: tuple[bool, bool] = (True, True)
    """Which of the two trees pass there, where their ranks are linked."""
    heads: tuple[int, ...] = ()
    """[channel] head whose NVLS tree passes there, `NO_HEAD`: none; (): none on any."""
    own_channels: tuple[int, ...] = ()
    """[stream] its channel, where more than sizes tells it; (): sizes do."""
    senders: tuple[int, ...] = ()
    """[channel] who writes, where that is another rank of the node on each; (): it is one."""
    otherwise: tuple[tuple[int, int], ...] = ()
    """[other nodes] (GPUs of each, who writes then): what the ranks named fit as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """One guess about one communicator."""

    ranks: int
    edges: tuple[Edge, ...]
    channels: int
    extra_sends: int
    rules: tuple[NcclEra, ...]
    penalty: int
    """How much of what the hosts and tags suggest this guess leaves aside."""
    closed: bool = False
    """The hosts seen form a circle: they tell how many ranks there are."""
    gathers: bool = False
    """It is known to gather and reduce-scatter: other kinds come after these."""
    begin: tuple[tuple[int, ...], ...] = ()
    """[edge][stream] the first send that is read; (): all are."""
    roots: bool = False
    """Other ranks than rank 0 may broadcast too."""
    nodes_open: bool = False
    """Nodes of another number of GPUs explain all that was read as well, and then others write."""
    gpus: int = 1
    """Ranks of a node, of which only the last one of a channel's ring writes to the network."""
    borne_out: bool = False
    """Hosts or ranks named say how many of them there are, and what starts up how many in all."""
    turns: frozenset[int] = frozenset()
    """Channels of which nothing tells which ring index writes."""
    by_gpu: tuple[Finding, ...] = ()
    """What the ring indices of channels rest on, where sizes do not tell them."""
    order: Finding = field(default_factory=CHANNELS_BY_NUMBER)
    """What the order of an edge's connections rests on."""
    sounding: bool = False
    """Who writes is still to be found: whatever `Edge.sender` says, any rank may."""
    found: int = 0
    """Channels that NCCL's search found, where trees are made too; 0: they are not."""
    nvls: NvlsShape = NO_NVLS
    """What NVLS trees are made of, where there are any."""
    heads_open: bool = False
    """Connections that rings and NVLS trees share may have other channels than they are taken for:
    not all of the ring's were used."""

    @property
    def branches(self) -> bool:
        """Trees of some kind are beside it."""
        return self.found > 0 or self.nvls.heads > 0

    @property
    def width(self) -> int:
        """Channels of any algorithm."""
        return max(self.channels, self.nvls.channels)

    @property
    def from_start(self) -> bool:
        """All connections were seen from their first message on."""
        return all(stream.from_start for edge in self.edges for stream in edge.streams)

    @property
    def around(self) -> tuple[Edge, ...]:
        """Those from one rank to the next."""
        return tuple(edge for edge in self.edges if edge.receiver is None)

    def protocols_at(self, positions: Sequence[Sequence[int]]) -> tuple[Protocol, ...]:
        """Of the sends that come next on each connection, those of the earliest first. positions:
        [edge][stream] number of its next send."""
        found: list[tuple[int, Protocol]] = []
        for edge, at in zip(self.edges, positions, strict=True):
            for stream, number in zip(edge.streams, at, strict=True):
                send = stream.sends.get(number)
                if send is not None and send.protocol is not None:
                    found.append((send.message.first_ns, send.protocol))
        usual = self.edges[0].streams[0].protocol
        return tuple(dict.fromkeys(protocol for _, protocol in sorted(found))) or (usual,)


def rings(
    group: Group, rules: tuple[NcclEra, ...], started: Collection[int] = ()
) -> Iterator[Ring]:
    """Rings this group may be, most plausible first. started: how many ranks a start-up seen has;
    (): none was seen, and any number is tried."""
    path = path_of(group)
    if path is None:
        return
    guesses: list[tuple[int, int, int, int]] = []
    for ranks, size_penalty in _sizes(group, path, started):
        for first in range(ranks):
            penalty = size_penalty + _tag_penalty(group, path, first, ranks)
            guesses.extend((penalty + extra, ranks, first, extra) for extra in (0, 1))
    others = {ranks: otherwise(group, path, ranks) for _, ranks, *_ in guesses}
    for penalty, ranks, first, extra in sorted(guesses):
        edges = tuple(
            Edge(
                sender=(first + i) % ranks,
                streams=group.links[link],
                otherwise=tuple((g, (other + i * g) % ranks) for g, other in others[ranks]),
            )
            for i, link in enumerate(path)
            if link in group.links
        )
        ring = _ring(group, path, edges, ranks, rules)
        yield replace(ring, extra_sends=extra, penalty=ring.penalty + penalty)


def _ring(
    group: Group,
    path: Sequence[Link],
    edges: tuple[Edge, ...],
    ranks: int,
    rules: tuple[NcclEra, ...],
) -> Ring:
    """Of so many ranks, one of which writes on each link."""
    return Ring(
        ranks=ranks,
        edges=edges,
        channels=max(len(streams) for streams in group.links.values()),
        extra_sends=0,
        rules=rules,
        penalty=group.penalty,
        closed=is_circle(path),
        order=group.order,
    )


def _sizes(group: Group, path: Sequence[Link], started: Collection[int]) -> list[tuple[int, int]]:
    """(ranks, penalty): the hosts seen tell the least; a closed circle of hosts tells more."""
    closed = is_circle(path)
    hosts = len(path) if closed else len(path) + 1
    least = max([hosts, *(tag + 1 for tag in group.tags.values())])
    tried = [ranks for ranks in sorted(started) or range(MOST_RANKS + 1) if ranks >= least]
    if closed:
        return [(r, 0 if r == hosts else 4) for r in tried]
    return [(r, 0 if r > 2 or len(path) == 1 else 1) for r in tried]


def _tag_penalty(group: Group, path: Sequence[Link], first: int, ranks: int) -> int:
    """A clear-to-send names the rank that may send; ring order mostly is rank order."""
    return 2 * sum(
        link in group.tags and group.tags[link] != (first + i) % ranks
        for i, link in enumerate(path)
    )


def logged_rings(
    group: Group,
    rules: tuple[NcclEra, ...],
    orders: Sequence[RingOrder],
    most_gpus: int | None = None,
) -> Iterator[Ring]:
    """Rings of NCCL's log whose writers are the ranks that clear-to-send messages name on every
    connection. Over nodes of several GPUs both are all that tells where a run is joined; where its
    start was seen the log only decides what sizes leave open (search/writers.py). most_gpus: of a
    node; None: as many as there may be."""
    path = path_of(group)
    if path is None:
        return
    for order in orders:
        ranks = order.ranks or len(order.channels[0])
        for gpus in range(1, min(most_gpus or ranks, ranks // 2) + 1):
            edges = None if ranks % gpus else _logged_edges(group, path, order, ranks, gpus)
            if edges is not None:
                ring = _ring(group, path, edges, ranks, rules)
                yield replace(ring, gpus=gpus, borne_out=True, by_gpu=(PLACES_BY_LOG(),))


def _logged_edges(
    group: Group, path: Sequence[Link], order: RingOrder, ranks: int, gpus: int
) -> tuple[Edge, ...] | None:
    """None where a rank is named that the log has writing elsewhere."""
    found = []
    first: list[int] | None = None
    for place, link in enumerate(path):
        streams = group.links.get(link)
        if streams is None:
            continue
        named = [
            None
            if stream.tag is None
            else order.index_of(stream.tag, channel=channel, ranks=ranks, gpus=gpus)
            for channel, stream in enumerate(streams)
        ]
        senders = tuple(index for index in named if index is not None)
        begins = [(index - place * gpus) % ranks for index in senders]
        if len(senders) < len(streams) or (first or begins)[: len(begins)] != begins:
            return None
        first = first or begins
        several = len(set(senders)) > 1
        found.append(Edge(sender=senders[0], streams=streams, senders=senders if several else ()))
    return tuple(found) or None


def earliest(
    ring: Ring, positions: Sequence[Sequence[int]], *, trees: bool | None = None
) -> tuple[int, int] | None:
    """(edge, stream) of the first of the sends that come next; None: none comes. positions:
    [edge][stream] number of its next send; trees: of the connections that trees alone have, or of
    all others; None: of all."""
    found = [
        (*send.message.time, i, j)
        for i, (edge, at) in enumerate(zip(ring.edges, positions, strict=True))
        for j, (stream, number) in enumerate(zip(edge.streams, at, strict=True))
        if trees in (None, edge.receiver is not None)
        and (send := stream.sends.get(number)) is not None
    ]
    return min(found)[2:] if found else None


def seen_whole(ring: Ring) -> bool:
    """Every connection from its start on, and nothing was lost."""
    return all(stream.whole for edge in ring.edges for stream in edge.streams)
