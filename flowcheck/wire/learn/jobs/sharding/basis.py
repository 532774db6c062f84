"""What a job of sharded training rests on, and why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowcheck.findings.catalog import sharded_jobs as sharded
from flowcheck.findings.catalog.job_learning import EVERY_SEND_FITS
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import Protocol
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.periods import Period


def evidence(period: Period, ring: Ring) -> tuple[Finding, ...]:
    again = sum(len(unit) > 1 for unit in period.units)
    return (
        sharded.UNITS_REPEAT(
            units=len(period.units), iterations=period.windows, collectives=period.length
        ),
        sharded.GATHERED_AGAIN(again),
        EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
    )


def assumed(
    period: Period, cuts: Sequence[Cut], ring: Ring, first: int, blocks: frozenset[int]
) -> Iterator[Finding]:
    if not ring.from_start:
        yield sharded.STEP_0_UNKNOWN()
    else:
        yield sharded.STEP_0_LATER(first) if first else sharded.BEGUN_WITH()
    if ring.ranks > 3:
        yield sharded.RANKS_IN_ORDER()
    own = [cuts[period.start + unit[0]].op for unit in period.units]
    if any(op.protocol is not Protocol.SIMPLE and op.work_bytes not in blocks for op in own):
        yield sharded.ENDS_OPEN()
    if period.by_order:
        yield sharded.UNITS_BY_ORDER(units=len(period.by_order), all_units=len(period.units))
