"""A job whose start nobody saw: its model is stated, its rings are told by sizes.

What a model's buckets send is known for each ring that connections may form; the one that explains
every size of a whole iteration is the job's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import inf

import msgspec

from flowcheck.findings.catalog import midstream_jobs
from flowcheck.findings.catalog.connections import CHANNELS_BY_NUMBER, PLACES_BY_LOG
from flowcheck.findings.catalog.job_learning import ALL_ALIKE
from flowcheck.findings.catalog.nccl_transport import LL128_ORDER_OPEN_MIDSTREAM
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_debug_log import RingOrder
from flowcheck.wire.collectives.nccl_parameters import (
    GRAIN_BYTES,
    CollectiveKind,
    NcclEra,
    Protocol,
)
from flowcheck.wire.learn.flows.groups import alone
from flowcheck.wire.learn.flows.rings import Ring, logged_rings, rings
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.flows.rows import rows
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.jobs.late.joined import join_job
from flowcheck.wire.learn.jobs.late.strangers import mixable
from flowcheck.wire.learn.search.communicators import HINT, ring_and_p2p, rules_told
from flowcheck.wire.learn.verdict import lines
from flowcheck.wire.traffic.observed_messages import ObservedFlow, ObservedMessage
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.flow_plan import compile_flow_plans
from flowcheck.wire.training_job.learned_job import Communicator as Recorded
from flowcheck.wire.training_job.learned_job import Edge

LAPS = 2
"""Iterations that must have the sizes: of one alone another ring or model may have them too."""
ORDER = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
"""What NCCL chooses as collectives grow."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a job file says of a model."""

    parameters: tuple[learned_job.Parameter, ...]
    buckets: tuple[tuple[int, ...], ...]
    """Of every iteration but the first ones."""
    buffer_bytes: tuple[int, ...] = ()
    """Broadcasts of its buffers before each forward."""
    mapped: bool = False
    """With find_unused_parameters: the last bucket is the map."""
    gradient_element_bytes: int = 0
    assumed: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class _Fit:
    joined: learned_job.LearnedJob
    penalty: int


def join_expected(
    stated: Expected,
    flows: Sequence[ObservedFlow],
    messages: Sequence[ObservedMessage],
    *,
    ended: bool,
    release: NcclEra | None = None,
    logged: Sequence[RingOrder] = (),
    unlike: Callable[[learned_job.LearnedJob], Finding | None] = lambda _: None,
) -> tuple[learned_job.LearnedJob | None, Finding | None]:
    """The job from the first iteration on that lies whole in the stream, or why there is none.
    logged: rings as NCCL's log has them; unlike: why one is not the job that is wanted, or
    None."""
    told = sort_flows(flows, messages)
    streams, _ = ring_and_p2p(told.streams)
    if not streams:
        return None, midstream_jobs.NO_RINGS()
    rules = rules_told(told, release)
    why: Finding | None = midstream_jobs.NO_RING_FITS(midstream_jobs.NO_CLOSED_RING())
    for row in rows(streams):
        own = [grant for grant in told.grants if grant.rings]
        group = alone(row, own)
        guesses = (*logged_rings(group, rules, logged), *rings(group, rules))
        fits, yet = _fits(stated, row, guesses, messages, ended=ended)
        if fits:
            found, why = _told(stated, fits)
            if found is not None and (why := unlike(found)):
                continue
            if found is not None and mixable(found, streams, laps=LAPS):
                return None, midstream_jobs.MIXED_AMID_RUN()
            if found is not None and lines.uses_ll128(found) and lines.may_be_linear(told):
                return None, LL128_ORDER_OPEN_MIDSTREAM()
            return found, why
        if yet is not None and (not ended or yet.is_any_of(midstream_jobs.BEGIN_OPEN)):
            why = yet
        else:
            why = midstream_jobs.NO_RING_FITS(midstream_jobs.NO_RING_OF_CONNECTIONS(len(row)))
    return None, why


def _fits(
    stated: Expected,
    row: Sequence[Stream],
    guesses: Sequence[Ring],
    messages: Sequence[ObservedMessage],
    *,
    ended: bool,
) -> tuple[list[_Fit], Finding | None]:
    """Every guess about the row that explains its sizes, but for those that are less likely than
    one which does and whose place is open yet; and what more of the stream may tell."""
    seen = [protocol for s in row for send in s.sends.values() if (protocol := send.protocol)]
    used = [protocol for protocol in ORDER if protocol in {*seen, *(s.protocol for s in row)}]
    fits: list[_Fit] = []
    yet: Finding | None = None
    least_open, rests_on = inf, midstream_jobs.AS_STATED()
    # Each bucket goes around a ring twice, on some channel at least.
    most = max(len(stream.sends) for stream in row) // (2 * LAPS * len(stated.buckets)) + 1
    for ring in guesses:
        if fits and ring.penalty > min(fit.penalty for fit in fits) + 1:
            break
        if ring.ranks > most:
            yet = yet or midstream_jobs.NO_WHOLE_ITERATION()
            continue
        for guess in _guesses(stated, ring, used):
            found, why = join_job(guess, messages, ended=ended, laps=LAPS, assumed=rests_on)
            if why is not None and why.is_any_of(midstream_jobs.BEGIN_OPEN):
                yet, least_open = why, min(ring.penalty, least_open)
            elif why is not None and why.is_any_of(midstream_jobs.NO_WHOLE_ITERATION):
                yet = yet or why
            if found is not None and not any(_same(found, fit.joined) for fit in fits):
                fits.append(_Fit(found, ring.penalty))
    return [fit for fit in fits if fit.penalty <= least_open], yet


def _guesses(
    stated: Expected, ring: Ring, used: Sequence[Protocol]
) -> Iterator[learned_job.LearnedJob]:
    """The job as it would be on this ring, by release and by which sizes go in which protocol."""
    for rule in ring.rules:
        for each in _iterations(stated, used):
            edges = tuple(
                Edge(
                    communicator=0,
                    sender=edge.sender,
                    flows=tuple(stream.key for stream in edge.streams)
                    + (None,) * (ring.channels - len(edge.streams)),
                    first_numbers=(0,) * ring.channels,
                    senders=edge.senders,
                )
                for edge in ring.edges
            )
            yield learned_job.LearnedJob(
                era=rule,
                communicators=(
                    Recorded(
                        ranks=ring.ranks,
                        channels=ring.channels,
                        extra_sends=ring.extra_sends,
                        gpus=ring.gpus,
                    ),
                ),
                edges=edges,
                parameters=stated.parameters,
                first_buckets=stated.buckets,
                buckets=stated.buckets,
                first=each,
                each=each,
                has_usage_map=stated.mapped,
                gradient_element_bytes=stated.gradient_element_bytes,
            )


def _iterations(
    stated: Expected, used: Sequence[Protocol]
) -> Iterator[tuple[learned_job.CollectiveOp, ...]]:
    """An iteration's collectives: the larger of two is in no simpler protocol than the other."""
    ops = list(_ops(stated))
    sizes = sorted({op.work_bytes for op in ops})
    for chosen in combinations_with_replacement(used, len(sizes)):
        of = dict(zip(sizes, chosen, strict=True))
        yield tuple(msgspec.structs.replace(op, protocol=of[op.work_bytes]) for op in ops)


def _ops(stated: Expected) -> Iterator[learned_job.CollectiveOp]:
    for size in stated.buffer_bytes:
        yield learned_job.CollectiveOp(
            communicator=0,
            protocol=Protocol.LL,
            role=learned_job.Role.IGNORED,
            kind=CollectiveKind.BROADCAST,
            work_bytes=size,
            element_bytes=1,
        )
    own = learned_job.as_reduced(stated.parameters, stated.gradient_element_bytes)
    used_map = learned_job.Parameter(sizes=(len(own),), strides=(1,), dtype="int32")
    reduced = (*own, used_map) if stated.mapped else own
    for number, bucket in enumerate(stated.buckets):
        yield learned_job.CollectiveOp(
            communicator=0,
            protocol=Protocol.LL,
            role=learned_job.Role.BUCKET,
            bucket=number,
            work_bytes=sum(reduced[index].nbytes for index in bucket),
            element_bytes=reduced[bucket[0]].element_bytes,
        )


def _same(one: learned_job.LearnedJob, other: learned_job.LearnedJob) -> bool:
    """They place every byte alike."""
    ours, theirs = compile_flow_plans(one), compile_flow_plans(other)
    return len(ours) == len(theirs) and all(
        a.flow == b.flow
        and a.first_psn == b.first_psn
        and a.each.sends.tobytes() == b.each.sends.tobytes()
        and a.each.segments.tobytes() == b.each.segments.tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )


def _told(
    stated: Expected, fits: Sequence[_Fit]
) -> tuple[learned_job.LearnedJob | None, Finding | None]:
    """The one that hints speak for, where sizes fit several."""
    least = min(fit.penalty for fit in fits)
    if least >= HINT:
        return None, midstream_jobs.OTHER_NODES()
    best = [fit.joined for fit in fits if fit.penalty == least]
    if len(best) > 1:
        return None, midstream_jobs.PLACE_OPEN(len(best))
    found = best[0]
    sums = {(op.work_bytes, op.protocol) for op in found.each if op.role is learned_job.Role.BUCKET}
    if all(size <= GRAIN_BYTES[protocol] for size, protocol in sums):
        return None, midstream_jobs.IN_ONE_LINE()
    alike = (ALL_ALIKE(),) if len(sums) == 1 else ()
    nodes = any(communicator.gpus > 1 for communicator in found.communicators)
    by_tags = [midstream_jobs.PLACE_BY_TAGS()] if len(fits) > 1 else []
    assumed = [PLACES_BY_LOG()] if nodes else by_tags
    if max(communicator.channels for communicator in found.communicators) > 1:
        assumed.append(CHANNELS_BY_NUMBER())
    told = tuple(one.until_audited() for one in (*stated.assumed, *assumed))
    return msgspec.structs.replace(found, assumed=(*found.assumed, *told, *alike)), None
