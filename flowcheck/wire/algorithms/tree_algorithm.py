"""NCCL's double binary trees: partial sums go up a tree of nodes, and the sum comes down it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowcheck.findings.catalog.communicators import SUMS_COME_WHOLE
from flowcheck.findings.catalog.nccl_transport import TREES_MIRRORED
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import (
    AlgorithmSpec,
    CollectiveCall,
    CommunicatorShape,
    ConnectionEnds,
    MirroredLane,
    UnplannedSearch,
)
from flowcheck.wire.algorithms.extra_tree_all_reduces import ExtraTreeAllReduces
from flowcheck.wire.collectives.chunk_partition import Launch, Span
from flowcheck.wire.collectives.double_binary_tree import TREE_THREADS, tree_chunks, tree_direction
from flowcheck.wire.collectives.nccl_parameters import (
    CollectiveKind,
    NcclEra,
    Protocol,
    wire_bytes,
)
from flowcheck.wire.collectives.send_table import Schedule, SendTable, no_sends


@dataclass(frozen=True, slots=True)
class _Grown:
    """What tells the trees of a communicator."""

    ranks: int
    gpus: int
    found: int


def _sends(call: CollectiveCall, ends: ConnectionEnds) -> Schedule:
    launch = Launch(
        kind=call.kind,
        work_bytes=call.work_bytes,
        element_bytes=call.element_bytes,
        **call.ring,
    )
    own = _Grown(launch.ranks, launch.gpus, call.found)
    return tuple(
        _channel_sends(launch.protocol, channel, spans, tree_direction(ends, channel, own))
        for channel, spans in enumerate(tree_chunks(launch))
    )


def _channel_sends(
    protocol: Protocol, channel: int, spans: Sequence[Span], final: bool | None
) -> SendTable:
    """final: the sum comes down; None: the channel's tree does not pass."""
    if final is None or not spans:
        return no_sends(channel)
    columns = np.array(spans, np.int64)
    return SendTable(
        channel,
        1,
        chunks=np.zeros(1, np.int64),
        start_bytes=columns[:, 0],
        data_bytes=columns[:, 1],
        wire_bytes=wire_bytes(protocol, columns[:, 1]),
        final=np.full(len(spans), final),
    )


def _unplanned(
    own: CommunicatorShape, era: NcclEra, lanes: Sequence[MirroredLane]
) -> UnplannedSearch | None:
    return ExtraTreeAllReduces(own, era, lanes) if own.found else None


TREE = AlgorithmSpec(
    name=Algorithm.TREE,
    plural="trees",
    kinds=frozenset({CollectiveKind.ALL_REDUCE}),
    sends=_sends,
    unplanned=_unplanned,
    thread_rule=TREE_THREADS,
    final_chunks=None,
    beside_ring=True,
    least_ranks=3,
    most_ranks=16,
    least_nodes=2,
    most_nodes_of_several_ports=3,
    mirror_note=TREES_MIRRORED(),
    by_words=" by trees",
    sums=SUMS_COME_WHOLE(),
)
