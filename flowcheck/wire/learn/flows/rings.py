"""What ring the connections of one communicator may form: guesses, best first.

A guess is only where the search starts: the sizes on the wire decide (cut.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from flowcheck.findings.catalog.connections import CHANNELS_BY_NUMBER
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import HasWriters, NcclEra, Protocol
from flowcheck.wire.learn.flows.groups import Group, Link, path_of
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
    channels = max(len(s) for s in group.links.values())
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
        yield Ring(
            ranks=ranks,
            edges=edges,
            channels=channels,
            extra_sends=extra,
            rules=rules,
            penalty=penalty + group.penalty,
            closed=path[-1][1] == path[0][0],
            order=group.order,
        )


def _sizes(group: Group, path: Sequence[Link], started: Collection[int]) -> list[tuple[int, int]]:
    """(ranks, penalty): the hosts seen tell the least; a closed circle of hosts tells more."""
    closed = path[-1][1] == path[0][0]
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
