"""Which chunks of each ring, or of what else a job's all-reduces go by, a mirrored port shows.

By NCCL's schedule, as the descriptor of each algorithm has it (wire/algorithms): of a ring, the
link out of ring index i carries every chunk but one; of a tree, both directions of a port together
show all; of an NVLS tree, those of all ports of a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import (
    ALGORITHM_LEAST_GPUS,
    ALGORITHM_LEAST_RANKS,
    ALGORITHM_NICS,
    ALGORITHM_RANKS,
    CHUNKS_UNSEEN,
    MORE_CHUNKS_UNSEEN,
    NO_CHUNK_SEEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.mirror_ports.cluster_layout.channel_rings import ChannelRing, RingLink
from flowcheck.ops.mirror_ports.cluster_layout.nic_cabling import CabledPort, NicCabling
from flowcheck.ops.switch.mirror_session import MirrorDirection
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import spec_of
from flowcheck.wire.algorithms.algorithm_spec import AlgorithmSpec

MOST_CHUNKS = 8
"""Chunks that an error message lists. A choice of layout."""
_TapPlace = tuple[int, tuple[int, ...], tuple[MirrorDirection, ...]]
"""(node, NICs, directions) that are mirrored together."""
_BOTH = (MirrorDirection.RX, MirrorDirection.TX)


class MirroredDirection(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One direction of a switch port, as the switch names it: `rx` is what the server sends, `tx`
    what it receives."""

    switch: str
    port: str
    direction: MirrorDirection
    node: int
    nic: int
    gbps: float
    host: str = ""
    """Address of the node at the port; "": not stated."""

    @property
    def description(self) -> str:
        """The direction from the server's side, for people."""
        does = "sends" if self.direction is MirrorDirection.RX else "receives"
        return f"{self.direction}: what node {self.node} {does} by NIC {self.nic}"


class PortTap(msgspec.Struct, frozen=True, kw_only=True):
    """Port directions that only together show data: all cables of a NIC, and both directions where
    an algorithm requires that."""

    pairs: tuple[MirroredDirection, ...]
    shows: dict[str, int]
    """Coverage goal -> bits (of `CoverageGoal.chunks`) whose final data pass this tap."""


class CoverageGoal(msgspec.Struct, frozen=True, kw_only=True):
    """All chunks of one channel's collectives by one algorithm, each of which must be seen."""

    name: str
    group: str
    chunks: tuple[tuple[int, ...], ...]
    """For each bit: the chunk numbers that it stands for. Chunks that appear on the same links
    share a bit."""

    @property
    def whole(self) -> int:
        """Bit mask of all chunks."""
        return (1 << len(self.chunks)) - 1

    def seen_without(self, bits: int) -> Finding:
        """The finding that says what is seen if these bits are not: lists the first missing
        chunks."""
        each = sorted(c for n, some in enumerate(self.chunks) if bits >> n & 1 for c in some)
        if bits == self.whole:
            return NO_CHUNK_SEEN(len(each))
        if len(each) > MOST_CHUNKS:
            more = len(each) - MOST_CHUNKS
            return MORE_CHUNKS_UNSEEN(chunks=each[:MOST_CHUNKS], more=more)
        return CHUNKS_UNSEEN(each)


class CoverageProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Coverage goals of a job, and the taps from which to choose."""

    goals: tuple[CoverageGoal, ...]
    taps: tuple[PortTap, ...]
    """Preferred ones first: rx before tx, then nodes in ring order."""


def goal_name(ring: ChannelRing, algorithm: Algorithm) -> str:
    """Name of the coverage goal of a ring's channel for an algorithm."""
    return ring.name if algorithm is Algorithm.RING else f"{ring.name} {algorithm}"


def coverage_problem(
    rings: Sequence[ChannelRing], plugs: NicCabling, algorithms: Sequence[Algorithm]
) -> CoverageProblem:
    """The coverage goals and taps of a job.

    plugs: cabling of the NICs.
    algorithms: all algorithms of its all-reduces.

    Raises ConfigError where an algorithm is not followed in this layout.
    """
    specs = [spec_of(algorithm) for algorithm in algorithms]
    for spec in specs:
        _check_sizes(spec, rings)
        _check_nics(spec, rings)
    together = any(spec.final_chunks is None for spec in specs)
    wants: list[CoverageGoal] = []
    shows: dict[_TapPlace, dict[str, int]] = {}
    for ring in rings:
        goals = [(_goal(ring, spec), spec) for spec in specs]
        wants += [goal for goal, _ in goals]
        # Where no direction shows chunks of its own, a node's ports show all of it together.
        for goal in (goal for goal, spec in goals if spec.final_chunks is None):
            for node, nics in _nics_of_nodes(ring, plugs).items():
                shows.setdefault((node, nics, _BOTH), {})[goal.name] = goal.whole
        by_link = [(goal, s.final_chunks) for goal, s in goals if s.final_chunks is not None]
        for link, (goal, final_chunks) in product(ring.links, reversed(by_link)):
            final = final_chunks(link.sender, ring.ranks)
            bits = sum(1 << n for n, some in enumerate(goal.chunks) if final.issuperset(some))
            for place in _places(link, together):
                own = shows.setdefault(place, {})
                own[goal.name] = own.get(goal.name, 0) | bits
    for (node, nics, ways), shown in shows.items():
        # All NICs of a node show what each of them does.
        for nic in nics if len(nics) > 1 else ():
            for name, bits in shows.get((node, (nic,), ways), {}).items():
                shown[name] = shown.get(name, 0) | bits
    order = _preferred(rings)
    taps = [
        PortTap(
            pairs=_pairs([plug for nic in nics for plug in plugs.ports[node, nic]], ways),
            shows=shown,
        )
        for (node, nics, ways), shown in shows.items()
    ]
    taps.sort(key=lambda tap: (tap.pairs[0].direction is MirrorDirection.TX, *_place(tap, order)))
    return CoverageProblem(goals=tuple(wants), taps=tuple(taps))


def _places(link: RingLink, together: bool) -> Iterator[_TapPlace]:
    """Where a link is seen: as its sender sends and as its receiver receives. together: a port is
    mirrored in both directions, or not at all."""
    yield link.out_of, (link.nic_out,), _BOTH if together else _BOTH[:1]
    yield link.into, (link.nic_in,), _BOTH if together else _BOTH[1:]


def _nics_of_nodes(ring: ChannelRing, plugs: NicCabling) -> dict[int, tuple[int, ...]]:
    """{node of the group: NICs that are the nearest of one of its GPUs}."""
    group = ring.group
    return {
        node: tuple(sorted({plugs.nics[node, gpu] for gpu in group.local(node)}))
        for node in (link.out_of for link in ring.links)
    }


def _check_sizes(spec: AlgorithmSpec, rings: Sequence[ChannelRing]) -> None:
    for ring in rings:
        if ring.group.gpus < spec.least_gpus:
            told = {"algorithm": spec.plural, "least": spec.least_gpus}
            why = ALGORITHM_LEAST_GPUS(group=ring.group.name, own=ring.group.gpus, **told)
            raise ConfigError("algorithm", str(spec.name), why)
        most = ring.ranks if spec.most_ranks is None else spec.most_ranks
        if spec.least_ranks <= ring.ranks <= most and len(ring.links) >= spec.least_nodes:
            continue
        told = {
            "algorithm": spec.plural,
            "least": spec.least_ranks,
            "nodes": spec.least_nodes,
            "group": ring.group.name,
            "ranks": ring.ranks,
            "own": len(ring.links),
        }
        bounded = spec.most_ranks is not None
        why = ALGORITHM_RANKS(most=most, **told) if bounded else ALGORITHM_LEAST_RANKS(**told)
        raise ConfigError("algorithm", str(spec.name), why)


def _check_nics(spec: AlgorithmSpec, rings: Sequence[ChannelRing]) -> None:
    """One NIC a node, by which all of a group's channels come and go, where it has so many
    nodes."""
    nics: dict[tuple[str, int], int] = {}
    most = spec.most_nodes_of_several_ports
    for ring in (ring for ring in rings if most is not None and len(ring.links) > most):
        for link in ring.links:
            for node, nic in ((link.out_of, link.nic_out), (link.into, link.nic_in)):
                if nics.setdefault((ring.group.name, node), nic) != nic:
                    told = {"algorithm": spec.plural, "most": most, "own": len(ring.links)}
                    why = ALGORITHM_NICS(group=ring.group.name, node=node, **told)
                    raise ConfigError("algorithm", str(spec.name), why)


def _goal(ring: ChannelRing, spec: AlgorithmSpec) -> CoverageGoal:
    """Chunks that some link lacks each by itself; those that every link carries together. One chunk
    where a port shows all or nothing."""
    name = goal_name(ring, spec.name)
    if spec.final_chunks is None:
        return CoverageGoal(name=name, group=ring.group.name, chunks=((0,),))
    every = frozenset(range(ring.ranks))
    lacked = [every - spec.final_chunks(link.sender, ring.ranks) for link in ring.links]
    alone = sorted({chunk for some in lacked for chunk in some})
    rest = tuple(sorted(every - set(alone)))
    chunks = (*((chunk,) for chunk in alone), *((rest,) if rest else ()))
    return CoverageGoal(name=name, group=ring.group.name, chunks=chunks)


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
