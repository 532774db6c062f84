"""Reads a job from the stream by its start-up, its remembered layout or the stated model; or
says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.hybrid_jobs import START_AS_STATED
from flowcheck.findings.catalog.job_selection_reasons import NOT_THE_BUCKET_PLAN, WEIGHTS_NOT_SEEN
from flowcheck.findings.catalog.nccl_transport import PIECES_NOT_FOLLOWED, WRITES_IN_PIECES
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.psn_alignment import JoinedFlow
from flowcheck.plane.extraction.staged_snapshot import StagedSnapshot
from flowcheck.plane.mirror_merge.mirror_point_merge import (
    MergedView,
    merge_mirror_points,
    mirror_view,
)
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.stages.job_learning.job_selection import JobSelector, flows_of, select_job
from flowcheck.stages.job_learning.proved_job import has_consistent_buckets, shard_size_of
from flowcheck.stages.staged_messages.across_rings import FlowPsn
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.jobs.late.amid import Expected, join_expected
from flowcheck.wire.learn.jobs.late.joined import from_start, join_job, knows, of_job
from flowcheck.wire.learn.reading import Awaited, Deferred, DifferingBytes, Weights
from flowcheck.wire.learn.trainer.grammar import BUCKET
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage
from flowcheck.wire.traffic.stream_boundaries import split_jobs, up_to_pause
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardedTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """What is known of a job whose start may not be seen."""

    job: LearnedJob | None = None
    """It was followed before."""
    model: Expected | None = None
    """Else its model, as the job file states it."""

    def __bool__(self) -> bool:
        return self.job is not None or self.model is not None


NO_KNOWN_JOB = KnownJob()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOutcome:
    """What one reading came to: a job and what must be kept with it, or why there is none."""

    job: LearnedJob | None = None
    weights: NDArray[np.uint8] | Path | None = field(default=None, repr=False)
    """Of all parameters; a path: of the file that the reading wrote them to. None where nobody put
    them together by now."""
    weights_source: bytes | None = None
    """In place of `weights` those that are still to be put together (`Weights.sources`); without a
    job, as soon as all of them was seen."""
    deferred: Deferred | None = field(default=None, repr=False)
    """Puts these together; it does not leave the process of the reading."""
    weights_differing: tuple[DifferingBytes, ...] = field(default=(), repr=False)
    """As of `Weights`."""
    gradients_from_ns: int = 0
    """When the first gradients were sent, behind all of the weights; 0: not told."""
    auxiliary_weights: NDArray[np.uint8] | None = field(default=None, repr=False)
    """[bytes] frozen parameters and buffers that were broadcast; None: there are none."""
    numbers: dict[FlowPsn, int] = field(default_factory=dict, repr=False)
    why_not: tuple[Finding, ...] = ()
    others: tuple[FlowKey, ...] = ()
    """As of `Reading`."""
    flows: tuple[FlowKey, ...] = ()
    """Of the job, both directions of each of its connections."""
    other_jobs: int = 0
    """Other data-parallel jobs that were read."""
    joining: bool = False
    """A job that is known runs, and cannot be joined yet."""
    awaited: Awaited | None = None
    """As of `Reading`."""
    names: tuple[dict[FlowKey, JoinedFlow], ...] = field(default=(), repr=False)
    """[mirror point] what its flows are called in the job."""
    shard: ShardSize | None = None
    """Of the job's gradients; without a job, what those of such weights most likely take."""
    goes_on: bool = False
    """The process of the reading still makes what the job needs."""
    broke: str = ""
    """The traceback of a reading that raised."""


@dataclass(frozen=True, slots=True)
class StatedStart:
    """The weights that trainers begin with who never send them, as the job file states."""

    file: Path
    """[bytes of all parameters]"""
    seed: int
    """Before the stated factory was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTerms:
    """How a stream is to be read, as `read_stream` takes it."""

    ended: bool = False
    quiet: bool = False
    """Nothing came for a while."""
    over: frozenset[int] = frozenset()
    """Numbers of mirror points that bring nothing more while others do."""
    own_pace: frozenset[int] = frozenset()
    """Numbers of mirror points that may be far behind the others, as files are."""
    hasty: bool = False
    release: NcclEra | None = None
    before: LearnedJob | None = None
    operator_statement: OperatorStatement | None = None
    known: KnownJob = NO_KNOWN_JOB
    """Of a job that may be joined midstream."""
    blocks: tuple[int, ...] = ()
    sharded: ShardedTraining | None = None
    stated_start: StatedStart | None = None
    """Of a job that nothing is known of: a later incarnation goes on from any step."""
    selector: JobSelector | None = None
    """Which of several jobs; None: the one that began first."""
    weights_at_once: bool = False
    """Weights are put together before the outcome is told."""


def read_first_life(
    seen: MergedView, flows: Sequence[ObservedFlow], terms: ReadingTerms
) -> Reading:
    """The first life of a job that proves one: a later one is no part of it."""
    *over, (flows, messages) = split_jobs(flows, seen.messages)
    for earlier in over:
        reading = read_stream(
            *earlier,
            release=terms.release,
            before=terms.before,
            earlier=terms.before,
            stated=terms.operator_statement,
            blocks=terms.blocks,
            parted=terms.sharded,
            results=False,
        )
        reading = select_job(reading, terms.selector)
        known = (reading.gathered or reading.weights) is not None
        if reading.job is not None and (known or reading.job.start_unknown):
            return reading
    if not terms.quiet:
        messages = up_to_pause(messages)
    reading = read_stream(
        flows,
        messages,
        ended=terms.ended,
        release=terms.release,
        before=terms.before if terms.quiet else None,
        earlier=terms.before,
        blocks=terms.blocks,
        parted=terms.sharded,
        hasty=terms.hasty,
        stated=terms.operator_statement,
        results=False,
    )
    return select_job(reading, terms.selector)


def reading_outcome(reading: Reading, *, weights_at_once: bool = True) -> ReadingOutcome:
    """What a stage needs of a reading. A job without its initial weights starts no replica.
    weights_at_once: as of `ReadingTerms`."""
    weights = reading.gathered or reading.weights
    source = None if weights is None or weights_at_once else weights.sources
    deferred = weights.deferred if weights is not None and source is not None else None
    if reading.job is None:
        return ReadingOutcome(
            why_not=reading.why_not,
            others=reading.others,
            awaited=reading.awaited,
            weights_source=source,
            deferred=deferred,
            shard=_likely_shard(weights) if weights is not None and source is not None else None,
        )
    if any(form.is_any_of(WRITES_IN_PIECES) for form in reading.formats):
        # The extractor counts each of these writes as a message of the connection.
        return ReadingOutcome(why_not=(PIECES_NOT_FOLLOWED(),), others=reading.others)
    certain = weights is not None and source is None and _certain(weights, reading)
    if reading.job.start_unknown:
        return _without_weights(reading)
    if weights is None or not (source is not None or certain):
        told = weights.why_not if weights is not None else None
        return ReadingOutcome(why_not=(told or WEIGHTS_NOT_SEEN(),), others=reading.others)
    if not has_consistent_buckets(reading.job):
        return ReadingOutcome(why_not=(NOT_THE_BUCKET_PLAN(),))
    return ReadingOutcome(
        job=msgspec.structs.replace(reading.job, weights_missing=weights.missing),
        weights=weights.data if source is None else None,
        weights_source=source,
        weights_differing=weights.differing,
        gradients_from_ns=_gradients_from_ns(reading),
        deferred=deferred,
        shard=shard_size_of(reading.job),
        auxiliary_weights=weights.beside,
        numbers=_numbers(reading.job, reading),
        flows=tuple(flows_of(reading.job, reading.flows)),
        other_jobs=_others(reading),
    )


def _without_weights(reading: Reading) -> ReadingOutcome:
    """Of a job whose weights nobody sends."""
    assert reading.job is not None
    if not has_consistent_buckets(reading.job):
        return ReadingOutcome(why_not=(NOT_THE_BUCKET_PLAN(),))
    return ReadingOutcome(
        job=reading.job,
        shard=shard_size_of(reading.job),
        gradients_from_ns=_gradients_from_ns(reading),
        numbers=_numbers(reading.job, reading),
        flows=tuple(flows_of(reading.job, reading.flows)),
        other_jobs=_others(reading),
    )


def _others(reading: Reading) -> int:
    """Other data-parallel jobs that were read."""
    return sum(part.job not in (None, reading.job) for part in reading.parts)


def _numbers(job: LearnedJob, reading: Reading) -> dict[FlowPsn, int]:
    """Numbers of the job's messages in their flows. Of connections of several queue pairs the
    flows' own counts alone tell, from their start on."""
    dealt = {
        flow for edge in job.edges for turns in edge.queue_pairs for flow in turns if len(turns) > 1
    }
    return {
        (placement.flow, placement.first_psn): placement.number
        for collective in reading.collectives
        for placement in collective.placements
        if placement.first_psn is not None and placement.flow not in dealt
    }


def _certain(weights: Weights, reading: Reading) -> bool:
    """All that was seen of them is certain, of gathered ones: all of them was seen."""
    if weights.why_not is not None:
        return False
    return weights.sound if reading.gathered is not None else weights.certain_where_seen


def _gradients_from_ns(reading: Reading) -> int:
    sums = (one.first_ns for one in reading.collectives if one.meaning == BUCKET)
    return min(sums, default=0)


def _likely_shard(weights: Weights) -> ShardSize | None:
    """Of gradients as large as the weights, which those of most jobs are."""
    unit_bytes = weights.element_bytes
    return ShardSize(weights.bytes, 0, unit_bytes) if unit_bytes in (2, 4, 8) else None


def _outcome(
    seen: MergedView, flows: Sequence[ObservedFlow], terms: ReadingTerms
) -> ReadingOutcome:
    """Of the first life of a job."""
    reading = read_first_life(seen, flows, terms)
    # Of several jobs the weights may tell which one is followed: they were looked at by now.
    at_once = terms.weights_at_once or terms.selector is not None
    start = terms.stated_start if terms.before is None else None
    return with_stated_start(reading_outcome(reading, weights_at_once=at_once), start)


def with_stated_start(outcome: ReadingOutcome, start: StatedStart | None) -> ReadingOutcome:
    """The outcome, of a job whose first weights nobody sent with the stated ones."""
    job = outcome.job
    if job is None or start is None or not job.start_unknown:
        return outcome
    assumed = (*job.assumed, START_AS_STATED(start.seed).until_audited())
    job = msgspec.structs.replace(job, start_unknown=False, assumed=assumed)
    return replace(outcome, job=job, weights=start.file)


def read_staged(staged: Sequence[StagedSnapshot], terms: ReadingTerms) -> ReadingOutcome:
    """What the mirror points had staged, joined and read."""
    seen = merge_mirror_points([mirror_view(one) for one in staged])
    wanted = {
        names[one.keys[index]].flow
        for one, names in zip(staged, seen.names, strict=True)
        for index in (range(len(one.keys)) if one.only is None else one.only)
    }
    outcome = read_job(seen, [flow for flow in seen.flows if flow.key in wanted], terms)
    # Where several mirror points have them, they are compared too.
    waits = len(staged) > 1 or (outcome.job is not None and bool(outcome.job.weights_missing))
    if waits and not terms.ended and _may_come(outcome, staged, seen, terms):
        outcome = ReadingOutcome(why_not=(WEIGHTS_NOT_SEEN(),))
    numbers = numbers_before_gaps(outcome.numbers, seen.messages)
    if len(staged) == 1:  # no other ring may lack the number that the transport gave a message
        told = {(m.flow, m.first_psn) for m in seen.messages if m.number is not None}
        numbers = {name: number for name, number in numbers.items() if name not in told}
    return replace(outcome, names=tuple(seen.names), numbers=numbers)


def _may_come(
    outcome: ReadingOutcome,
    staged: Sequence[StagedSnapshot],
    seen: MergedView,
    terms: ReadingTerms,
) -> bool:
    """Some mirror point may lag, and bring bytes of the weights yet: nothing came of it so far, or
    of the job's flows nothing that is behind the weights."""
    if outcome.job is None or not outcome.gradients_from_ns:
        return False
    own, since_ns = set(outcome.flows), outcome.gradients_from_ns
    last_ns = [
        {
            names[key].flow: at
            for key, at in zip(one.keys, one.flows["last_ns"].tolist(), strict=True)
            if names[key].flow in own
        }
        for one, names in zip(staged, seen.names, strict=True)
    ]
    # A queue of a live port may hold flows alone that carry no gradient: these tell nothing.
    with_gradients = {flow for told in last_ns for flow, at in told.items() if at >= since_ns}
    for number, (one, told) in enumerate(zip(staged, last_ns, strict=True)):
        if number in terms.over:
            continue
        telling = told.keys() if number in terms.own_pace else told.keys() & with_gradients
        if not one.keys or (telling and max(told[flow] for flow in telling) < since_ns):
            return True
    return False


def numbers_before_gaps(
    numbers: Mapping[FlowPsn, int], messages: Sequence[ObservedMessage]
) -> dict[FlowPsn, int]:
    """Learned numbers of messages before the first gap of their flow. Behind it a number rests on
    how many messages lie in the gap, which another ring may still tell otherwise: those are counted
    where they are placed."""
    whole: dict[FlowKey, int] = {}
    for m in sorted(messages, key=lambda message: message.first_psn):
        if whole.setdefault(m.flow, m.first_psn) == m.first_psn:
            whole[m.flow] = m.first_psn + m.packets
    return {(flow, psn): n for (flow, psn), n in numbers.items() if psn < whole.get(flow, 0)}


def read_job(
    seen: MergedView, flows: Sequence[ObservedFlow], terms: ReadingTerms
) -> ReadingOutcome:
    """A job by its start-up, or one that is known and joined midstream."""
    known = terms.known.job
    if known is None or not knows(known, seen.messages):
        return _new(seen, flows, terms)
    job, why_not = join_job(known, seen.messages, ended=terms.ended)
    if job is not None:
        return ReadingOutcome(job=job, flows=_both_ways(job, flows), shard=shard_size_of(job))
    others = [m for m in seen.messages if not of_job(known, m.flow)]
    if any(from_start(message) for message in others):  # it may have been launched anew meanwhile
        rest = [flow for flow in flows if not of_job(known, flow.key)]
        outcome = _outcome(replace(seen, messages=others), rest, terms)
        if outcome.job is not None:
            return outcome
    assert why_not is not None
    return ReadingOutcome(why_not=(why_not,), joining=True)


def _new(seen: MergedView, flows: Sequence[ObservedFlow], terms: ReadingTerms) -> ReadingOutcome:
    """A job that was not followed before."""
    model, several = terms.known.model, terms.selector is not None
    begun = {message.flow for message in seen.messages if from_start(message)}
    if model is None or (begun and not several):
        return _outcome(seen, flows, terms)
    if not begun:
        return _stated(model, seen.messages, flows, terms)
    outcome = _outcome(seen, flows, terms)
    if outcome.job is not None:
        return outcome
    # What began between two hosts is no part of what was there before.
    over = {_ends(flow) for flow in begun}
    old = [message for message in seen.messages if _ends(message.flow) not in over]
    joined = _stated(model, old, [flow for flow in flows if _ends(flow.key) not in over], terms)
    return outcome if joined.job is None else joined


def _ends(flow: FlowKey) -> frozenset[str]:
    return frozenset((flow.source, flow.destination))


def _both_ways(job: LearnedJob, flows: Sequence[ObservedFlow]) -> tuple[FlowKey, ...]:
    return tuple(flows_of(job, sort_flows(flows, ()).readings))


def _stated(
    model: Expected,
    messages: Sequence[ObservedMessage],
    flows: Sequence[ObservedFlow],
    terms: ReadingTerms,
) -> ReadingOutcome:
    job, why_not = join_expected(
        model,
        flows,
        messages,
        ended=terms.ended,
        release=terms.release,
        logged=() if terms.operator_statement is None else terms.operator_statement.rings,
        unlike=(lambda job: None) if terms.selector is None else terms.selector.why_another_job,
    )
    if job is None:
        assert why_not is not None
        return ReadingOutcome(why_not=(why_not,), joining=True)
    return ReadingOutcome(job=job, flows=_both_ways(job, flows), shard=shard_size_of(job))
