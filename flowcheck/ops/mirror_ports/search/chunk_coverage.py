"""Which chunks of each ring a mirrored port shows.

By the schedule of NCCL (link_coverage.py): the
link out of ring index i carries every chunk but one.

By the schedule of NCCL (link_coverage.py): the
link out of ring index i carries every chunk but one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import ChannelRing
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import Algorithm
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import CabledPort, NicCabling
from flowcheck.ops.switch.mirror_session import MirrorDirection
from flowcheck.wire.collectives.link_coverage import final_chunks

TREE_RANKS = (3, 16)
"""Jobs whose trees are followed (wire/README.md)."""


class MirroredDirection(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A direction of a port, as the switch names it: `rx` is what the server sends."""

    switch: str
    port: str
    direction: MirrorDirection
    node: int
    nic: int
    gbps: float
    host: str = ""
    """Address of the node there; empty where none is stated."""

    @property
    def told(self) -> str:
        """What that is, from the server's side."""
        does = "sends" if self.direction is MirrorDirection.RX else "receives"
        return f"{self.direction}: what node {self.node} {does} by NIC {self.nic}"


class PortTap(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs that show something only together: of a NIC of several cables all of them, for trees
    both directions."""

    pairs: tuple[MirroredDirection, ...]
    shows: dict[str, int]
    """[ring] bits of its chunks (Want.chunks) that pass in final form."""


class CoverageGoal(msgspec.Struct, frozen=True, kw_only=True):
    """A ring, or a channel's tree, all of whose chunks must be seen."""

    name: str
    group: str
    chunks: tuple[tuple[int, ...], ...]
    """Chunks that the same links carry are one bit."""

    @property
    def whole(self) -> int:
        return (1 << len(self.chunks)) - 1

    def lacked(self, bits: int) -> str:
        """Chunks that are not seen, by their numbers: those of a few."""
        each = sorted(c for n, some in enumerate(self.chunks) if bits >> n & 1 for c in some)
        if bits == self.whole:
            return f"none of this one's {len(each)} chunks"
        more = f" and {len(each) - 8} more" if len(each) > 8 else ""
        return f"all of this one but chunks {', '.join(map(str, each[:8]))}{more}"


class CoverageProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Of a job."""

    wants: tuple[CoverageGoal, ...]
    taps: tuple[PortTap, ...]
    """Those that are preferred come first: rx before tx, nodes in the order of rings."""


def tree_of(ring: ChannelRing) -> str:
    """Name of the tree of a ring's channel."""
    return f"{ring.name} tree"


def coverage_problem(
    rings: Sequence[ChannelRing], plugs: NicCabling, algorithm: Algorithm
) -> CoverageProblem:
    """Raises ConfigError for trees that are not followed."""
    if algorithm in (Algorithm.TREE, Algorithm.BOTH):
        for ring in rings:
            _check_tree(ring)
        _check_nics(rings)
        return _by_port(rings, plugs, algorithm)
    wants = [_want(ring) for ring in rings]
    shows: dict[tuple[int, int, MirrorDirection], dict[str, int]] = {}
    for ring, want in zip(rings, wants, strict=True):
        for link in ring.links:
            bits = _bits(want, ring, link.sender)
            for end in ((link.out_of, link.nic_out), (link.into, link.nic_in)):
                first = end == (link.out_of, link.nic_out)
                at = (*end, MirrorDirection.RX if first else MirrorDirection.TX)
                own = shows.setdefault(at, {})
                own[want.name] = own.get(want.name, 0) | bits
    order = _preferred(rings)
    taps = [
        PortTap(pairs=_pairs(plugs.of[node, nic], (way,)), shows=shown)
        for (node, nic, way), shown in shows.items()
    ]
    taps.sort(key=lambda tap: (tap.pairs[0].direction is MirrorDirection.TX, *_place(tap, order)))
    return CoverageProblem(wants=tuple(wants), taps=tuple(taps))


def _by_port(
    rings: Sequence[ChannelRing], plugs: NicCabling, algorithm: Algorithm
) -> CoverageProblem:
    """A tree is followed from both directions of a port: sums come down one, or leave it."""
    wants: list[CoverageGoal] = []
    shows: dict[tuple[int, int], dict[str, int]] = {}
    for ring in rings:
        want = _want(ring)
        tree = CoverageGoal(name=tree_of(ring), group=ring.group.name, chunks=((0,),))
        wants += [want] * (algorithm is Algorithm.BOTH) + [tree]
        for link in ring.links:
            bits = _bits(want, ring, link.sender)
            for end in ((link.out_of, link.nic_out), (link.into, link.nic_in)):
                own = shows.setdefault(end, {})
                own[tree.name] = 1
                if algorithm is Algorithm.BOTH:
                    own[want.name] = own.get(want.name, 0) | bits
    ways = (MirrorDirection.RX, MirrorDirection.TX)
    order = _preferred(rings)
    taps = [PortTap(pairs=_pairs(plugs.of[at], ways), shows=shown) for at, shown in shows.items()]
    taps.sort(key=lambda tap: _place(tap, order))
    return CoverageProblem(wants=tuple(wants), taps=tuple(taps))


def _check_tree(ring: ChannelRing) -> None:
    least, most = TREE_RANKS
    if not least <= ring.ranks <= most or (ring.group.gpus > 1 and len(ring.links) < least):
        why = (
            f"trees are followed of {least} to {most} ranks, on {least} nodes or more: group "
            f"{ring.group.name} has {ring.ranks} on {len(ring.links)}; NCCL_ALGO=Ring makes rings"
        )
        raise ConfigError("algorithm", "tree", why)


def _check_nics(rings: Sequence[ChannelRing]) -> None:
    """One NIC a node, by which all of a group's channels come and go."""
    nics: dict[tuple[str, int], int] = {}
    for ring in rings:
        for link in ring.links:
            for node, nic in ((link.out_of, link.nic_out), (link.into, link.nic_in)):
                if nics.setdefault((ring.group.name, node), nic) != nic:
                    why = (
                        f"group {ring.group.name} uses several NICs of node {node}: trees are "
                        "followed by one port a node; NCCL_ALGO=Ring makes rings"
                    )
                    raise ConfigError("algorithm", "tree", why)


def _want(ring: ChannelRing) -> CoverageGoal:
    """Chunks that some link lacks each by itself; those that every link carries together."""
    every = frozenset(range(ring.ranks))
    lacked = [every - final_chunks(link.sender, ring.ranks) for link in ring.links]
    alone = sorted({chunk for some in lacked for chunk in some})
    rest = tuple(sorted(every - set(alone)))
    chunks = (*((chunk,) for chunk in alone), *((rest,) if rest else ()))
    return CoverageGoal(name=ring.name, group=ring.group.name, chunks=chunks)


def _bits(want: CoverageGoal, ring: ChannelRing, sender: int) -> int:
    final = final_chunks(sender, ring.ranks)
    return sum(1 << n for n, some in enumerate(want.chunks) if final.issuperset(some))


def _pairs(
    plugs: Sequence[CabledPort], ways: Sequence[MirrorDirection]
) -> tuple[MirroredDirection, ...]:
    return tuple(
        MirroredDirection(
            switch=plug.switch,
            port=plug.port,
            direction=way,
            node=plug.node,
            nic=plug.nic,
            gbps=plug.gbps,
            host=plug.host,
        )
        for plug in plugs
        for way in ways
    )


def _preferred(rings: Sequence[ChannelRing]) -> Mapping[tuple[int, int], int]:
    """[node, NIC] its place in the first ring that comes there, so that neighbours are taken."""
    order: dict[tuple[int, int], int] = {}
    for ring in rings:
        for place, link in enumerate(ring.links):
            order.setdefault((link.out_of, link.nic_out), place)
            order.setdefault((link.into, link.nic_in), place + 1)
    return order


def _place(tap: PortTap, order: Mapping[tuple[int, int], int]) -> tuple[int, int, int]:
    first = tap.pairs[0]
    return order[first.node, first.nic], first.node, first.nic
