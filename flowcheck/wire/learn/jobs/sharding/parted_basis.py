"""What a job of a parted optimizer rests on, and why there is none."""

from __future__ import annotations

from collections.abc import Iterator

from flowcheck.findings.catalog import distributed_optimizers as optimizer
from flowcheck.findings.catalog.job_learning import EVERY_SEND_FITS
from flowcheck.findings.catalog.sharded_jobs import RANKS_IN_ORDER
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.training_job.operator_statements import ShardedTraining, ShardingStyle

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Of an element of the types that are gathered."""


def none_such(parted: ShardedTraining) -> Finding:
    """Nothing on the wire is the stated trainer."""
    sums = (
        optimizer.REDUCE_SCATTERS([part.scattered_bytes for part in parted.parts])
        if parted.style is ShardingStyle.MEGATRON
        else optimizer.ALL_REDUCES(parted.summed_bytes * parted.sums)
    )
    gathered = [part.gathered_bytes for part in parted.parts]
    return optimizer.NOT_SEEN(
        ranks=parted.ranks, style=parted.style, sums=sums, gathered_bytes=gathered
    )


def lacking(ring: Ring, parted: ShardedTraining) -> Finding:
    """The first step was not seen whole."""
    if len(ring.edges) > 1:
        return optimizer.NO_WHOLE_STEP()
    size = sum(part.gathered_bytes for part in parted.parts)
    rank = (ring.edges[0].sender + 1) % ring.ranks
    return optimizer.ONE_DIRECTION(
        rank=rank, ranks=ring.ranks, missing_bytes=size, bytes=size * ring.ranks
    )


def evidence(parted: ShardedTraining, ring: Ring, steps: int, change: float) -> tuple[Finding, ...]:
    return (
        optimizer.PARAMETERS_ONLY(),
        optimizer.UNITS_CHANGE(units=len(parted.parts), steps=steps, change=round(change, 3)),
        EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
    )


def assumed(
    parted: ShardedTraining, ring: Ring, first: int | None, *, begun: bool
) -> Iterator[Finding]:
    """first: steps before the first one that is followed, None where that is not told; begun: the
    parameters that it begins with were sent."""
    if not begun:
        yield optimizer.STEP_0_AS_STEP_1()
    if first is None:
        yield optimizer.STEP_1_UNKNOWN()
    elif first:
        yield optimizer.STEP_1_LATER(first + 1)
    if any(part.dtype == "float16" for part in parted.parts):
        yield optimizer.SKIPPED_STEPS()
    if ring.ranks > 3:
        yield RANKS_IN_ORDER()
    alike = any(part.scattered_bytes == part.gathered_bytes for part in parted.parts)
    if parted.style is ShardingStyle.MEGATRON and (alike or ring.ranks == 2):
        yield optimizer.BY_STATEMENT()
