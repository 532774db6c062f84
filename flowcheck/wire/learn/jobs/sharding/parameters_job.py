"""The job of which parameters alone are followed: units, as ranks gather them in each iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog import sharded_jobs as sharded
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.cuts.candidates import Op
from flowcheck.wire.learn.cuts.cut import Cut
from flowcheck.wire.learn.jobs.edges import edges_amid, edges_of
from flowcheck.wire.learn.reading import Weights
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.learned_job import Communicator as Recorded

Units = list[NDArray[np.uint8]]
"""[unit] its bytes."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A job and the parameters it begins with, or why there is none."""

    job: learned_job.LearnedJob | None = None
    base: Weights | None = None
    why_not: tuple[Finding, ...] = ()


def parameters_job(
    communicator: Communicator,
    start: Cut,
    iteration: Sequence[tuple[Op, int | None]],
    parameters: tuple[learned_job.Parameter, ...],
    base: Units,
    *,
    evidence: tuple[Finding, ...],
    assumed: Iterable[Finding],
) -> Learned:
    """start: the first collective that is followed; iteration: each collective and the unit that
    it gathers, None: it passes by; parameters: [unit] as they are gathered."""
    ring = communicator.ring
    edges = (edges_of if ring.from_start else edges_amid)(communicator, start)
    if edges is None:
        return Learned(why_not=(sharded.TURNS_OPEN(),))
    weights = Weights(
        shapes=tuple((unit.nbytes,) for unit in parameters),
        result=np.concatenate(base),
        missing=(),
        complete=True,
    )
    each = tuple(_recorded(op, unit) for op, unit in iteration)
    units = tuple((n,) for n in range(len(parameters)))
    learned = learned_job.LearnedJob(
        kind=learned_job.FollowedData.PARAMETERS,
        era=communicator.cuts.state.rules[0],
        communicators=(
            Recorded(ranks=ring.ranks, channels=ring.channels, extra_sends=ring.extra_sends),
        ),
        edges=tuple(edges),
        parameters=parameters,
        first_buckets=units,
        buckets=units,
        first=each,
        each=each,
        evidence=evidence,
        assumed=tuple(assumed),
    )
    return Learned(learned, weights)


def _recorded(op: Op, unit: int | None) -> learned_job.CollectiveOp:
    return learned_job.CollectiveOp(
        communicator=0,
        protocol=op.protocol,
        role=learned_job.Role.IGNORED if unit is None else learned_job.Role.BUCKET,
        bucket=unit or 0,
        kind=op.kind,
        work_bytes=op.work_bytes,
        element_bytes=op.element_bytes,
        root=op.root,
    )
