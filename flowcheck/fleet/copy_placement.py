"""Which nodes hold each shard: group, ring, mixed and jump.

Each node makes one shard and keeps the first part of it. A part is a copy, or a block of an erasure
code. Group, ring and mixed are Gemini's (Wang et al., SOSP '23, Algorithm 1); jump is
the clique strategy of nvidia-resiliency-ext (checkpointing/local/replication/group_utils.py), with
the names that Megatron-LM gives its options.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_plan import (
    GROUPS_DIVIDE,
    JUMP_DIVIDES,
    JUMP_OF_OTHER,
    PARTS_AND_NODES,
)
from flowcheck.findings.catalog.refused_settings import AT_LEAST


class Strategy(StrEnum):
    GROUP = "group"
    """Disjoint groups of as many nodes as a shard has parts."""
    RING = "ring"
    """Each shard on its node and those that follow it in a circle."""
    MIXED = "mixed"
    """Groups, and a ring in the last one, which takes the nodes that are left over."""
    JUMP = "jump"
    """Groups of nodes that are `replication_jump` apart, in the order stated."""


class Redundancy(msgspec.Struct, frozen=True, kw_only=True):
    """How a shard is kept."""

    needed: int
    """Parts that rebuild it: 1 with copies, k of an erasure code."""
    spare: int
    """Parts that may be lost."""

    @property
    def parts(self) -> int:
        """Nodes that hold a part, the shard's own included."""
        return self.needed + self.spare


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Holders of each shard, as indices of nodes."""

    strategy: Strategy
    redundancy: Redundancy
    nodes: int
    shards: tuple[tuple[int, ...], ...]
    """[shard] its holders, the node that made it first; sorted by that node."""

    @property
    def holder_sets(self) -> frozenset[frozenset[int]]:
        """Without repetition: shards of a group have the same holders."""
        return frozenset(map(frozenset, self.shards))


def place(
    order: Sequence[int], strategy: Strategy, redundancy: Redundancy, jump: int | None = None
) -> Placement:
    """The placement on these nodes. order: a permutation of 0..N-1; neighbours in it share shards.
    jump: distance within a group, of Strategy.JUMP alone; None: 1. Raises ConfigError where the
    strategy does not fit their number."""
    nodes, parts = len(order), redundancy.parts
    check_fit(nodes, strategy, redundancy, jump)
    if strategy is Strategy.RING:
        shards = _ring(order, parts)
    elif strategy is Strategy.JUMP:
        shards = [holders for one in _cliques(order, parts, jump or 1) for holders in _ring(one)]
    else:
        whole = nodes // parts - (strategy is Strategy.MIXED)
        groups = [order[at * parts : (at + 1) * parts] for at in range(whole)]
        shards = [holders for one in groups for holders in _ring(one)]
        shards += _ring(order[whole * parts :], parts)
    return Placement(
        strategy=strategy, redundancy=redundancy, nodes=nodes, shards=tuple(sorted(shards))
    )


def check_fit(nodes: int, strategy: Strategy, redundancy: Redundancy, jump: int | None) -> None:
    """Raises ConfigError where the strategy does not fit so many nodes."""
    parts = redundancy.parts
    if parts > nodes:
        raise ConfigError("nodes", nodes, PARTS_AND_NODES(parts))
    if jump is not None and strategy is not Strategy.JUMP:
        raise ConfigError("replication_jump", jump, JUMP_OF_OTHER(strategy.value))
    if jump is not None and jump < 1:
        raise ConfigError("replication_jump", jump, AT_LEAST(1))
    if strategy is Strategy.GROUP and nodes % parts:
        raise ConfigError("nodes", nodes, GROUPS_DIVIDE(parts))
    if strategy is Strategy.JUMP and nodes % (parts * (jump or 1)):
        told = JUMP_DIVIDES(block=parts * (jump or 1), jump=jump or 1, parts=parts)
        raise ConfigError("nodes", nodes, told)


def _ring(circle: Sequence[int], parts: int | None = None) -> list[tuple[int, ...]]:
    """[shard] its node and those that follow it in the circle; parts None: all of them."""
    size = len(circle)
    return [
        tuple(circle[(at + step) % size] for step in range(parts or size)) for at in range(size)
    ]


def _cliques(order: Sequence[int], parts: int, jump: int) -> list[Sequence[int]]:
    block = parts * jump
    starts = [at + first for at in range(0, len(order), block) for first in range(jump)]
    return [order[start : start + block - jump + 1 : jump] for start in starts]
