"""Which gathers of an iteration hold the parameters that a ZeRO job made of its gradients.

DeepSpeed (deepspeed/runtime/zero/stage_1_and_2.py, step: all_gather_dp_groups) gathers each group's
flat parameters behind the step, in the type of the model: of the iteration that the next gradients
end, they come first. The replica of the whole state is held against them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.findings.catalog.distributed_optimizers import (
    GATHERS_COMPARED,
    GATHERS_NOT_PLACED,
    MASTERS_BY_ROUNDED,
    SUMS_EACH_PASS,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind
from flowcheck.wire.learn.jobs.held import sends_fit
from flowcheck.wire.training_job.learned_job import (
    BufferBroadcast,
    CollectiveOp,
    FollowedData,
    LearnedJob,
    Role,
)
from flowcheck.wire.training_job.operator_statements import ShardedTraining, ShardingStyle

TWO_BYTES = ("bfloat16", "float16")


def with_gathered(job: LearnedJob, parted: ShardedTraining | None) -> LearnedJob:
    """The job with the gathers of each iteration behind its gradients, where every stated unit has
    one and no other collective fits; else as it is, and it says that no step is compared."""
    whole = job.kind is FollowedData.GRADIENTS and not job.buffer_broadcasts
    if parted is None or parted.style is not ShardingStyle.ZERO or not whole:
        return job
    two = any(part.dtype in TWO_BYTES for part in parted.parts)
    told = (MASTERS_BY_ROUNDED(),) * two
    own = (job.communicators[0].ranks == parted.ranks) and _gathered(job, parted)
    if not own:
        return _with(job, job.each, (), (*told, GATHERS_NOT_PLACED()))
    each, held = list(job.each), list[BufferBroadcast]()
    for unit, (place, op) in enumerate(own):
        each[place] = msgspec.structs.replace(op, buffer_broadcast=unit)
        size = op.work_bytes * parted.ranks
        held.append(BufferBroadcast(numbers=(), nbytes=size, unit=unit))
    made = _with(job, each, held, told)
    evidence = (*job.evidence, GATHERS_COMPARED(len(held)))
    return msgspec.structs.replace(made, evidence=evidence)


def not_whole(job: LearnedJob, parted: ShardedTraining | None, *, masters: bool) -> Finding | None:
    """Why what was read as sums of gradients is not followed as the state of a ZeRO job; None: it
    is, or the job is another one. masters: the optimizer is stated. Of parameters of two bytes
    gathers have to show what became of each step: what is taken for one may be a part of it."""
    if parted is None or parted.style is not ShardingStyle.ZERO:
        return None
    if parted.sums > 1:
        return SUMS_EACH_PASS(parted.sums)
    two = any(part.dtype in TWO_BYTES for part in parted.parts)
    if masters and two and not with_gathered(job, parted).buffer_broadcasts:
        return GATHERS_NOT_PLACED()
    return None


def _with(
    job: LearnedJob,
    each: Sequence[CollectiveOp],
    held: Sequence[BufferBroadcast],
    assumed: Sequence[object],
) -> LearnedJob:
    return msgspec.structs.replace(
        job,
        each=tuple(each),
        buffer_broadcasts=tuple(held),
        assumed=(*job.assumed, *assumed),
    )


def _gathered(job: LearnedJob, parted: ShardedTraining) -> list[tuple[int, CollectiveOp]]:
    """[unit] (place in an iteration, the gather as it is stated); [] where they are not there one
    behind the other before the gradients, or lie in two places."""
    buckets = (place for place, op in enumerate(job.each) if op.role is Role.BUCKET)
    stop = next(buckets, 0) - len(parted.parts)
    found: list[list[tuple[int, CollectiveOp]]] = []
    for start in range(stop + 1):
        own = [
            (start + n, _as_gather(job, job.each[start + n], part.gathered_bytes))
            for n, part in enumerate(parted.parts)
        ]
        whole = [(place, op) for place, op in own if op is not None]
        if len(whole) == len(own):
            found.append(whole)
    return found[0] if len(found) == 1 else []


def _as_gather(job: LearnedJob, seen: CollectiveOp, block: int) -> CollectiveOp | None:
    """The collective as a gather of `block` bytes a rank; None: its sends are not just that. Of two
    ranks a gather and an all-reduce look alike."""
    ranks = job.communicators[0].ranks
    size = seen.work_bytes * (ranks if seen.kind is CollectiveKind.ALL_GATHER else 1)
    alike = seen.kind is CollectiveKind.ALL_GATHER or (
        ranks == 2 and seen.kind is CollectiveKind.ALL_REDUCE
    )
    slack = ranks * GRAIN_BYTES[seen.protocol]
    if (
        seen.communicator
        or seen.role is Role.BUCKET
        or not alike
        or abs(size - block * ranks) > slack
    ):
        return None
    own = msgspec.structs.replace(seen, kind=CollectiveKind.ALL_GATHER, work_bytes=block)
    return own if sends_fit(job, seen, own) else None
