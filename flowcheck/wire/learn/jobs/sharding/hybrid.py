"""Hybrid sharding (HSDP): what is sharded within one communicator is summed over another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.findings.catalog.sharded_jobs import HYBRID
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.reading import Collective
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.training_job import learned_job

SUMMED_PARTS = "gradients of one rank's parts, summed over all copies of the model"


def reduced_beside(learned: learned_job.LearnedJob, communicators: Sequence[Communicator]) -> bool:
    """Another communicator sums what has the sizes of one rank's parts."""
    sums = (cut.op for c in communicators for cut in c.cuts.found)
    return _parts(learned) <= {op.work_bytes for op in sums if op.kind is CollectiveKind.ALL_REDUCE}


def _parts(learned: learned_job.LearnedJob) -> set[int]:
    """Bytes of one rank's part of each unit's gradient, as they are scattered."""
    scatters = (op for op in learned.each if op.kind is CollectiveKind.REDUCE_SCATTER)
    return {op.work_bytes for op in scatters}


def with_sums(
    collectives: Sequence[Collective], learned: learned_job.LearnedJob
) -> tuple[Collective, ...]:
    """All of them, and of HSDP what is summed over the copies of the model called so."""
    if HYBRID() not in learned.evidence:
        return tuple(collectives)
    parts = _parts(learned)
    return tuple(
        replace(c, meaning=SUMMED_PARTS) if c.kind == "all_reduce" and c.bytes in parts else c
        for c in collectives
    )
