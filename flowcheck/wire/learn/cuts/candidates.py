"""Which collectives the next sizes on the wire may be the start of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flowcheck.findings.finding import Finding
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_registry import connection_sends
from flowcheck.wire.collectives.double_binary_tree import PerTree
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    WriterRanks,
)
from flowcheck.wire.collectives.nvls_shape import NvlsShape
from flowcheck.wire.collectives.ring_schedule import Schedule
from flowcheck.wire.learn.cuts.totals import (
    Channels,
    Positions,
    slacks,
    totals_of,
    totals_of_room,
    tree_totals,
)
from flowcheck.wire.learn.flows.rings import Ring, earliest

__all__ = [
    "Channels",
    "Op",
    "Positions",
    "generated",
    "of_other_roots",
    "schedules_of",
    "totals_of",
]

OTHER_TYPES = (2, 8)
"""Bytes of an element, beside the usual four."""
SMALL_SENDS, MOST_SMALL = 64, 1 << 14
"""Schedules of at most so many sends are kept beside the newest 4,096, and how many: where tensors
are small a search asks for some ten thousand different ones again and again. All of them take
200 MB at most (a Send is some 200 bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A collective as a guess. `work_bytes`: the tensor, or one rank's block of a gather."""

    kind: CollectiveKind
    work_bytes: int
    protocol: Protocol
    licensed: str = ""
    """Why it is expected here; empty: read from the sizes alone."""
    meaning: str = ""
    open_size: bool = False
    """Expected here, but of no particular size."""
    from_wire: bool = False
    """Expected here; nothing but the sizes on the wire tells how large it is."""
    type_bytes: int = 0
    """Of an element, where that is known: Simple's slices depend on it. 0: it is not."""
    root: int = 0
    """Ring index; broadcasts only."""
    algorithm: Algorithm = Algorithm.RING
    end: Finding | None = None
    """What tells where it ends inside its last line, if content does."""

    @property
    def tree(self) -> bool:
        """An all-reduce by trees, NVLS trees too: its sums come whole."""
        return self.algorithm is not Algorithm.RING

    @property
    def element_bytes(self) -> int:
        """The widest usual type that divides it, where none is known."""
        if self.type_bytes:
            return self.type_bytes
        return 4 if self.work_bytes % 4 == 0 else 2 if self.work_bytes % 2 == 0 else 1

    @property
    def slack_is_open(self) -> bool:
        """The last line may hold less than it can: the sizes alone do not tell."""
        return not self.licensed and self.protocol is not Protocol.SIMPLE

    @property
    def sized_by_wire(self) -> bool:
        """Nothing but the sizes on the wire tells how large it is."""
        return self.slack_is_open or self.from_wire or self.open_size


@lru_cache(maxsize=4096)
def _schedule_of(
    op: Op,
    rule: NcclEra,
    ranks: int,
    gpus: int,
    channels: int,
    ends: tuple[WriterRanks, int | None, PerTree, tuple[int, ...]],
    extra_sends: int,
    found: int,
    nvls: NvlsShape,
) -> Schedule:
    """What one edge carries for `op`. ends: who writes, who reads, which trees and heads pass."""
    return connection_sends(
        op.kind,
        op.work_bytes,
        sender=ends[0],
        receiver=ends[1],
        trees=ends[2],
        heads=ends[3],
        nvls=nvls,
        algorithm=op.algorithm,
        found=found,
        element_bytes=op.element_bytes,
        extra_sends=extra_sends,
        root=op.root,
        ranks=ranks,
        gpus=gpus,
        channels=channels,
        protocol=op.protocol,
        era=rule,
    )


_small: dict[tuple[object, ...], Schedule] = {}


def _kept(*asked: Any) -> Schedule:
    """What `_schedule_of` says."""
    found = _small.get(asked)
    if found is None:
        found = _schedule_of(*asked)
        if sum(map(len, found)) <= SMALL_SENDS:
            if len(_small) >= MOST_SMALL:
                _small.clear()
            _small[asked] = found
    return found


def schedules_of(op: Op, rule: NcclEra, ring: Ring) -> tuple[Schedule, ...]:
    """[edge] what each one carries for `op`."""
    own = ring.ranks, ring.gpus, ring.channels
    more = ring.extra_sends, ring.found, ring.nvls
    # Where who writes is open it is turned round from what rank 0 would.
    zero = ring.sounding and not op.tree
    return tuple(
        _kept(
            op,
            rule,
            *own,
            (0 if zero else edge.writers, edge.receiver, edge.trees, edge.heads),
            *more,
        )
        for edge in ring.edges
    )


def generated(ring: Ring, positions: Positions, channels: Channels) -> Iterator[Op]:
    """Guesses from the sizes alone, the most telling kind first."""
    seen: set[Op] = set()
    for protocol in ring.protocols_at(positions):
        yield from by_trees(ring, positions, channels, protocol)
        yield from _generated(ring, positions, channels, protocol, seen)


def by_trees(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol
) -> Iterator[Op]:
    """All-reduces that no ring makes: what they send goes where the ring sends nothing."""
    for total in tree_totals(ring, positions, channels, protocol):
        for slack in slacks(ring, CollectiveKind.ALL_REDUCE, total, protocol):
            if total > slack:
                yield Op(
                    kind=CollectiveKind.ALL_REDUCE,
                    work_bytes=total - slack,
                    protocol=protocol,
                    algorithm=Algorithm.TREE,
                )


def by_each_algorithm(op: Op, ring: Ring) -> Iterator[Op]:
    """The collective, and the same by trees where these may be."""
    yield op
    if op.kind is not CollectiveKind.ALL_REDUCE or op.tree:
        return
    if ring.found:
        yield replace(op, algorithm=Algorithm.TREE)
    if ring.nvls.heads and op.protocol is Protocol.SIMPLE:
        yield replace(op, algorithm=Algorithm.NVLS_TREE)


def _generated(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol, seen: set[Op]
) -> Iterator[Op]:
    kinds = (*_kinds(ring, positions, channels, protocol), *_of_broadcasts(ring, protocol))
    totals = [(k, n) for k in kinds for n in totals_of(ring, positions, channels, k, protocol)]
    for kind, total in totals:
        sizes = [total - slack for slack in slacks(ring, kind, total, protocol)]
        if protocol is Protocol.LL128 and not kind.in_blocks:
            sizes += totals_of_room(ring, kind, total)
        for size in sizes:
            op = Op(kind=kind, work_bytes=size, protocol=protocol)
            if op.work_bytes > 0 and op not in seen:
                seen.add(op)
                yield op
                yield from _of_other_types(op, ring)
    yield from of_other_roots(ring, positions, channels, protocol)


def _kinds(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol
) -> tuple[CollectiveKind, ...]:
    """The most telling first."""
    reduce, broadcast, gather, scatter, _ = CollectiveKind
    if ring.gathers:
        return gather, scatter, reduce, broadcast
    if ring.ranks == 2 and not _both_ways(ring, positions, channels, protocol):
        return reduce, broadcast, gather, scatter  # one send is a gather or a broadcast
    return reduce, gather, broadcast, scatter


def _of_broadcasts(ring: Ring, protocol: Protocol) -> tuple[CollectiveKind, ...]:
    """The gather that grouped broadcasts make, where it may differ from an all-gather."""
    differs = protocol is Protocol.SIMPLE or ring.channels > 1
    return (CollectiveKind.ALL_GATHER_V,) * (differs and NcclEra.V2_29 in ring.rules)


def of_other_roots(
    ring: Ring, positions: Positions, channels: Channels, protocol: Protocol
) -> Iterator[Op]:
    """Broadcasts of other ranks than rank 0, as far as the connections seen tell them apart: by
    which of them carry nothing."""
    first = earliest(ring, positions, trees=False)
    apart = any(edge.senders for edge in ring.edges)
    if len(ring.around) < 2 or not ring.roots or first is None or apart:
        return
    silent = [(edge.sender + 1) % ring.ranks for edge in ring.around]
    none = [root for root in range(ring.ranks) if root not in silent]
    begun = (ring.edges[first[0]].sender + 1) % ring.ranks
    for root in dict.fromkeys(root for root in (*silent, *none[:1]) if root not in (0, begun)):
        for total in totals_of(ring, positions, channels, CollectiveKind.BROADCAST, protocol, root):
            yield Op(kind=CollectiveKind.BROADCAST, work_bytes=total, protocol=protocol, root=root)


def _of_other_types(op: Op, ring: Ring) -> Iterator[Op]:
    """The same tensor in types whose slices part elsewhere."""
    if op.protocol is not Protocol.SIMPLE or op.kind is not CollectiveKind.ALL_REDUCE:
        return
    told = {schedules_of(op, rule, ring) for rule in ring.rules}
    for type_bytes in OTHER_TYPES:
        other = replace(op, type_bytes=type_bytes)
        if not op.work_bytes % type_bytes:
            sizes = {schedules_of(other, rule, ring) for rule in ring.rules}
            if sizes != told:
                yield other


def _both_ways(ring: Ring, positions: Positions, channels: Channels, protocol: Protocol) -> bool:
    """Both ranks of a ring of two send as much, as in a gather and in no broadcast."""
    found: list[set[int]] = []
    for i, edge in enumerate(ring.edges):
        one = replace(ring, edges=(edge,))
        places, names = positions[i : i + 1], channels[i : i + 1]
        found.append(set(totals_of(one, places, names, CollectiveKind.ALL_GATHER, protocol)))
    return len(found) > 1 and bool(set.intersection(*found))
