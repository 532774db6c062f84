"""NCCL's double binary trees: partial sums go up a tree of nodes, and the sum comes down it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.findings.catalog.nccl_algorithms import TREES_MIRRORED
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
from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.double_binary_tree import TREE_THREADS, tree_chunks, tree_direction
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, wire_bytes
from flowcheck.wire.collectives.ring_schedule import Schedule, Send


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
    channels: list[tuple[Send, ...]] = []
    for channel, spans in enumerate(tree_chunks(launch)):
        final = tree_direction(ends, channel, own)
        sends = (
            Send(
                channel=channel,
                send=number,
                fifo_step=number,
                loop=number,
                chunk=0,
                start_byte=start,
                data_bytes=size,
                wire_bytes=wire_bytes(launch.protocol, size),
                final=bool(final),
            )
            for number, (start, size) in enumerate(spans)
        )
        channels.append(() if final is None else tuple(sends))
    return tuple(channels)


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
    least_nodes=3,
    one_port_a_node=True,
    mirror_note=TREES_MIRRORED(),
    by_words=" by trees",
    sum_words="their sums come down whole",
)
