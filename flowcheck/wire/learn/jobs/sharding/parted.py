"""The job of a trainer whose optimizer is parted, as stated: its parameters, as it gathers them.

Whoever reduces gradients whole sends what looks alike, so content is asked as well: parameters
change little from one step to the next, gradients do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flowcheck.findings.catalog import distributed_optimizers as optimizer
from flowcheck.findings.catalog import sharded_jobs as sharded
from flowcheck.findings.catalog.job_learning import EVERY_SEND_FITS
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding import parted_content as content
from flowcheck.wire.learn.jobs.sharding.parameters_job import Learned, Units, parameters_job
from flowcheck.wire.learn.search.change import LITTLE
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.parted import gathered_at, gathers
from flowcheck.wire.learn.search.releases import releases_open
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.operator_statements import ShardedTraining, ShardingStyle

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
"""Of an element of the types that are gathered."""
MOST_STEPS = 4
"""Of which what they gathered is compared: each is all parameters."""
Coarse = tuple[CollectiveKind, int, str]


def learn_parted(found: Sequence[Communicator], parted: ShardedTraining) -> Learned:
    """The job of the one found to be the stated trainer's, and the parameters of the first step
    that was seen; or why there is none."""
    if not found:
        return Learned(why_not=(_none_such(parted),))
    communicator = found[0]
    ring, cuts = communicator.ring, communicator.cuts.found
    streams = [stream for edge in ring.edges for stream in edge.streams]
    if any(stream.tag is None for stream in streams):
        return Learned(why_not=(optimizer.NO_RANKS(),))
    if any(releases_open(cut, communicator) for cut in {cut.op: cut for cut in cuts}.values()):
        return Learned(why_not=(sharded.RELEASE_OPEN(),))
    ends = gathered_at(cuts, len(parted.parts))
    place = _iteration(cuts, ends)
    if place is None:
        return Learned(why_not=(optimizer.NO_TWO_STEPS(),))
    start, length, first = place
    order = _order(parted, [cut for cut in cuts[start : start + length] if gathers(cut)])
    if isinstance(order, Finding):
        return Learned(why_not=(order,))
    if any(cut.lost for cut in cuts[: start + length]):
        return Learned(why_not=(sharded.LOST_BEFORE(),))
    looked_at = ends[first : first + MOST_STEPS]
    held = [content.held(cuts, end, order, ring, parted) for end in looked_at]
    if held[0] is None:
        return Learned(why_not=(_lacking(ring, parted),))
    steps = [one for one in held if one is not None]
    change = content.usual_change(steps, parted)
    if change is None or change > LITTLE:
        return Learned(why_not=(optimizer.CHANGES_TOO_MUCH(round(change or 0.0, 2)),))
    if content.scattered_parameters(cuts[start : start + length], ring, parted, LITTLE):
        return Learned(why_not=(optimizer.SCATTERED_TOO(),))
    begun = content.begun_with(cuts, ring, parted, steps[0]) if not first else None
    if begun is not None and content.lies_otherwise(begun, steps[0], parted):
        return Learned(why_not=(optimizer.LIES_OTHERWISE(),))
    told = _Told(len(ends), change, begun or steps[0], begun is not None)
    return _followed(communicator, parted, (start, length, first), order, told)


@dataclass(frozen=True, slots=True)
class _Told:
    """What the gathers say."""

    steps: int
    change: float
    """Of a step, by their norm."""
    base: Units
    begun: bool
    """The base was sent before the first step, one by one."""


def _coarse(cut: Cut) -> Coarse:
    return cut.op.kind, cut.op.work_bytes, cut.op.protocol


def _iteration(cuts: Sequence[Cut], ends: Sequence[int]) -> tuple[int, int, int] | None:
    """(first collective, how many, which of `ends` is its last) of the first iteration that the
    one behind it repeats; None where none does."""
    told = [_coarse(cut) for cut in cuts]
    for n, (one, other) in enumerate(pairwise(ends)):
        length = other - one
        alike = told[one + 1 - length : one + 1] == told[one + 1 : other + 1]
        if one + 1 >= length and alike:
            return one + 1 - length, length, n
    return None


def _order(parted: ShardedTraining, gathers: Sequence[Cut]) -> tuple[int, ...] | Finding:
    """Units in the order that they are gathered in, or why it is not told."""
    forward = tuple(range(len(parted.parts)))
    ways = {False: forward, True: forward[::-1]}
    sizes = [cut.op.work_bytes for cut in gathers]
    fits = [
        backward
        for backward, order in ways.items()
        if [parted.parts[n].gathered_bytes for n in order] == sizes
        and parted.backward in (None, backward)
    ]
    if not fits:
        return optimizer.OTHER_ORDER()
    if len(fits) > 1 and len(forward) > 1:
        return optimizer.ORDER_OPEN()
    return ways[fits[0]]


def _followed(
    communicator: Communicator,
    parted: ShardedTraining,
    place: tuple[int, int, int],
    order: Sequence[int],
    told: _Told,
) -> Learned:
    start, length, first = place
    ring, cuts = communicator.ring, communicator.cuts.found[start : start + length]
    units = iter(order)
    return parameters_job(
        communicator,
        cuts[0],
        [(cut.op, next(units) if gathers(cut) else None) for cut in cuts],
        tuple(_flat(part.gathered_bytes * ring.ranks, part.dtype) for part in parted.parts),
        told.base,
        evidence=_evidence(parted, ring, told.steps, told.change),
        assumed=_assumed(parted, ring, first if ring.from_start else None, begun=told.begun),
    )


def _flat(size: int, dtype: str) -> learned_job.Parameter:
    each = BYTES[dtype]
    return learned_job.Parameter(
        sizes=(size // each,), strides=(1,), element_bytes=each, dtype=dtype
    )


def _none_such(parted: ShardedTraining) -> Finding:
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


def _lacking(ring: Ring, parted: ShardedTraining) -> Finding:
    """The first step was not seen whole."""
    if len(ring.edges) > 1:
        return optimizer.NO_WHOLE_STEP()
    size = sum(part.gathered_bytes for part in parted.parts)
    rank = (ring.edges[0].sender + 1) % ring.ranks
    return optimizer.ONE_DIRECTION(
        rank=rank, ranks=ring.ranks, missing_bytes=size, bytes=size * ring.ranks
    )


def _evidence(
    parted: ShardedTraining, ring: Ring, steps: int, change: float
) -> tuple[Finding, ...]:
    return (
        optimizer.PARAMETERS_ONLY(),
        optimizer.UNITS_CHANGE(units=len(parted.parts), steps=steps, change=round(change, 3)),
        EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
    )


def _assumed(
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
        yield sharded.RANKS_IN_ORDER()
    alike = any(part.scattered_bytes == part.gathered_bytes for part in parted.parts)
    if parted.style is ShardingStyle.MEGATRON and (alike or ring.ranks == 2):
        yield optimizer.BY_STATEMENT()
