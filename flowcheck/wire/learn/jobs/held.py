"""Which broadcasts of an iteration are the stated model's buffers, by their sizes.

torch/nn/parallel/distributed.py (_sync_buffers, broadcast_buffers=True): each forward behind a
synchronised backward broadcasts all buffers of rank 0, as the iteration before left them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowcheck.findings.catalog.job_learning import BUFFERS_FOLLOWED, BUFFERS_OF_START
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    LL_LINE_DATA_BYTES,
    CollectiveKind,
)
from flowcheck.wire.ddp_startup import ddp_messages
from flowcheck.wire.learn.trainer.habits import Habits
from flowcheck.wire.training_job.connection_messages import edge_messages, op_sizes
from flowcheck.wire.training_job.learned_job import BufferBroadcast, CollectiveOp, LearnedJob, Role


def with_held(job: LearnedJob, habits: Habits) -> LearnedJob:
    """The job with the buffers that its iterations send behind the gradients; as it is where they
    are not stated, or another place fits their broadcasts as well. Of elements smaller than any
    gradient's, those whose bytes do not fill such elements are left out."""
    job = without_held(job)
    sent = habits.types.sent if habits.types is not None else ()
    wires = [tensor.wire for tensor in sent if tensor.buffer]
    pieces = ddp_messages.weight_broadcasts([w.nbytes for w in wires], [w.dtype for w in wires])
    begins = _begins(job.each, [size for _, size in pieces])
    if not wires or len(begins) != 1:
        return job
    each, held = list(job.each), list[BufferBroadcast]()
    for place, (numbers, size) in enumerate(pieces, begins[0]):
        own = msgspec.structs.replace(each[place], work_bytes=size, buffer_broadcast=len(held))
        if _fits(job, each[place], own):
            each[place] = own
            held.append(BufferBroadcast(numbers=numbers, nbytes=size))
    if len(held) < len(pieces):
        return job if not held else _of(job, each, held, job.assumed)
    assumed = (
        BUFFERS_FOLLOWED() if one.is_any_of(BUFFERS_OF_START) else one for one in job.assumed
    )
    return _of(job, each, held, tuple(assumed))


def without_held(job: LearnedJob) -> LearnedJob:
    """The same with nothing behind its gradients."""
    each = tuple(msgspec.structs.replace(op, buffer_broadcast=None) for op in job.each)
    return msgspec.structs.replace(job, each=each, buffer_broadcasts=())


def _of(
    job: LearnedJob,
    each: Sequence[CollectiveOp],
    held: Sequence[BufferBroadcast],
    assumed: tuple[Finding, ...],
) -> LearnedJob:
    return msgspec.structs.replace(
        job, each=tuple(each), buffer_broadcasts=tuple(held), assumed=assumed
    )


def _begins(each: Sequence[CollectiveOp], sizes: Sequence[int]) -> list[int]:
    """Where broadcasts of these sizes, line slack aside, follow each other before the gradients."""
    buckets = (place for place, op in enumerate(each) if op.role is Role.BUCKET)
    stop = next(buckets, 0) - len(sizes)
    return [
        start
        for start in range(stop + 1)
        if all(_as_large(op, size) for op, size in zip(each[start:], sizes, strict=False))
    ]


def _as_large(op: CollectiveOp, size: int) -> bool:
    slack = max(GRAIN_BYTES[op.protocol], LL_LINE_DATA_BYTES)
    return (
        op.kind is CollectiveKind.BROADCAST
        and not op.communicator
        and 0 <= op.work_bytes - size < slack
    )


def _fits(job: LearnedJob, seen: CollectiveOp, own: CollectiveOp) -> bool:
    """As of `sends_fit`, and it ends with an element too."""
    unit = min(parameter.element_bytes for parameter in job.reduced)
    return sends_fit(job, seen, own) and own.work_bytes % unit == 0


def sends_fit(job: LearnedJob, seen: CollectiveOp, own: CollectiveOp) -> bool:
    """What was seen sent the sizes that `own` sends, each beginning with an element of a
    gradient."""
    unit = min(parameter.element_bytes for parameter in job.reduced)
    for edge in (edge for edge in job.edges if edge.communicator == own.communicator):
        if op_sizes(job, edge, seen) != op_sizes(job, edge, own):
            return False
        sent = (one for channel in edge_messages(job, edge, (own,)) for one in channel)
        if any(one.start_byte % unit for one in sent):
            return False
    return True
