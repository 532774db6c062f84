"""The data-parallel groups of a job: which ranks sum their gradients together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_layouts import GROUP_IN_ONE_NODE, GROUP_OF_ONE, GROUP_UNEVEN
from flowcheck.ops.mirror_ports.cluster_layout.layout_file import PARALLEL_SIZES, ClusterLayout

SUMMED = ("dp", "cp")
"""Parallel dimensions over which gradients are summed: Megatron-LM sums over data and context
parallel ranks together (megatron/core/parallel_state.py, get_data_parallel_group
with_context_parallel)."""


class DataParallelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One communicator that all-reduces gradients. Its ranks count from 0 in the order of
    `members`."""

    number: int
    name: str
    """Coordinates of the group, such as "tp0 pp1"; "dp" if there is only one group."""
    members: tuple[int, ...]
    """Global ranks of the job, ascending."""
    gpus: int
    """GPUs of each node that belong to the group."""
    per_node: int
    """All GPUs of a node."""

    def node(self, rank: int) -> int:
        """Node of a rank of the communicator."""
        return self.members[rank] // self.per_node

    def gpu(self, rank: int) -> int:
        """GPU number, within its node, of a rank of the communicator."""
        return self.members[rank] % self.per_node

    def local(self, node: int) -> tuple[int, ...]:
        """GPU numbers of a node that belong to the group."""
        mine = (rank for rank in self.members if rank // self.per_node == node)
        return tuple(rank % self.per_node for rank in mine)


def groups_of(topology: ClusterLayout) -> tuple[DataParallelGroup, ...]:
    """All data-parallel groups of the layout. Raises ConfigError where gradients are not summed at
    all, where a group lies inside one node, or where it has different numbers of ranks on its
    nodes."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, place in _places(topology):
        key = tuple(place[size] for size in PARALLEL_SIZES if size not in SUMMED)
        found.setdefault(key, []).append(rank)
    named = [size for size in PARALLEL_SIZES if size not in SUMMED]
    groups = []
    for number, (key, members) in enumerate(sorted(found.items())):
        told = [
            f"{size}{at}"
            for size, at in zip(named, key, strict=True)
            if getattr(topology, size) > 1
        ]
        groups.append(_group(number, " ".join(told) or "dp", members, topology.gpus))
    return tuple(groups)


def _group(number: int, name: str, members: list[int], per_node: int) -> DataParallelGroup:
    if len(members) < 2:
        raise ConfigError("data-parallel group", name, GROUP_OF_ONE())
    on = [rank // per_node for rank in members]
    if len(set(on)) == 1:
        why = GROUP_IN_ONE_NODE(ranks=len(members), node=on[0])
        raise ConfigError("data-parallel group", name, why)
    counts = {node: on.count(node) for node in on}
    if len(set(counts.values())) > 1:
        told = [f"node {node}: {count}" for node, count in counts.items()]
        raise ConfigError("data-parallel group", name, GROUP_UNEVEN(told))
    return DataParallelGroup(
        number=number,
        name=name,
        members=tuple(members),
        gpus=counts[on[0]],
        per_node=per_node,
    )


def _places(topology: ClusterLayout) -> Iterator[tuple[int, dict[str, int]]]:
    """(rank, {size: place in it}), the first named size differing first."""
    named = topology.order.split("-")[::-1]
    counts = [range(getattr(topology, size)) for size in named]
    for rank, place in enumerate(product(*counts)):
        yield rank, dict(zip(named, place, strict=True))
