"""The registry of NCCL's algorithms: a row for each name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Unpack

from flowcheck.findings.catalog.nccl_transport import (
    COLLNET_NOT_FOLLOWED,
    NVLS_NOT_FOLLOWED,
    PAT_NOT_FOLLOWED,
)
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import AlgorithmSpec, CollectiveCall, ConnectionEnds
from flowcheck.wire.algorithms.nvls_tree_algorithm import NVLS_TREE
from flowcheck.wire.algorithms.ring_algorithm import RING
from flowcheck.wire.algorithms.tree_algorithm import TREE
from flowcheck.wire.collectives.double_binary_tree import PerTree
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, WriterRanks
from flowcheck.wire.collectives.nvls_shape import NO_NVLS, NvlsShape
from flowcheck.wire.collectives.ring_schedule import RingSetting, Schedule
from flowcheck.wire.collectives.send_table import no_sends

REFUSED = (
    AlgorithmSpec(
        name=Algorithm.NVLS,
        plural="NVLink SHARP",
        refused_because=NVLS_NOT_FOLLOWED(),
    ),
    AlgorithmSpec(
        name=Algorithm.COLLNET,
        plural="CollNet",
        refused_because=COLLNET_NOT_FOLLOWED(),
    ),
    AlgorithmSpec(
        name=Algorithm.PAT,
        plural="PAT",
        refused_because=PAT_NOT_FOLLOWED(),
    ),
)
"""Those that are not followed, each with the reason."""
ALGORITHMS: dict[Algorithm, AlgorithmSpec] = {
    spec.name: spec for spec in (RING, TREE, NVLS_TREE, *REFUSED)
}
"""In the order in which an unplanned collective is looked for."""


def spec_of(algorithm: Algorithm) -> AlgorithmSpec:
    return ALGORITHMS[algorithm]


def followed_algorithms() -> tuple[AlgorithmSpec, ...]:
    return tuple(spec for spec in ALGORITHMS.values() if spec.followed)


def algorithm_of_link(
    receiver: int | None, used: Collection[Algorithm] = (), trees: PerTree = (True, True)
) -> Algorithm:
    """Whose connections those from one rank to another are. receiver, trees: as of
    `ConnectionEnds`; used: algorithms of the communicator's collectives, as far as they are known.

    The ring's own lead to the next rank, and another algorithm may pass there too. All others are
    of an algorithm that has connections beside the ring: the first one that is used.
    """
    if receiver is None:
        return Algorithm.RING
    beside = [
        spec.name
        for spec in followed_algorithms()
        if spec.beside_ring and (any(trees) or spec.all_ports_of_a_node)
    ]
    return next((name for name in beside if name in used), beside[0])


def connection_sends(
    kind: CollectiveKind,
    work_bytes: int,
    *,
    sender: WriterRanks,
    receiver: int | None = None,
    trees: PerTree = (True, True),
    heads: tuple[int, ...] = (),
    nvls: NvlsShape = NO_NVLS,
    algorithm: Algorithm = Algorithm.RING,
    found: int = 0,
    element_bytes: int = 4,
    extra_sends: int = 0,
    root: int = 0,
    **ring: Unpack[RingSetting],
) -> Schedule:
    """[channel][send] what one edge carries for any collective, by the descriptor of its algorithm.
    sender, receiver, trees, heads: as of `ConnectionEnds`; the rest as of `CollectiveCall`. Raises
    ValueError for an algorithm that is not followed."""
    spec = spec_of(algorithm)
    if spec.sends is None:
        raise ValueError(str(spec.refused_because))
    ring["thread_rule"] = spec.thread_rule
    call = CollectiveCall(
        kind=kind,
        work_bytes=work_bytes,
        element_bytes=element_bytes,
        root=root,
        extra_sends=extra_sends,
        found=found,
        ring=ring,
        nvls=nvls,
    )
    ends = ConnectionEnds(writers=sender, receiver=receiver, trees=trees, heads=heads)
    sent = spec.sends(call, ends)
    # The same channels whatever it goes by: those of rings and of NVLS trees may differ in number.
    return (*sent, *map(no_sends, range(len(sent), nvls.channels)))
