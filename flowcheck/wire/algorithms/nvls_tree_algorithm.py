"""NCCL's NVLS trees: the switch of each node sums what its GPUs have, and trees of nodes, one for
each NIC, sum what the switches gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.findings.catalog.communicators import SUMS_COME_WHOLE
from flowcheck.findings.catalog.nccl_transport import NVLS_TREES_MIRRORED
from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import (
    AlgorithmSpec,
    CollectiveCall,
    CommunicatorShape,
    ConnectionEnds,
    MirroredLane,
    UnplannedSearch,
)
from flowcheck.wire.collectives.chunk_partition import Launch
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.collectives.nvls_shape import NO_HEAD
from flowcheck.wire.collectives.nvls_tree_parts import (
    NVLS_THREADS,
    HeadChunks,
    nvls_chunks,
    nvls_direction,
)
from flowcheck.wire.collectives.send_table import Schedule, SendTable, no_sends


def _sends(call: CollectiveCall, ends: ConnectionEnds) -> Schedule:
    shape, gpus = call.nvls, call.ring.get("gpus", 1)
    setting = call.ring.copy()
    setting["channels"] = shape.channels
    launch = Launch(
        kind=call.kind,
        work_bytes=call.work_bytes,
        element_bytes=call.element_bytes,
        **setting,
    )
    writer = ends.writers if isinstance(ends.writers, int) else ends.writers[0]
    node = writer // gpus
    other = (node + 1) % shape.nodes if ends.receiver is None else ends.receiver // gpus
    heads = (ends.heads or (NO_HEAD,) * shape.channels)[: shape.channels]
    sent = (
        _channel_sends(channel, head, chunks, nvls_direction(node, other, channel, shape.nodes))
        for channel, (head, chunks) in enumerate(
            zip(heads, nvls_chunks(launch, shape), strict=True)
        )
    )
    return (*sent, *map(no_sends, range(shape.channels, call.ring["channels"])))


def _channel_sends(
    channel: int, head: int, chunks: HeadChunks | None, final: bool | None
) -> SendTable:
    """final: the sum comes down; None: the channel's tree does not pass."""
    if head == NO_HEAD or chunks is None or final is None:
        return no_sends(channel)
    starts, sizes = (np.ascontiguousarray(chunks[:, head, of]) for of in (0, 1))
    return SendTable(
        channel,
        1,
        chunks=np.zeros(1, np.int64),
        start_bytes=starts,
        data_bytes=sizes,
        wire_bytes=sizes,
        final=np.full(len(sizes), final),
    )


def _unplanned(
    own: CommunicatorShape, era: NcclEra, lanes: Sequence[MirroredLane]
) -> UnplannedSearch | None:
    """None: what a script reduces between buckets is small, and goes by other algorithms."""
    return None


NVLS_TREE = AlgorithmSpec(
    name=Algorithm.NVLS_TREE,
    plural="NVLS trees",
    kinds=frozenset({CollectiveKind.ALL_REDUCE}),
    sends=_sends,
    unplanned=_unplanned,
    thread_rule=NVLS_THREADS,
    final_chunks=None,
    beside_ring=True,
    least_ranks=4,
    least_nodes=2,
    least_gpus=2,
    all_ports_of_a_node=True,
    mirror_note=NVLS_TREES_MIRRORED(),
    by_words=" by NVLS trees",
    sums=SUMS_COME_WHOLE(),
)
