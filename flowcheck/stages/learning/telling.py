"""A job by its start-up, by what was known of it before, or by the model that is stated for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowcheck.plane.merge import Joined
from flowcheck.stages.learning.outcomes import Outcome, Terms, outcome_of, read
from flowcheck.stages.learning.wanted import flows_of
from flowcheck.wire.job import Job
from flowcheck.wire.learn.flows.roles import sort_flows
from flowcheck.wire.learn.jobs.late.amid import Expected, join_expected
from flowcheck.wire.learn.jobs.late.joined import from_start, join_job, knows, of_job
from flowcheck.wire.seen import FlowKey, FlowSeen, MessageSeen


def told(seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Outcome:
    """A job by its start-up, or one that is known and joined amid its run."""
    known = terms.known.job
    if known is None or not knows(known, seen.messages):
        return _new(seen, flows, terms)
    job, why_not = join_job(known, seen.messages, ended=terms.ended)
    if job is not None:
        return Outcome(job=job, flows=_both_ways(job, flows))
    others = [m for m in seen.messages if not of_job(known, m.flow)]
    if any(from_start(message) for message in others):  # it may have been launched anew meanwhile
        rest = [flow for flow in flows if not of_job(known, flow.key)]
        outcome = outcome_of(read(replace(seen, messages=others), rest, terms))
        if outcome.job is not None:
            return outcome
    return Outcome(why_not=(why_not,), joining=True)


def _new(seen: Joined, flows: Sequence[FlowSeen], terms: Terms) -> Outcome:
    """A job that was not followed before."""
    model, several = terms.known.model, terms.wanted is not None
    begun = {message.flow for message in seen.messages if from_start(message)}
    if model is None or (begun and not several):
        return outcome_of(read(seen, flows, terms))
    if not begun:
        return _stated(model, seen.messages, flows, terms)
    outcome = outcome_of(read(seen, flows, terms))
    if outcome.job is not None:
        return outcome
    # What began between two hosts is no part of what was there before.
    over = {_ends(flow) for flow in begun}
    old = [message for message in seen.messages if _ends(message.flow) not in over]
    joined = _stated(model, old, [flow for flow in flows if _ends(flow.key) not in over], terms)
    return outcome if joined.job is None else joined


def _ends(flow: FlowKey) -> frozenset[str]:
    return frozenset((flow.source, flow.destination))


def _both_ways(job: Job, flows: Sequence[FlowSeen]) -> tuple[FlowKey, ...]:
    return tuple(flows_of(job, sort_flows(flows, ()).readings))


def _stated(
    model: Expected, messages: Sequence[MessageSeen], flows: Sequence[FlowSeen], terms: Terms
) -> Outcome:
    job, why_not = join_expected(
        model,
        flows,
        messages,
        ended=terms.ended,
        release=terms.release,
        logged=() if terms.stated is None else terms.stated.rings,
        unlike=(lambda job: "") if terms.wanted is None else terms.wanted.unlike,
    )
    if job is None:
        return Outcome(why_not=(why_not,), joining=True)
    return Outcome(job=job, flows=_both_ways(job, flows))
