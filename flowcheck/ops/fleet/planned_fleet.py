"""What `flowcheck fleet plan` finds: the placement, and with what probability shards survive."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.fleet_plan import (
    CODE_OR_COPIES,
    CODE_WHOLE,
    DOMAIN_OF_JUMP,
    DOMAIN_SHARED,
    DOMAIN_UNAVOIDABLE,
    LOST_TOGETHER,
    NO_NODES,
    NODE_MAKES_SHARD,
    NODES_TWICE,
)
from flowcheck.findings.catalog.refused_settings import FROM_TO
from flowcheck.findings.finding import Finding
from flowcheck.fleet.copy_placement import Placement, Redundancy, Strategy
from flowcheck.fleet.failure_domains import KindSpread, spread, spread_placement
from flowcheck.fleet.fleet_file import FleetConfig, RedundancyConfig, load_fleet
from flowcheck.fleet.survival_odds import Survival, survival
from flowcheck.fleet.union_bound import union_bound

MOST_NODES = 1024
"""A choice: the largest fleet whose cost was measured."""
COPIES_DEFAULT = 2
"""Gemini's choice, and the default of Megatron-LM's --replication-factor."""
ROWS_DEFAULT = 8
"""Nodes lost that the table shows, beyond those of which any may be lost. A choice."""


class FleetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks; None: not given, as the file or the default has it."""

    file: Path | None
    nodes: int | None
    stated: RedundancyConfig
    lost: tuple[int, ...]
    """Nodes lost together to tell of; empty: those that matter."""


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """So many nodes are lost together."""

    lost: int
    exact: Fraction
    """Probability that all shards survive."""
    bound: Fraction | None
    """Gemini's, from below; None: of an erasure code it says nothing."""


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan."""

    names: tuple[str, ...]
    placement: Placement
    survival: Survival
    rows: tuple[LossRow, ...]
    domains: tuple[KindSpread, ...]
    notes: tuple[Finding, ...]
    """Where domains are not respected."""
    assumed: tuple[Finding, ...]


def make_fleet_plan(asked: FleetRequest) -> FleetPlan:
    """Raises ConfigError where file and options allow no plan."""
    config = FleetConfig() if asked.file is None else load_fleet(asked.file)
    names = _names(config, asked.nodes)
    strategy, redundancy, jump = chosen_redundancy(config.redundancy, asked.stated, len(names))
    labels = config.labels()
    placement = spread_placement(labels, len(names), strategy, redundancy, jump)
    counted = survival(placement)
    domains = spread(placement, labels)
    return FleetPlan(
        names=names,
        placement=placement,
        survival=counted,
        rows=_rows(placement, counted, asked.lost),
        domains=domains,
        notes=tuple(note for one in domains for note in _notes(one, placement)),
        assumed=(LOST_TOGETHER(), NODE_MAKES_SHARD()),
    )


def _names(config: FleetConfig, count: int | None) -> tuple[str, ...]:
    stated = tuple(node.name for node in config.node)
    if stated and count is not None:
        raise ConfigError("--nodes", count, NODES_TWICE())
    if not stated and count is None:
        raise ConfigError("--nodes", None, NO_NODES())
    size = count if count is not None else len(stated)
    if not 1 <= size <= MOST_NODES:
        key = "--nodes" if count is not None else "node"
        raise ConfigError(key, size, FROM_TO(least=1, most=MOST_NODES))
    return stated or tuple(f"node{number}" for number in range(size))


def chosen_redundancy(
    file: RedundancyConfig, line: RedundancyConfig, nodes: int
) -> tuple[Strategy, Redundancy, int | None]:
    """The command line's choice between copies and a code replaces the file's as a whole."""
    of_line = line.replication_factor, line.data_blocks, line.parity_blocks
    of_file = file.replication_factor, file.data_blocks, file.parity_blocks
    factor, data, parity = of_file if of_line == (None, None, None) else of_line
    if factor is not None and (data, parity) != (None, None):
        raise ConfigError("replication_factor", factor, CODE_OR_COPIES())
    if (data is None) != (parity is None):
        key = "data_blocks" if data is None else "parity_blocks"
        raise ConfigError(key, None, CODE_WHOLE())
    for key, value in (
        ("replication_factor", factor),
        ("data_blocks", data),
        ("parity_blocks", parity),
    ):
        if value is not None and not 1 <= value <= MOST_NODES:
            raise ConfigError(key, value, FROM_TO(least=1, most=MOST_NODES))
    if data is not None and parity is not None:
        redundancy = Redundancy(needed=data, spare=parity)
    else:
        copies = COPIES_DEFAULT if factor is None else factor
        redundancy = Redundancy(needed=1, spare=copies - 1)
    strategy = line.strategy or file.strategy
    jump = line.replication_jump if line.replication_jump is not None else file.replication_jump
    if strategy is None and jump is not None:
        strategy = Strategy.JUMP
    divides = nodes % redundancy.parts == 0
    return strategy or (Strategy.GROUP if divides else Strategy.MIXED), redundancy, jump


def _rows(placement: Placement, counted: Survival, lost: Sequence[int]) -> tuple[LossRow, ...]:
    nodes = placement.nodes
    for one in lost:
        if not 0 <= one <= nodes:
            raise ConfigError("--lost", one, FROM_TO(least=0, most=nodes))
    last = min(counted.never, counted.always + ROWS_DEFAULT)
    return tuple(
        LossRow(lost=f, exact=counted.probability(f), bound=union_bound(placement, f))
        for f in sorted(set(lost)) or range(counted.always, last + 1)
    )


def _notes(one: KindSpread, placement: Placement) -> list[Finding]:
    if not one.shards_sharing:
        return []
    parts = placement.redundancy.parts
    if not one.unavoidable and placement.strategy is Strategy.JUMP:
        return [DOMAIN_OF_JUMP(kind=one.kind, shards=one.shards_sharing)]
    if not one.unavoidable:
        return [DOMAIN_SHARED(one.kind)]
    told = {"largest": one.largest, "nodes": one.largest_nodes, "room": one.room}
    return [DOMAIN_UNAVOIDABLE(kind=one.kind, parts=parts, **told)]
