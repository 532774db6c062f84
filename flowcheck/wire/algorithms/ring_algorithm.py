"""NCCL's rings: every rank writes to the next one of the ring, and to nobody else."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.algorithms.algorithm_names import Algorithm
from flowcheck.wire.algorithms.algorithm_spec import (
    AlgorithmSpec,
    CollectiveCall,
    CommunicatorShape,
    ConnectionEnds,
    MirroredLane,
    UnplannedSearch,
)
from flowcheck.wire.algorithms.extra_ring_collectives import ExtraRingCollectives
from flowcheck.wire.collectives.chunk_partition import RING_THREADS
from flowcheck.wire.collectives.link_coverage import final_chunks
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.collectives.ring_schedule import Schedule, collective
from flowcheck.wire.collectives.send_table import no_sends


def _sends(call: CollectiveCall, ends: ConnectionEnds) -> Schedule:
    if ends.receiver is not None:
        return tuple(map(no_sends, range(call.ring["channels"])))
    return collective(
        call.kind,
        call.work_bytes,
        sender=ends.writers,
        element_bytes=call.element_bytes,
        extra_sends=call.extra_sends,
        root=call.root,
        **call.ring,
    )


def _unplanned(
    own: CommunicatorShape, era: NcclEra, lanes: Sequence[MirroredLane]
) -> UnplannedSearch:
    return ExtraRingCollectives(own, era, lanes)


RING = AlgorithmSpec(
    name=Algorithm.RING,
    plural="rings",
    kinds=frozenset(CollectiveKind),
    sends=_sends,
    unplanned=_unplanned,
    thread_rule=RING_THREADS,
    final_chunks=final_chunks,
)
