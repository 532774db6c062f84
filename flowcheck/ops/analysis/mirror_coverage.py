"""How much of an all-reduce the mirrored links carry, and what mirroring another link would
add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from flowcheck.wire.collectives.link_coverage import LinkCoverage, link_coverage
from flowcheck.wire.collectives.nccl_parameters import NcclEra, Protocol, WriterRanks
from flowcheck.wire.collectives.ring_schedule import Schedule, all_reduce

FAR_NODES = 64
"""Nodes. Of a longer ring only links beside those seen are tried: all others are alike. A choice:
more tries more links, each over the whole ring."""


class AllReduceShape(msgspec.Struct, frozen=True, kw_only=True):
    """The all-reduce and its ring."""

    bytes: int
    element_bytes: int
    extra_sends: int
    ranks: int
    channels: int
    protocol: Protocol
    nccl_era: NcclEra = msgspec.field(name="rule")
    gpus: int = 1
    """Ranks of a node: links are those between nodes, and named by the node that they lead out
    of."""


class CoverageGain(msgspec.Struct, frozen=True, kw_only=True):
    """What another mirrored link would add."""

    links: tuple[int, ...]
    """The nodes they lead out of: each of them alone would add as much."""
    adds_bytes: int
    """Of the all-reduce, in final form where nothing was."""
    twice_bytes: int
    """Of it that would then be seen twice at least."""


class MirrorCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Of one all-reduce: what the mirrored links carry of it, whatever was lost."""

    bytes: int
    once_bytes: int
    twice_bytes: int
    chunk_links: tuple[int, ...]
    """[chunk of a loop] how many of them carry it in final form."""
    missing_chunks: tuple[int, ...]
    gains: tuple[CoverageGain, ...]
    weights: bool
    """A broadcast from rank 0 passes one of the links."""


def coverage_of(shape: AllReduceShape, senders: Sequence[WriterRanks]) -> MirrorCoverage:
    """senders: ring indices out of which mirrored links lead, [channel] where they differ."""
    seen = {_node(one, shape): one for one in sorted(senders, key=lambda one: _node(one, shape))}
    now = _seen(shape, [*seen.values()])
    gains: dict[tuple[int, int], list[int]] = {}
    for node in _others(shape.ranks // shape.gpus, [*seen]):
        near = next(iter(seen))
        more = _seen(shape, [*seen.values(), _moved(seen[near], node - near, shape)])
        gains.setdefault((more.once_bytes - now.once_bytes, more.twice_bytes), []).append(node)
    return MirrorCoverage(
        bytes=shape.bytes,
        once_bytes=now.once_bytes,
        twice_bytes=now.twice_bytes,
        chunk_links=now.links,
        missing_chunks=now.missing,
        gains=tuple(
            CoverageGain(links=tuple(links), adds_bytes=adds, twice_bytes=twice)
            for (adds, twice), links in sorted(gains.items(), reverse=True)
        ),
        weights=_weights(shape, [*seen.values()]),
    )


def _each(senders: WriterRanks, shape: AllReduceShape) -> tuple[int, ...]:
    """[channel]"""
    return (senders,) * shape.channels if isinstance(senders, int) else senders


def _node(senders: WriterRanks, shape: AllReduceShape) -> int:
    return _each(senders, shape)[0] // shape.gpus


def _moved(senders: WriterRanks, nodes: int, shape: AllReduceShape) -> WriterRanks:
    """Those of the link out of the node so many behind."""
    each = (one + nodes * shape.gpus for one in _each(senders, shape))
    moved = tuple(one % shape.ranks for one in each)
    return moved[0] if isinstance(senders, int) else moved


def _weights(shape: AllReduceShape, seen: Sequence[WriterRanks]) -> bool:
    """On every channel a broadcast from rank 0 passes one of the links."""
    last = shape.ranks - 1
    each = [_each(one, shape) for one in seen]
    return all(any(one[c] != last for one in each) for c in range(shape.channels))


def _others(nodes: int, seen: Sequence[int]) -> Iterable[int]:
    if nodes <= FAR_NODES:
        return [node for node in range(nodes) if node not in seen]
    neighbours = {(node + step) % nodes for node in seen for step in (-1, 1)}
    return sorted(neighbours - set(seen))


def _seen(shape: AllReduceShape, senders: Sequence[WriterRanks]) -> LinkCoverage:
    return link_coverage([_schedule(shape, one) for one in senders], shape.bytes, shape.ranks)


@lru_cache(maxsize=256)
def _schedule(shape: AllReduceShape, sender: WriterRanks) -> Schedule:
    return all_reduce(
        shape.bytes,
        sender=sender,
        element_bytes=shape.element_bytes,
        extra_sends=shape.extra_sends,
        ranks=shape.ranks,
        channels=shape.channels,
        protocol=shape.protocol,
        era=shape.nccl_era,
    )
