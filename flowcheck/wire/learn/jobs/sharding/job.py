"""Sharded training as a job: what is followed are the parameters it gathers.

A gradient's sum stays with the rank it belongs to; the parameters of every step cross the wire with
the gathers of the next forward, each rank's part as it is. The job's tensors are the units as they
are gathered, the ranks' parts one behind the other; what of a unit is which parameter, the model's
own code tells (flowcheck.replica.sharding.gather_units).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from flowcheck.findings.catalog import sharded_jobs as sharded
from flowcheck.findings.catalog.job_learning import EVERY_SEND_FITS
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import GRAIN_BYTES, CollectiveKind, Protocol
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.cuts.place import Canvas, paint
from flowcheck.wire.learn.flows.rings import Ring
from flowcheck.wire.learn.jobs.sharding.hybrid import reduced_beside
from flowcheck.wire.learn.jobs.sharding.parameters_job import Learned, Units, parameters_job
from flowcheck.wire.learn.jobs.sharding.periods import Period, Token, period_of
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.search.gathers import GATHERED, GATHERS
from flowcheck.wire.learn.search.releases import releases_open
from flowcheck.wire.training_job import learned_job

ENOUGH_BYTES = 32
"""Of a rank's part, before it is no chance that another gather holds the same."""


def gathers(communicators: Sequence[Communicator]) -> bool:
    """Parameters are gathered by any of them."""
    return any(cut.op.meaning == GATHERED for c in communicators for cut in c.cuts.found)


def learn_sharded(communicators: Sequence[Communicator], blocks: Sequence[int] = ()) -> Learned:
    """The job of the one communicator that gathers parameters.

    blocks: bytes of one rank's part of each unit, where the model is known.
    """
    found = [c for c in communicators if any(x.op.meaning == GATHERED for x in c.cuts.found)]
    if len(found) != 1:
        return Learned(why_not=(sharded.SEVERAL_COMMUNICATORS(len(found)),) if found else ())
    communicator = found[0]
    ring = communicator.ring
    cuts: Sequence[Cut] = communicator.cuts.found
    canvases = [_canvas(cut, ring) for cut in cuts]
    if (lacking := _lacking(canvases, cuts, ring)) is not None:
        return Learned(why_not=(lacking,))
    tokens = [_token(cut, canvas) for cut, canvas in zip(cuts, canvases, strict=True)]
    period = period_of(tokens)
    if period is None:
        return Learned(why_not=(sharded.NO_ITERATION(),))
    cuts, by_order = _exact(cuts, ring, period, blocks)
    canvases = [
        canvas if cut is before else _canvas(cut, ring)
        for cut, before, canvas in zip(cuts, communicator.cuts.found, canvases, strict=True)
    ]
    learned = _followed(communicator, cuts, canvases, period, frozenset(blocks))
    if learned.job is not None and by_order:
        more = (*learned.job.assumed, sharded.SIZES_OPEN())
        learned = replace(learned, job=msgspec.structs.replace(learned.job, assumed=more))
    if learned.job is None or not reduced_beside(learned.job, communicators):
        return learned
    told = msgspec.structs.replace(learned.job, evidence=(*learned.job.evidence, sharded.HYBRID()))
    return replace(learned, job=told)


def _canvas(cut: Cut, ring: Ring) -> Canvas | None:
    """What a gather holds, by whatever name sizes gave it; None for anything else."""
    if cut.op.kind not in GATHERS:
        return None
    gather = cut.reread(replace(cut.op, kind=CollectiveKind.ALL_GATHER), ring)
    return None if gather is None else paint(gather, ring)[0]


def _token(cut: Cut, canvas: Canvas | None) -> Token:
    tells = cut.op.meaning == GATHERED and canvas is not None
    mark = b""
    if tells and canvas is not None and canvas.covered.all():
        # What fills a last line up is another thing each time.
        size = cut.op.work_bytes
        sure = size - GRAIN_BYTES[cut.op.protocol] + 1
        known = sure if sure >= ENOUGH_BYTES else size
        if not canvas.disputed.reshape(-1, size)[:, :known].any():
            held = canvas.result.reshape(-1, size)[:, :known]
            mark = hashlib.sha256(held.tobytes()).digest()
    return Token(cut.op.kind, cut.op.work_bytes, cut.op.protocol, tells, mark)


def _lacking(canvases: Sequence[Canvas | None], cuts: Sequence[Cut], ring: Ring) -> Finding | None:
    """Which rank's part no gather holds, if one link alone is mirrored."""
    told = [
        (canvas.covered.reshape(ring.ranks, -1).any(axis=1), cut.op.work_bytes)
        for canvas, cut in zip(canvases, cuts, strict=True)
        if canvas is not None and cut.op.meaning == GATHERED
    ]
    seen = np.logical_or.reduce([parts for parts, _ in told])
    if seen.all():
        return None
    units = sum({size for _, size in told})
    missing = np.flatnonzero(~seen).tolist()
    lost = int((~seen).sum()) * units
    return sharded.ONE_DIRECTION(
        ranks_missing=missing, ranks=ring.ranks, missing_bytes=lost, bytes=units * ring.ranks
    )


def _followed(
    communicator: Communicator,
    cuts: Sequence[Cut],
    canvases: Sequence[Canvas | None],
    period: Period,
    blocks: frozenset[int],
) -> Learned:
    ring = communicator.ring
    alike = {cut.op: cut for cut in cuts}.values()
    if any(releases_open(cut, communicator) for cut in alike):
        return Learned(why_not=(sharded.RELEASE_OPEN(),))
    twice = sum(len(unit) > 1 for unit in period.units)
    if ring.ranks == 2 and not twice:
        return Learned(why_not=(sharded.GATHERED_ONCE(),))
    begun = _begun(period, canvases)
    if begun is None or begun[0] + 1 >= period.windows:
        return Learned(why_not=(sharded.NO_WHOLE_ITERATION(),))
    first, base = begun
    if any(cut.lost for cut in cuts[: period.at(first + 1).stop]):
        return Learned(why_not=(sharded.LOST_BEFORE(),))
    sizes = [cuts[period.start + unit[0]].op.work_bytes * ring.ranks for unit in period.units]
    element = 4 if all(size // ring.ranks % 4 == 0 for size in sizes) else 2
    if any(size // ring.ranks % element for size in sizes):
        return Learned(why_not=(sharded.ODD_PART(),))
    parameters = tuple(
        learned_job.Parameter(sizes=(size // element,), strides=(1,), element_bytes=element)
        for size in sizes
    )
    return parameters_job(
        communicator,
        cuts[period.at(first + 1).start],
        list(_iteration(cuts, period, first + 1)),
        parameters,
        base,
        evidence=_evidence(period, ring),
        assumed=_assumed(period, cuts, ring, first, blocks),
    )


def _begun(period: Period, canvases: Sequence[Canvas | None]) -> tuple[int, Units] | None:
    """(the first iteration of which every unit was seen whole, by any gather of it, what they
    held)."""
    for window in range(period.windows):
        begin = period.at(window).start
        gathers = [[canvases[begin + place] for place in unit] for unit in period.units]
        held = [[c.result for c in own if c is not None and c.whole][:1] for own in gathers]
        if all(held):
            return window, [data for own in held for data in own]
    return None


def _iteration(cuts: Sequence[Cut], period: Period, window: int) -> Iterator[tuple[Op, int | None]]:
    """Each collective of one, and the unit that it gathers: other blocks are scattered."""
    unit_of = {place: n for n, unit in enumerate(period.units) for place in unit}
    for place, i in enumerate(period.at(window)):
        op, unit = cuts[i].op, unit_of.get(place)
        if op.kind in GATHERS:
            scattered = CollectiveKind.REDUCE_SCATTER
            op = replace(op, kind=scattered if unit is None else CollectiveKind.ALL_GATHER)
        yield op, unit


def _exact(
    cuts: Sequence[Cut], ring: Ring, period: Period, blocks: Sequence[int]
) -> tuple[list[Cut], bool]:
    """(with the sizes of the model's units where these have the same sends, whether only the order
    tells them apart)."""
    sized, left, by_order = list(cuts), Counter(blocks), False
    for unit in period.units:
        first = cuts[period.start + unit[0]]
        fits = [size for size in dict.fromkeys(blocks) if left[size] and _fits(first, ring, size)]
        if not fits:
            continue
        by_order |= len(fits) > 1
        left[fits[0]] -= 1
        for i in (period.at(n).start + place for n in range(period.windows) for place in unit):
            sized[i] = cuts[i].as_op(replace(cuts[i].op, work_bytes=fits[0]), ring)
    return sized, by_order


def _fits(cut: Cut, ring: Ring, size: int) -> bool:
    slack = cut.op.work_bytes - size
    same = 0 <= slack < GRAIN_BYTES[cut.op.protocol]
    return same and cut.reread(replace(cut.op, work_bytes=size), ring) is not None


def _evidence(period: Period, ring: Ring) -> tuple[Finding, ...]:
    again = sum(len(unit) > 1 for unit in period.units)
    return (
        sharded.UNITS_REPEAT(
            units=len(period.units), iterations=period.windows, collectives=period.length
        ),
        sharded.GATHERED_AGAIN(again),
        EVERY_SEND_FITS(ranks=ring.ranks, channels=ring.channels),
    )


def _assumed(
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
