"""The data-parallel jobs of a stream: each communicator that trains a model is one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from flowcheck.findings.catalog.connections import MIXED
from flowcheck.findings.catalog.job_learning import (
    BUFFERS_NEVER_CHANGE,
    NO_ALL_REDUCE,
    NOTHING_FROZEN,
    RELEASE_CONTRADICTED,
    RELEASE_STATED,
    START_UP_NOT_SEEN,
)
from flowcheck.findings.catalog.refused_trainers import FROZEN_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn.flows.channels import ORDERS
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.jobs.held import with_held
from flowcheck.wire.learn.jobs.job import learn_job
from flowcheck.wire.learn.jobs.lacking_start import shapes_open
from flowcheck.wire.learn.jobs.own import learn_own
from flowcheck.wire.learn.jobs.sharding.whole_state import not_whole, with_gathered
from flowcheck.wire.learn.reading import Collective, Part, Weights
from flowcheck.wire.learn.search.communicators import Communicator
from flowcheck.wire.learn.verdict.collect import Found
from flowcheck.wire.learn.verdict.mixed import may_be_mixed
from flowcheck.wire.learn.verdict.weights import beside, weights_of
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every job of a stream is read by."""

    ended: bool
    before: LearnedJob | None
    stated: OperatorStatement | None
    release: NcclEra | None
    rules: tuple[NcclEra, ...]
    """NCCL's releases that the stream allows."""
    parted: ShardedTraining | None = None
    """The trainer whose optimizer is stated to be sharded; None: none is."""

    @property
    def whole(self) -> bool:
        """All its state is to be followed: its optimizer is stated as well."""
        return self.parted is not None and self.stated is not None and self.stated.steps_masters

    streams: Sequence[Stream]
    """Every connection of rings."""


def parts_of(
    communicators: Sequence[Communicator],
    found: Sequence[Found],
    asked: Asked,
    only: Part | None = None,
) -> tuple[Part, ...]:
    """Every data-parallel job by itself, in the order in which they began. only: what is known of
    the one that there is; None: there may be several."""
    parts = []
    for number, (communicator, collected) in enumerate(zip(communicators, found, strict=True)):
        habits = communicator.habits
        if (habits.shapes and habits.each) or habits.own:
            own = [communicator], [collected]
            told = only or settled(*own, asked, *data_parallel(*own, asked))
            if told.job is not None and may_be_mixed(communicator, asked.streams):
                told = replace(told, job=None, weights=_open(told.weights), why_not=(MIXED(),))
            streams = (s for edge in communicator.ring.edges for s in edge.streams)
            first_ns = min(stream.flow.first_ns for stream in streams)
            parts.append(replace(told, communicator=number, first_ns=first_ns))
    return tuple(parts)


def _open(weights: Weights | None) -> Weights | None:
    """Of connections that may be another communicator's."""
    return weights and replace(weights, complete=False, why_not=MIXED())


def in_doubt(
    communicators: Sequence[Communicator],
    streams: Sequence[Stream],
    parts: Sequence[Part],
    collectives: Sequence[Collective],
) -> tuple[Collective, ...]:
    """Those of connections that may be another communicator's are never complete."""
    mixed = {part.communicator for part in parts if MIXED() in part.why_not}
    jobs = {part.communicator for part in parts if part.job is not None}
    for number, communicator in enumerate(communicators):
        if number not in mixed | jobs and may_be_mixed(communicator, streams):
            mixed.add(number)
    return tuple(
        replace(c, doubtful=True, assumed=(*c.assumed, MIXED())) if c.communicator in mixed else c
        for c in collectives
    )


def unless_mixed(first: Part, parts: Sequence[Part], communicators: Sequence[Communicator]) -> Part:
    """The job that began first, or why it is none: it is one of the parts."""
    told = [part for part in parts if communicators[part.communicator].habits.shapes]
    same = next(iter(told or parts), first)
    return same if MIXED() in same.why_not else first


def data_parallel(
    communicators: Sequence[Communicator], found: Sequence[Found], asked: Asked
) -> tuple[LearnedJob | None, tuple[Finding, ...]]:
    """The job that began first, or why it is none yet."""
    # What sends no weights does not repeat a start-up: by its sums it is told anew.
    unsent = asked.stated is not None and asked.stated.weights_unsent
    before = None if unsent else asked.before
    job, why_not = learn_job(communicators, found, ended=asked.ended, before=before)
    unseen = why_not == (START_UP_NOT_SEEN(),)
    if job is None and (unseen or any(c.habits.own for c in communicators)):
        job, why_not = learn_own(communicators, found, asked.stated, ended=asked.ended)
    if job is not None and (why := not_whole(job, asked.parted, masters=asked.whole)):
        return None, (why,)
    unseen = job is None and why_not[0].is_any_of(START_UP_NOT_SEEN, NO_ALL_REDUCE)
    open_shapes = map(shapes_open, communicators if unseen and asked.ended else ())
    if why := next(filter(None, open_shapes), None):
        return None, (why,)
    return job, why_not


def settled(
    communicators: Sequence[Communicator],
    found: Sequence[Found],
    asked: Asked,
    job: LearnedJob | None,
    why_not: tuple[Finding, ...],
) -> Part:
    """A job with all that speaks for it, or against it, and the weights it began with."""
    rest, known = beside(communicators, found)
    if job is not None and rest and known:
        job, why_not = None, (FROZEN_OPEN(rest),)
    elif job is not None and rest:
        job = msgspec.structs.replace(job, assumed=(*job.assumed, NOTHING_FROZEN(rest)))
    weights = weights_of(communicators, found)
    if weights is not None and rest and known:
        weights = replace(weights, complete=False, why_not=FROZEN_OPEN(rest))
    if job is not None:
        rests = {one for f in found for c in f.collectives for one in c.assumed}
        by_order = tuple(order() for order in ORDERS if order() in rests)
        job = msgspec.structs.replace(job, assumed=(*job.assumed, *by_order))
    if job is not None and weights is not None and weights.still:
        rests_on = BUFFERS_NEVER_CHANGE(buffers=len(weights.still), forwards=weights.forwards)
        job = msgspec.structs.replace(
            job, unchanged_buffers=weights.still, assumed=(*job.assumed, rests_on)
        )
    if job is not None and weights is not None and weights.why_not:
        why_not = (*why_not, weights.why_not)
    if job is not None:
        every = [c.habits for c in communicators]
        job = with_held(job, next((h for h in every if h.types is not None), every[0]))
        job = with_gathered(job, asked.parted) if asked.whole else job
    if job is not None and asked.release is not None:
        agrees = asked.rules == (asked.release,)
        told = (RELEASE_STATED if agrees else RELEASE_CONTRADICTED)(asked.release)
        job = msgspec.structs.replace(job, evidence=(*job.evidence, told))
    return Part(communicator=0, job=job, weights=weights, why_not=why_not)
