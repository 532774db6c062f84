"""A job joined amid its run: what is known of it already, laid over a stream that had begun.

Known are its parameters, its buckets and what every iteration sends: from the life of it that was
followed before, or stated. Told here is only where its iterations begin, by the sizes of all
messages of all its connections, and where these fit several places, by the trainer's pauses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.midstream_jobs import (
    CONNECTION_SILENT,
    JOINED,
    NO_MESSAGE,
    NO_WHOLE_ITERATION,
    SAME_JOB,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.learn.jobs.edges import FIRST_AMID
from flowcheck.wire.learn.jobs.late.instants import Lane, first_iteration
from flowcheck.wire.learn.jobs.late.turns import in_turn
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage
from flowcheck.wire.training_job import learned_job
from flowcheck.wire.training_job.connection_messages import iteration_sizes

START_PSN = 1 << 32
"""Unwrapped PSN of a flow's first packet (InfiniBand: NCCL starts each queue pair at 0)."""
IT_IS_KNOWN = SAME_JOB()


def knows(known: learned_job.LearnedJob, messages: Sequence[ObservedMessage]) -> bool:
    """Messages of its connections are there, and none of these was seen from its start."""
    own = _latest(known, messages)
    return bool(own) and not any(from_start(of[0]) for of in own.values())


def of_job(known: learned_job.LearnedJob, flow: FlowKey) -> bool:
    """It has the addresses and the queue pair of one of its connections."""
    return any(_name(flow) == _name(own) for edge in known.edges for own in edge.all_flows)


def from_start(message: ObservedMessage) -> bool:
    """It is the first one its connection ever carried."""
    return message.first_psn == START_PSN and message.psn_counted


def join_job(
    known: learned_job.LearnedJob,
    messages: Sequence[ObservedMessage],
    *,
    ended: bool,
    laps: int = 1,
    assumed: Finding = IT_IS_KNOWN,
) -> tuple[learned_job.LearnedJob | None, Finding | None]:
    """`known` from the first iteration on that lies whole in the stream, or why there is none.

    ended: nothing more comes; else the iteration after it must have begun too; laps: iterations
    that must have been seen; assumed: what it rests on beside sizes.
    """
    own = _latest(known, messages)
    if not own:
        return None, NO_MESSAGE()
    lanes: list[Lane] = []
    parts = [part for part in _parts(known) if len(part.period)]
    rests_on: list[Finding | None] = [assumed]
    for part in parts:
        of = [own.get(_name(flow)) for flow in part.turns]
        if None in of:
            return None, CONNECTION_SILENT(part.turns[of.index(None)].dest_qp)
        seen, told_by = in_turn([_behind_last_gap(one) for one in of if one is not None])
        if seen is None:
            return None, told_by
        rests_on.append(told_by)
        lanes.append(Lane(part.turns[0], part.period, seen))
    cut, told_by = first_iteration(lanes, ended=ended, laps=laps)
    if cut is None:
        return None, told_by
    begins: dict[tuple[int, int], list[ObservedMessage]] = defaultdict(list)
    for part, lane, at in zip(parts, lanes, cut.at, strict=True):
        next_ones = lane.seen[at : at + len(part.turns)]
        if len(next_ones) < len(part.turns):
            return None, NO_WHOLE_ITERATION()
        begins[part.place] += next_ones
    count = sum(len(lane.seen) - i for lane, i in zip(lanes, cut.at, strict=True))
    rests_on.append(told_by)
    return _from(known, begins, tuple(dict.fromkeys(filter(None, rests_on))), count), None


@dataclass(frozen=True, slots=True)
class _Part:
    """Flows that take turns, or one that has a piece of every send."""

    place: tuple[int, int]
    """Edge and channel."""
    turns: tuple[FlowKey, ...]
    period: NDArray[np.int64]
    """[message] wire bytes, of one iteration."""


def _parts(known: learned_job.LearnedJob) -> Iterator[_Part]:
    for place, turns, sizes in iteration_sizes(known):
        if known.edges[place[0]].split:
            for turn, flow in enumerate(turns):
                yield _Part(place, (flow,), sizes[turn :: len(turns)])
        else:
            yield _Part(place, turns, sizes)


def _name(key: FlowKey) -> FlowKey:
    return replace(key, incarnation=0)


def _latest(
    known: learned_job.LearnedJob, messages: Sequence[ObservedMessage]
) -> dict[FlowKey, list[ObservedMessage]]:
    """{flow: its messages in PSN order} of the connections of `known`, of their last owner."""
    names = {_name(flow) for edge in known.edges for flow in edge.all_flows}
    found: dict[FlowKey, dict[int, list[ObservedMessage]]] = defaultdict(lambda: defaultdict(list))
    for message in messages:
        if _name(message.flow) in names:
            found[_name(message.flow)][message.flow.incarnation].append(message)
    return {
        name: sorted(owners[max(owners)], key=lambda m: m.first_psn)
        for name, owners in found.items()
    }


def _behind_last_gap(messages: Sequence[ObservedMessage]) -> list[ObservedMessage]:
    """Those that nothing lacks between; a write that only closes the one before is no message."""
    found: list[ObservedMessage] = []
    stop = None
    for message in messages:
        if message.first_psn != stop:
            found = []
        stop = message.first_psn + message.packets
        if not message.closes_adaptive_send:
            found.append(message)
    return found


def _from(
    known: learned_job.LearnedJob,
    begins: Mapping[tuple[int, int], Sequence[ObservedMessage]],
    assumed: tuple[Finding, ...],
    count: int,
) -> learned_job.LearnedJob:
    """`known` as it goes on from these messages: [edge, channel] the next one of each flow in the
    order of their turns. Its first iteration is as the others are."""
    edges = []
    for place, edge in enumerate(known.edges):
        channels = range(len(edge.flows))
        next_ones = [begins.get((place, channel), ()) for channel in channels]
        flows = tuple(of[0].flow if of else None for of in next_ones)
        pairs = tuple(tuple(message.flow for message in of) for of in next_ones)
        # Divisible, so that the first message of the first flow has it.
        numbers = tuple(FIRST_AMID * (1 if edge.split else max(len(of), 1)) for of in next_ones)
        # What a flag counts from is told by each message's own.
        edges.append(
            msgspec.structs.replace(
                edge,
                flows=flows,
                queue_pairs=pairs if edge.queue_pairs else (),
                first_numbers=numbers,
                first_psns=tuple(tuple(message.first_psn for message in of) for of in next_ones),
                flags_count=False,
            )
        )
    told_until = tuple(one.until_audited() for one in assumed)
    evidence = JOINED(messages=count, connections=sum(map(len, begins.values())))
    return msgspec.structs.replace(
        known,
        edges=tuple(edges),
        first=known.each,
        weights_missing=(),
        first_buckets=known.buckets,
        start_unknown=False,
        evidence=tuple(dict.fromkeys((*known.evidence, evidence))),
        assumed=tuple(dict.fromkeys((*known.assumed, *told_until))),
    )
