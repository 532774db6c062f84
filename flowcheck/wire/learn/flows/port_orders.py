"""In which order a ring's connections over several NIC ports of a node carry its channels.

Each NIC numbers its queue pairs by itself, and channels start at once: neither numbers nor first
uses of several ports say anything of each other. Channel c is on the NIC of the c-th GPU that has
one, and begins again behind the last. A ring enters a node and leaves it by that NIC, or it enters
even nodes by that one and leaves them by the one beside it, and odd nodes the other way round.

Source: NCCL src/graph/search.cc (ncclTopoSearchRec; crossNic), src/graph/connect.cc (connectRings),
as they come out on nodes of H100 and A100 with 8 and 4 NICs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from flowcheck.findings.catalog.connections import CHANNELS_BY_GPU, CHANNELS_BY_USE
from flowcheck.wire.learn.flows.channels import first_used
from flowcheck.wire.learn.flows.groups import Group
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.flows.trees import Link

Ports = tuple[str, str]
"""(address at the lower node, at the higher one)."""


def ports_of(stream: Stream, link: Link) -> Ports:
    """Those of a connection between two nodes."""
    ends = stream.key.source, stream.key.destination
    return ends if link[0] < link[1] else ends[::-1]


def firsts(streams: Mapping[Link, Sequence[Stream]], pair: Link, gpus: int) -> dict[Ports, int]:
    """{ports of two nodes: the GPU that they are nearest to}, by who writes there."""
    writers: dict[Ports, set[int]] = defaultdict(set)
    for link in (pair, pair[::-1]):
        for stream in streams.get(link, ()):
            writers[ports_of(stream, link)].add((stream.tag or 0) % gpus)
    return {ports: _first(own, gpus) for ports, own in writers.items()}


def _first(writers: set[int], gpus: int) -> int:
    """Of a NIC's GPUs, which follow each other round the node."""
    return next((gpu for gpu in sorted(writers) if (gpu - 1) % gpus not in writers), 0)


def by_gpus(
    group: Group,
    nodes: Mapping[Link, tuple[str, str]],
    streams: Mapping[Link, Sequence[Stream]],
    gpus: int,
) -> Iterator[Group]:
    """The same with channels on ports in the order of GPUs, in both ways in which a ring may pass
    a node; none where nothing orders two ports. nodes: {link: its name in the group}; streams: all
    connections between nodes."""
    orders: dict[Link, list[Ports]] = {}
    for link, name in nodes.items():
        if name in group.links:
            own = firsts(streams, (min(link), max(link)), gpus)
            if len({*own.values()}) < len(own):
                return  # An address says nothing of GPUs.
            orders[link] = sorted(own, key=lambda ports: own[ports])
    even = all(len(order) % 2 == 0 for order in orders.values())
    for crossed in (False, True) if even else (False,):
        links = {}
        for link, order in orders.items():
            turned = crossed and link[0] % 2 == 0
            leaves = [order[at ^ 1] for at in range(len(order))] if turned else order
            links[nodes[link]] = _by_turns(group.links[nodes[link]], link, leaves)
        yield replace(group, links=links, order=CHANNELS_BY_GPU())


def _by_turns(row: Sequence[Stream], link: Link, order: Sequence[Ports]) -> tuple[Stream, ...]:
    """Those of each port in the order of their numbers."""
    lanes: dict[Ports, list[Stream]] = {ports: [] for ports in order}
    for stream in sorted(row, key=lambda s: s.key.dest_qp):
        lanes[ports_of(stream, link)].append(stream)
    turns = zip_longest(*lanes.values())
    return tuple(stream for turn in turns for stream in turn if stream is not None)


def by_turns(group: Group) -> Group:
    """The same with the channels of each link on its ports by turns: a port's connections in the
    order of their numbers, ports in the order in which they were first used.

    Channels start at once, so that the first use orders those of one port by chance; the first
    collectives are so small that channel 0 carries them alone. A guess, tried last and told as
    one: that channels take ports by turns is not of NCCL's sources, and seen in the lab alone."""
    links: dict[tuple[str, str], tuple[Stream, ...]] = {}
    for link, row in group.links.items():
        lanes: dict[Ports, list[Stream]] = {}
        for stream in sorted(row, key=lambda s: s.key.dest_qp):
            lanes.setdefault((stream.key.source, stream.key.destination), []).append(stream)
        ports = sorted(lanes.values(), key=lambda own: min(map(first_used, own)))
        turns = zip_longest(*ports)
        links[link] = tuple(stream for turn in turns for stream in turn if stream is not None)
    return replace(group, links=links, order=CHANNELS_BY_USE())
