"""The NCCL ring of each channel and group, as links between nodes with their NICs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.mirrored_ports import (
    NICS_AS_DUMPED_NODE,
    NICS_IN_TURN,
    ORDER_AS_LOGGED_GROUP,
    ORDER_BY_RANK,
    ORDER_CUT_IN_LOG,
)
from flowcheck.findings.catalog.refused_layouts import (
    LEAVES_NODE_TWICE,
    LOG_AMBIGUOUS,
    LOG_CHANNELS,
    LOG_OF_OTHER_RANKS,
    LOGS_FOR_GROUPS,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.data_parallel_groups import DataParallelGroup
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import NicCabling
from flowcheck.wire.collectives.nccl_debug_log import MAX_PRINTED_RANKS, RingOrder

ORDER_ASSUMPTIONS = (ORDER_BY_RANK, ORDER_AS_LOGGED_GROUP, ORDER_CUT_IN_LOG)
"""Findings that state an assumption about the order of nodes in a ring."""


class RingLink(msgspec.Struct, frozen=True, kw_only=True):
    """One link of a ring: from a node to the next one."""

    sender: int
    """Ring index of the rank that sends."""
    out_of: int
    into: int
    """The receiving node; `out_of` is the sending node."""
    nic_out: int
    nic_in: int


class ChannelRing(msgspec.Struct, frozen=True, kw_only=True):
    """The ring of one channel of one data-parallel group."""

    group: DataParallelGroup
    channel: int
    channels: int
    """Number of channels of the group."""
    links: tuple[RingLink, ...]

    @property
    def name(self) -> str:
        """Name for people, such as "tp0 channel 1"."""
        return f"{self.group.name} channel {self.channel}"

    @property
    def ranks(self) -> int:
        """Number of ranks in the ring."""
        return len(self.group.members)


class ChannelNics(msgspec.Struct, frozen=True, kw_only=True):
    """(NIC in, NIC out) of each channel that NCCL's search found, for one set of GPUs."""

    gpus: tuple[int, ...]
    nics: tuple[tuple[int, int], ...]
    alternate: bool = False
    """True: on odd nodes the two channels of a pair exchange their NICs (src/graph/connect.cc,
    ncclTopoPostset, crossNic 2)."""


class RingsResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rings of a job, with what was assumed about them."""

    rings: tuple[ChannelRing, ...]
    assumed: tuple[Finding, ...]


def rings_of(
    groups: Sequence[DataParallelGroup],
    plugs: NicCabling,
    *,
    channels: int | None,
    logs: Sequence[Sequence[RingOrder]] = (),
    ways: Sequence[ChannelNics] = (),
) -> RingsResult:
    """The rings of all groups and channels.

    plugs: cabling of the NICs.
    channels: number of channels as stated; None: from the log, else from the number of NICs.
    logs: ring orders of each NCCL log; one log for all groups, or one per group.
    ways: NICs of the channels from NCCL graph dumps.

    Raises ConfigError where these contradict each other.
    """
    assumed: dict[Finding, None] = dict.fromkeys(plugs.assumed)
    rings: list[ChannelRing] = []
    if len(logs) not in (0, 1, len(groups)):
        raise ConfigError("--nccl-log", f"{len(logs)} logs", LOGS_FOR_GROUPS(len(groups)))
    for group in groups:
        log = logs[group.number if len(logs) > 1 else 0] if logs else ()
        order = _order_of(group, log) if logs else None
        if order is None:
            assumed[ORDER_BY_RANK()] = None
        elif len(logs) == 1 and len(groups) > 1:
            assumed[ORDER_AS_LOGGED_GROUP()] = None
        graph = next((w for w in ways if w.gpus == tuple(sorted(group.local(group.node(0))))), None)
        if graph is not None:
            assumed[NICS_AS_DUMPED_NODE()] = None
        elif group.gpus > 1:
            assumed[NICS_IN_TURN()] = None
        count = _channels(group, plugs, channels, order, graph)
        for channel in range(count):
            ring = tuple(range(len(group.members)))
            if order is not None and len(order.channels[channel]) == len(ring):
                ring = order.channels[channel]
            elif order is not None:
                assumed[ORDER_CUT_IN_LOG()] = None
            links = _links(group, channel, ring, plugs, graph, order is not None)
            rings.append(ChannelRing(group=group, channel=channel, channels=count, links=links))
    return RingsResult(rings=tuple(rings), assumed=tuple(assumed))


def _order_of(group: DataParallelGroup, log: Sequence[RingOrder]) -> RingOrder:
    ranks = len(group.members)
    fits = [o for o in log if ranks in (o.ranks, len(o.channels[0])) and _is_ring(o, ranks)]
    if not fits:
        logged = sorted({o.ranks or len(o.channels[0]) for o in log})
        why = LOG_OF_OTHER_RANKS(logged=logged, ranks=ranks)
        raise ConfigError("--nccl-log", group.name, why)
    if len(fits) > 1:
        raise ConfigError("--nccl-log", group.name, LOG_AMBIGUOUS(orders=len(fits), ranks=ranks))
    return fits[0]


def _is_ring(order: RingOrder, ranks: int) -> bool:
    """Each rank once; of a ring that was cut, each of the first ones."""
    return all(
        len(ring) in (ranks, min(MAX_PRINTED_RANKS, ranks))
        and len(set(ring)) == len(ring)
        and max(ring) < ranks
        for ring in order.channels
    )


def _channels(
    group: DataParallelGroup,
    plugs: NicCabling,
    stated: int | None,
    order: RingOrder | None,
    graph: ChannelNics | None,
) -> int:
    """As stated, or as the log tells; else those of NCCL's search, doubled (src/graph/connect.cc,
    ncclTopoPostset)."""
    if order is not None:
        if stated not in (None, len(order.channels)):
            why = LOG_CHANNELS(channels=len(order.channels), group=group.name)
            raise ConfigError("channels", stated, why)
        return len(order.channels)
    if stated is not None:
        return stated
    found = len(graph.nics) if graph is not None else len(_nics(group, plugs, group.node(0)))
    return 2 * found


def _nics(group: DataParallelGroup, plugs: NicCabling, node: int) -> list[int]:
    """Of a node: those of the group's GPUs."""
    return sorted({plugs.nics[node, gpu] for gpu in group.local(node)})


def _links(
    group: DataParallelGroup,
    channel: int,
    ring: Sequence[int],
    plugs: NicCabling,
    graph: ChannelNics | None,
    told: bool,
) -> tuple[RingLink, ...]:
    after = (*ring[1:], ring[0])
    left = [
        (index, rank, then)
        for index, (rank, then) in enumerate(zip(ring, after, strict=True))
        if group.node(rank) != group.node(then)
    ]
    if len(left) != len({group.node(rank) for rank in ring}):
        raise ConfigError("channel", channel, LEAVES_NODE_TWICE(group.name))
    entry = {group.node(then): then for _, _, then in left}
    links = []
    for index, rank, then in left:
        out_of, into = group.node(rank), group.node(then)
        ways: Mapping[int, tuple[int, int]] = {
            node: _way(group, channel, node, entry[node], plugs, graph, told)
            for node in (out_of, into)
        }
        links.append(
            RingLink(
                sender=index,
                out_of=out_of,
                into=into,
                nic_out=ways[out_of][1],
                nic_in=ways[into][0],
            )
        )
    return tuple(links)


def _way(
    group: DataParallelGroup,
    channel: int,
    node: int,
    entry: int,
    plugs: NicCabling,
    graph: ChannelNics | None,
    told: bool,
) -> tuple[int, int]:
    """NICs by which a channel comes to a node and leaves it."""
    if graph is not None:
        at = channel % len(graph.nics)
        nodes = sorted({group.node(rank) for rank in range(len(group.members))})
        if graph.alternate and nodes.index(node) % 2:
            at ^= 1
        way = graph.nics[at]
        # One GPU of a node is the first of its channel, which sends by that NIC, too
        # (src/graph/search.cc, ncclTopoGetNetDev).
        return (way[0], way[0]) if group.gpus == 1 else way
    if told:
        nic = plugs.nics[node, group.gpu(entry)]
        return nic, nic
    nics = _nics(group, plugs, node)
    return (nics[channel % len(nics)],) * 2
