"""From flows and messages to a Reading: the one entry of this package."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from flowcheck.findings.catalog import job_learning as learning
from flowcheck.findings.catalog.connections import (
    FIRST_GPU_OPEN,
    HEAD_CHANNELS_OPEN,
    MIXED,
    NODES_OPEN,
)
from flowcheck.findings.catalog.distributed_optimizers import INSTEAD_OF_STATE, PARAMETERS_ONLY
from flowcheck.findings.catalog.nccl_transport import (
    GATHERED_BY_PAT,
    LL128_LINEAR_BY_CONTENT,
    LL128_LINEAR_STATED,
    LL128_ORDER_ASSUMED,
    MERGED_PORTS,
    NO_WRITES,
    NOT_NCCL,
)
from flowcheck.findings.catalog.refused_trainers import NVLS_PORTS_MISSING, RING_PORTS_MISSING
from flowcheck.findings.catalog.sharded_jobs import SHARDED
from flowcheck.findings.finding import Finding
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra
from flowcheck.wire.learn.align.gap_numbers import with_gaps_numbered
from flowcheck.wire.learn.align.known import Known
from flowcheck.wire.learn.align.predicted import Foretold, predicted
from flowcheck.wire.learn.cuts.cut import Purse
from flowcheck.wire.learn.flows.aggregated_trees import without_aggregated
from flowcheck.wire.learn.flows.roles import Sorted, sort_flows
from flowcheck.wire.learn.flows.rows import unpaired
from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.jobs import tree
from flowcheck.wire.learn.jobs.awaited import awaited
from flowcheck.wire.learn.jobs.job import NOT_YET
from flowcheck.wire.learn.jobs.parts import (
    Asked,
    data_parallel,
    in_doubt,
    parts_of,
    settled,
    unless_mixed,
)
from flowcheck.wire.learn.jobs.sharding.hybrid import with_sums
from flowcheck.wire.learn.jobs.sharding.job import gathers, learn_sharded
from flowcheck.wire.learn.jobs.sharding.parameters_job import Learned
from flowcheck.wire.learn.jobs.sharding.parted import learn_parted
from flowcheck.wire.learn.jobs.sharding.zero import maybe_zero
from flowcheck.wire.learn.reading import Reading
from flowcheck.wire.learn.search.communicators import Communicator, ring_and_p2p, rules_told
from flowcheck.wire.learn.search.evidence import lost_beside
from flowcheck.wire.learn.search.own import by_stated_model
from flowcheck.wire.learn.search.parted import apart_from
from flowcheck.wire.learn.search.rails import rail_beside
from flowcheck.wire.learn.search.scalars import with_scalars_placed
from flowcheck.wire.learn.search.several import began, find_communicators
from flowcheck.wire.learn.verdict import by_trainer, formats, lines
from flowcheck.wire.learn.verdict.collect import Found, collect, parcels_left
from flowcheck.wire.learn.verdict.mixed import may_be_mixed
from flowcheck.wire.learn.verdict.others import others
from flowcheck.wire.traffic.observed_messages import ObservedFlow, ObservedMessage
from flowcheck.wire.training_job.learned_job import LearnedJob
from flowcheck.wire.training_job.operator_statements import OperatorStatement, ShardedTraining

PORTS_MISSING = (NVLS_PORTS_MISSING, RING_PORTS_MISSING)
"""What says that ports of a node are not in the capture."""


def read_stream(
    flows: Sequence[ObservedFlow],
    messages: Sequence[ObservedMessage],
    *,
    ended: bool = True,
    release: NcclEra | None = None,
    before: LearnedJob | None = None,
    earlier: LearnedJob | None = None,
    blocks: Sequence[int] = (),
    hasty: bool = False,
    stated: OperatorStatement | None = None,
    parted: ShardedTraining | None = None,
    results: bool = True,
) -> Reading:
    """Everything these messages tell, without any job file. `ended`: nothing more will come; a
    job is then learned from less, see `learn_job`, and so is the next incarnation of the one
    `before`. earlier: a life of the job, whose parameters are taken where the start-up leaves open
    which they are. release: NCCL's, where it is stated; blocks: bytes of one rank's part of each
    unit of sharded training, where the model is known; hasty: what is hard to read now will be read
    again once more came; stated: what the wire may not tell; parted: what a trainer sends whose
    optimizer is parted, where that is stated; results: False: what gradients hold is not asked
    for."""
    asked = Query(
        ended=ended,
        release=release,
        before=before,
        earlier=earlier or before,
        blocks=tuple(blocks),
        hasty=hasty,
        stated=stated,
        parted=parted,
        results=results,
    )
    with _uncollected():
        return _in_its_order(flows, messages, asked)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, of which a reading makes none: it would walk through all
    messages again and again while as many objects are made of them."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _in_its_order(
    flows: Sequence[ObservedFlow], messages: Sequence[ObservedMessage], asked: Query
) -> Reading:
    """In the order that LL128's lines have, as far as it is told."""
    linear = asked.stated.linear if asked.stated is not None else None
    told = sort_flows(flows, messages)
    may_be = lines.may_be_linear(told)
    if linear and may_be is not False:
        reading, _ = _read(flows, lines.as_linear(messages), asked)
        return lines.told(reading, evidence=LL128_LINEAR_STATED(), linear=True)
    reading, sense = _read(flows, messages, asked, told)
    if sense is not False or may_be is False or linear is False:
        return reading
    if may_be is None:
        return lines.told(reading, assumed=LL128_ORDER_ASSUMED(), linear=False)
    other, sense = _read(flows, lines.as_linear(messages), asked)
    if sense:
        return lines.told(other, evidence=LL128_LINEAR_BY_CONTENT(), linear=True)
    return lines.in_doubt(reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What `read_stream` was asked."""

    ended: bool
    release: NcclEra | None
    before: LearnedJob | None
    earlier: LearnedJob | None
    blocks: tuple[int, ...]
    hasty: bool
    stated: OperatorStatement | None
    parted: ShardedTraining | None
    results: bool


def _read(
    flows: Sequence[ObservedFlow],
    messages: Sequence[ObservedMessage],
    query: Query,
    sorted_flows: Sorted | None = None,
) -> tuple[Reading, bool | None]:
    """The reading in one order of LL128's lines; and whether that order makes sense, as
    lines.makes_sense has it. sorted_flows: of these messages, where they are sorted already."""
    sorted_flows = _with_numbers(sorted_flows or sort_flows(flows, messages), query)
    reading, sense, foretold = _read_sorted(flows, messages, query, sorted_flows, foretell=True)
    waits = any(
        why.is_any_of(learning.NO_WHOLE_ITERATION, learning.ONE_ITERATION)
        for why in reading.why_not
    )
    if foretold is None or reading.job is not None or query.hasty or waits:
        return reading, sense
    rings = [one.ring for one in foretold.communicators]
    nodes = all(ring.borne_out or ring.closed for ring in rings)
    if reading.why_not and all(_writers_open(why, nodes) for why in reading.why_not):
        return reading, sense  # All came as foretold, and the search has no other rings to try.
    # Why a program that all is explained by comes to no job, but for more to come, the search says.
    return _read_sorted(flows, messages, query, sorted_flows, foretell=False)[:2]


def _with_numbers(told: Sorted, query: Query) -> Sorted:
    """With the numbers behind gaps that a program tells."""
    if not any(stream.open_numbers for stream in told.streams):
        return told
    logged = query.stated.rings if query.stated is not None else ()
    purse = Purse.for_sends(sum(len(s.sends) for s in told.streams), hasty=query.hasty)
    rules = rules_told(told, query.release)
    known = Known(rules=rules, logged=logged, purse=purse, goes_on=query.hasty)
    return with_gaps_numbered(told, known)


def _writers_open(why: Finding, nodes: bool) -> bool:
    """Nothing tells which GPU of a node comes first in its ring, or how many it has, or which
    channels its heads' connections are. nodes: their
    size is told."""
    reason = why.arguments.get("reason")
    if not why.is_any_of(learning.WRITERS_OPEN) or not isinstance(reason, Finding):
        return False
    return reason.is_any_of(NODES_OPEN, HEAD_CHANNELS_OPEN) or (
        nodes and reason.is_any_of(FIRST_GPU_OPEN)
    )


def _read_sorted(
    flows: Sequence[ObservedFlow],
    messages: Sequence[ObservedMessage],
    query: Query,
    sorted_flows: Sorted,
    *,
    foretell: bool,
) -> tuple[Reading, bool | None, Foretold | None]:
    """As `_read`, and what trainers' programs foretold. foretell: they are asked."""
    all_streams, p2p_streams = ring_and_p2p(sorted_flows.streams)
    ring_streams, aggregated = without_aggregated(all_streams)
    purse = Purse.for_sends(sum(len(s.sends) for s in ring_streams), hasty=query.hasty)
    stated, parted = query.stated, query.parted
    rules = rules_told(sorted_flows, query.release)
    own, communicators, foretold = _communicators(
        ring_streams, sorted_flows, rules, query, purse, foretell=foretell
    )
    found = [
        collect(
            c,
            number,
            p2p_streams,
            apart=any(lost_beside(c.ring, o.ring) for o in communicators if o is not c),
            broken_off=purse.left <= 0,
            results=query.results,
            goes_on=query.hasty,
        )
        for number, c in enumerate(communicators)
    ]
    everything = [c for f in found for i, c in enumerate(f.collectives) if i not in f.untold]
    everything += parcels_left(p2p_streams, len(communicators))
    everything.sort(key=lambda c: c.first_ns)
    numbered = tuple(replace(c, index=i) for i, c in enumerate(everything))
    asked = Asked(
        ended=query.ended,
        before=query.before,
        stated=stated,
        release=query.release,
        rules=rules,
        streams=ring_streams,
        parted=parted,
    )
    job, why_not = data_parallel(communicators, found, asked)
    sharded = None
    if job is None and not _whole_later(asked, why_not):
        sharded = _parameters(own, communicators, parted, query.blocks, ring_streams)
        sharded = sharded and _instead(sharded, asked, why_not)
    if sharded is not None:
        job, why_not = sharded.job, sharded.why_not
    elif job is None:
        maybe, numbered = maybe_zero(numbered)
        why_not = (*why_not, *maybe)
    if purse.left <= 0 and any(why.is_any_of(*NOT_YET) for why in why_not):
        lost = any(flow.psn_missing for flow in flows) or not all(
            stream.from_start for stream in sorted_flows.streams
        )
        # What was not read may be there: an unfinished search does not tell that it is not.
        others_told = (why for why in why_not if not why.is_any_of(*NOT_YET))
        broken_off = learning.SEARCH_BROKEN_OFF_AFTER_LOSS if lost else learning.SEARCH_BROKEN_OFF
        why_not = (broken_off(), *others_told)
    first = settled(communicators, found, asked, job, why_not)
    alone = len(communicators) == 1 and sharded is None and purse.left > 0
    parts = parts_of(communicators, found, asked, first if alone else None)
    numbered = by_trainer.with_assumptions(numbered, parts)
    parts = tuple(by_trainer.weights_with_assumptions(part, numbered) for part in parts)
    first = by_trainer.weights_with_assumptions(first, numbered)
    if sharded is None or sharded.job is None:
        first = unless_mixed(first, parts, communicators)
    why_not = first.why_not
    sums = any(c.kind == CollectiveKind.ALL_REDUCE for c in numbered)
    why_not = _by_transport(why_not, len(messages), sorted_flows, aggregated, sums=sums)
    if job is not None:
        numbered = with_sums(numbered, job)
    elif not any(part.job is not None for part in parts):
        numbered, trees = tree.beside(ring_streams, communicators, numbered)
        why_not = _with_trees(why_not, trees) if trees else why_not
    reading = Reading(
        flows=sorted_flows.readings,
        collectives=in_doubt(communicators, ring_streams, parts, numbered),
        weights=first.weights,
        job=first.job,
        why_not=(*why_not, *chain.from_iterable(map(_unread, communicators, found))),
        formats=formats.told(sorted_flows),
        others=others(
            communicators,
            p2p_streams,
            query.before,
            begins_unseen=stated is not None and stated.weights_unsent,
        ),
        gathered=None if sharded is None else sharded.base,
        parts=parts,
        awaited=None if query.ended or first.job is not None else awaited(communicators),
    )
    return reading, lines.makes_sense(communicators), foretold


def _with_trees(why_not: tuple[Finding, ...], trees: Finding) -> tuple[Finding, ...]:
    """And what speaks against trees. Ports that are missing are why a search found nothing: they
    stand before its end, as the first reason is what an operator is told."""
    ends = (learning.SEARCH_BROKEN_OFF, learning.SEARCH_BROKEN_OFF_AFTER_LOSS)
    if why_not and why_not[0].is_any_of(*ends) and trees.is_any_of(*PORTS_MISSING):
        return (trees, *why_not)
    return (*why_not, trees)


def _by_transport(
    why_not: tuple[Finding, ...], messages: int, told: Sorted, aggregated: int, *, sums: bool
) -> tuple[Finding, ...]:
    """Why there is no job, where how things are sent says more than what was read of them.
    aggregated: connections of PAT; sums: all-reduces were read."""
    if not messages:
        return (NO_WRITES(),)
    if told.merged_ports > 1 and (why_not or not told.streams):
        return (MERGED_PORTS(told.merged_ports), *(why_not if sums else ()))
    if not told.streams and not any(grant.rings for grant in told.grants):
        return (NOT_NCCL(messages),)
    if aggregated and why_not:
        return (GATHERED_BY_PAT(aggregated), *(why_not if sums else ()))
    return why_not


def _communicators(
    streams: Sequence[Stream],
    sorted_flows: Sorted,
    rules: tuple[NcclEra, ...],
    query: Query,
    purse: Purse,
    *,
    foretell: bool,
) -> tuple[Sequence[Communicator], list[Communicator], Foretold | None]:
    """(those of a trainer whose optimizer is stated to be parted, all, those of them that programs
    foretold): the search found the others."""
    stated, grants = query.stated, sorted_flows.grants
    logged = stated.rings if stated is not None else ()
    own, left = apart_from(streams, grants, rules, query.parted)
    foretold = None
    if foretell and not own:
        known = Known(rules=rules, logged=logged, purse=purse, goes_on=query.hasty)
        foretold = predicted(left, grants, known)
    rail = rail_beside(left, rules, stated, purse, logged) if foretold is None else None
    if foretold is not None:
        rest = foretold.left
        ghosts = unpaired(rest, left, grants)
        ranks = {c.ring.ranks for c in foretold.communicators}
        beside = find_communicators(rest, ghosts, rules, purse, logged, near=ranks) if rest else []
        found = by_stated_model(
            sorted((*foretold.communicators, *beside), key=began), stated, purse
        )
    elif rail is not None:
        ghosts = unpaired(rail.left, left, grants)
        beside = find_communicators(rail.left, ghosts, rules, purse, logged)
        found = sorted((*own, rail.own, *beside), key=began)
    else:
        found = own + find_communicators(left, grants, rules, purse, logged)
        found = by_stated_model(found, stated, purse)
    placed = [with_scalars_placed(c, stated, query.earlier, purse) for c in found]
    return own, placed, foretold


def _parameters(
    own: Sequence[Communicator],
    communicators: Sequence[Communicator],
    parted: ShardedTraining | None,
    blocks: Sequence[int],
    streams: Sequence[Stream],
) -> Learned | None:
    """The job of which parameters alone are followed, or why there is none, and what it is; None
    where nothing is like one."""
    if parted is not None:
        learned = learn_parted(own, parted)
        if learned.job is not None and may_be_mixed(own[0], streams):
            return Learned(why_not=(MIXED(),))
        return replace(learned, why_not=learned.why_not or (PARAMETERS_ONLY(),))
    if not gathers(communicators):
        return None
    learned = learn_sharded(communicators, blocks)
    return replace(learned, why_not=(SHARDED(), *learned.why_not))


def _whole_later(asked: Asked, why_not: Sequence[Finding]) -> bool:
    """More of the stream will tell the whole state that is stated to be followed: its gathers are
    known before all of an iteration is."""
    waits = any(why.is_any_of(learning.NO_WHOLE_ITERATION) for why in why_not)
    return asked.whole and not asked.ended and waits


def _instead(learned: Learned, asked: Asked, why_not: Sequence[Finding]) -> Learned:
    """The same, and why parameters alone are followed where the whole state was to be."""
    if not asked.whole or learned.job is None or not why_not:
        return learned
    assumed = (*learned.job.assumed, INSTEAD_OF_STATE(why_not[0]))
    return replace(learned, job=msgspec.structs.replace(learned.job, assumed=assumed))


def _unread(communicator: Communicator, found: Found) -> list[Finding]:
    left, early = communicator.cuts.unread + found.untold_sends, communicator.cuts.skipped
    told = [learning.SENDS_UNREAD(left)] if left else []
    return told + ([learning.BEGINS_AMID_COLLECTIVE(early)] if early else [])
