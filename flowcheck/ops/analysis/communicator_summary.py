"""Summary of each communicator in a capture: ring, traffic, mirrored links, coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flowcheck.findings.catalog import collective_evidence, connections
from flowcheck.findings.finding import Finding
from flowcheck.ops.analysis.mirror_coverage import AllReduceShape, MirrorCoverage, coverage_of
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import algorithm_of_link
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, WriterRanks
from flowcheck.wire.learn import Collective, Reading
from flowcheck.wire.traffic.observed_messages import FlowKey

ABOUT_COMMUNICATORS = (
    collective_evidence.ONE_ALL_REDUCE,
    collective_evidence.FEWEST_RANKS,
    collective_evidence.OTHER_RANKS,
    connections.CHANNELS_BY_NUMBER,
    connections.CHANNELS_BY_BUFFERS,
    connections.CHANNELS_BY_USE,
    connections.CHANNELS_BY_GPU,
    connections.CHANNEL_ORDER_OPEN,
    connections.PLACES_BY_LOG,
    connections.WRITER_BY_NODES,
    connections.WRITER_BY_LOG,
    connections.WRITER_AS_COPY,
    connections.FIRST_GPU_OPEN,
    connections.RING_PLACE_OPEN,
    connections.NODES_OPEN,
    connections.TREES_OPEN,
)
"""Assumptions about a collective that also concern its communicator: ranks, channels."""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """A mirrored connection of one channel."""

    channel: int | None
    """Number of the channel; None: unknown."""
    queue_pairs: tuple[int, ...]
    source: str
    destination: str
    protocols: tuple[str, ...]
    messages: int | None = None
    bytes: int | None = None
    """Bytes captured so far; None: not counted."""


class MirroredLink(msgspec.Struct, frozen=True, kw_only=True):
    """A mirrored link from one node of a ring to the next. Nodes are numbered by their position in
    the ring; with one GPU per node this is the rank's ring index."""

    sender: int
    receiver: int
    connections: tuple[Connection, ...]
    algorithm: Algorithm = Algorithm.RING
    """Algorithm that uses the link: RING, or another one if only that one uses it."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Addresses of the sender."""
        return tuple(dict.fromkeys(one.source for one in self.connections))

    @property
    def destinations(self) -> tuple[str, ...]:
        """Addresses of the receiver."""
        return tuple(dict.fromkeys(one.destination for one in self.connections))


class ProtocolTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and bytes with one protocol."""

    collectives: int
    bytes: int


class CommunicatorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One ring, or all point-to-point connections."""

    number: int
    ranks: int
    ring: bool
    channels: int
    eras: tuple[NcclEra, ...] = msgspec.field(name="rules")
    assumed: tuple[Finding, ...]
    links: tuple[MirroredLink, ...]
    protocols: dict[str, ProtocolTraffic]
    kinds: dict[str, int]
    gpus: int = 1
    """Ranks per node."""
    algorithms: dict[str, int] = {}
    """Number of collectives by algorithm."""
    coverage: MirrorCoverage | None = None
    """Coverage of an all-reduce; None: no ring all-reduce was captured."""

    @property
    def nodes(self) -> int:
        """Number of nodes in the ring."""
        return self.ranks // self.gpus

    def host(self, index: int) -> str:
        """Addresses of a node, by its position in the ring; "": no mirrored link ends there."""
        found: dict[str, None] = {}
        for link in self.links:
            if self.ring and link.sender == index:
                found.update(dict.fromkeys(link.sources))
            if self.ring and link.receiver == index:
                found.update(dict.fromkeys(link.destinations))
        return ", ".join(found)


def communicators_json(reading: Reading) -> list[dict[str, Any]]:
    """All communicators of a reading as JSON values."""
    told: list[dict[str, Any]] = msgspec.to_builtins(summarize_communicators(reading))
    for one in told:
        # Keys of before algorithms had names.
        one["trees"] = one["algorithms"].get(Algorithm.TREE, 0)
        for link in one["links"]:
            link["tree"] = link["algorithm"] == Algorithm.TREE
    return told


def summarize_communicators(reading: Reading) -> tuple[CommunicatorSummary, ...]:
    """One summary per communicator in which a collective was found, in order."""
    parts: dict[int, list[Collective]] = {}
    for one in reading.collectives:
        parts.setdefault(one.communicator, []).append(one)
    return tuple(_communicator(number, parts[number]) for number in sorted(parts))


def _communicator(number: int, found: Sequence[Collective]) -> CommunicatorSummary:
    protocols: dict[str, ProtocolTraffic] = {}
    for one in found:
        have = protocols.get(one.protocol, ProtocolTraffic(collectives=0, bytes=0))
        protocols[str(one.protocol)] = ProtocolTraffic(
            collectives=have.collectives + 1, bytes=have.bytes + one.bytes
        )
    # The last ones know the channel of most connections.
    last = max(found, key=lambda c: (_named(c), c.index))
    ring = last.ring
    links = _links(last, found) if ring is not None else _pairs(found)
    assumed = [
        told for one in found for told in one.assumed if told.is_any_of(*ABOUT_COMMUNICATORS)
    ]
    return CommunicatorSummary(
        number=number,
        ranks=last.ranks,
        ring=ring is not None,
        channels=ring.channels if ring is not None else 1,
        eras=ring.rules if ring is not None else (),
        assumed=tuple(dict.fromkeys(assumed)),
        links=links,
        gpus=ring.gpus if ring is not None else 1,
        protocols=protocols,
        kinds=dict(Counter(one.kind for one in found)),
        algorithms=dict(Counter(str(one.algorithm) for one in found if one.ring is not None)),
        coverage=_coverage(found),
    )


def _named(one: Collective) -> int:
    links = one.ring.links if one.ring is not None else ()
    return sum(channel is not None for link in links for channel, _ in link.channels)


def _links(last: Collective, found: Sequence[Collective]) -> tuple[MirroredLink, ...]:
    assert last.ring is not None
    carried, gpus = _carried(found), last.ring.gpus
    used = frozenset(one.algorithm for one in found)
    return tuple(
        MirroredLink(
            sender=place_of(link.senders, gpus),
            receiver=(place_of(link.senders, gpus) + 1) % (last.ranks // gpus)
            if link.receiver is None
            else link.receiver // gpus,
            connections=tuple(
                _connection(channel, flows, carried) for channel, flows in link.channels
            ),
            algorithm=algorithm_of_link(link.receiver, used),
        )
        for link in last.ring.links
    )


def place_of(senders: WriterRanks, gpus: int) -> int:
    """Position in the ring of the node that has these ranks."""
    return (senders if isinstance(senders, int) else senders[0]) // gpus


def _pairs(found: Sequence[Collective]) -> tuple[MirroredLink, ...]:
    """Point-to-point connections: senders and receivers are not numbered."""
    carried = _carried(found)
    flows = dict.fromkeys(p.flow for one in found for p in one.placements)
    made = (_connection(None, (flow,), carried) for flow in flows)
    return tuple(MirroredLink(sender=0, receiver=1, connections=(one,)) for one in made)


class _Carried:
    """The protocols, messages and bytes of one flow."""

    def __init__(self) -> None:
        self.protocols: dict[str, None] = {}
        self.messages = self.bytes = 0


def _carried(found: Sequence[Collective]) -> dict[FlowKey, _Carried]:
    carried: dict[FlowKey, _Carried] = {}
    for placement in (p for one in found for p in one.placements):
        if placement.first_psn is not None:
            flow = carried.setdefault(placement.flow, _Carried())
            flow.protocols[str(placement.protocol)] = None
            flow.messages += 1
            flow.bytes += placement.wire_bytes
    return carried


def _connection(
    channel: int | None, flows: Sequence[FlowKey], carried: Mapping[FlowKey, _Carried]
) -> Connection:
    own = [carried.get(flow, _Carried()) for flow in flows]
    return Connection(
        channel=channel,
        queue_pairs=tuple(flow.dest_qp for flow in flows),
        source=flows[0].source,
        destination=flows[0].destination,
        protocols=tuple(dict.fromkeys(name for one in own for name in one.protocols)),
        messages=sum(one.messages for one in own),
        bytes=sum(one.bytes for one in own),
    )


def _coverage(found: Sequence[Collective]) -> MirrorCoverage | None:
    reduces = [
        c for c in found if c.kind == CollectiveKind.ALL_REDUCE and c.ring is not None and c.bytes
    ]
    reduces = [c for c in reduces if c.algorithm is Algorithm.RING]
    if not reduces:
        return None
    of = max(reduces, key=lambda c: c.bytes)
    assert of.ring is not None
    shape = AllReduceShape(
        bytes=of.bytes,
        element_bytes=of.ring.element_bytes,
        extra_sends=of.ring.extra_sends,
        ranks=of.ranks,
        channels=of.ring.channels,
        protocol=of.protocol,
        nccl_era=of.ring.rules[0],
        gpus=of.ring.gpus,
    )
    around = [link.senders for link in of.ring.links if link.algorithm is Algorithm.RING]
    return coverage_of(shape, around)
