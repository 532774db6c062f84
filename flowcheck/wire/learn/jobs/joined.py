"""A job joined amid its run: what is known of it already, laid over a stream that had begun.

Known are its parameters, its buckets and what every iteration sends: from the life of it that was
followed before, or stated. Told here is only where its iterations begin, by the sizes of all
messages of all its connections, and where these fit several places, by the trainer's pauses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from flowcheck.wire import job
from flowcheck.wire.learn.jobs.instants import Lane, first_iteration
from flowcheck.wire.plan import iteration_sizes
from flowcheck.wire.seen import FlowKey, MessageSeen

FIRST_NUMBER = 1 << 32
"""What the first message of the first iteration is called on every flow of a joined job."""
START_PSN = 1 << 32
"""Unwrapped PSN of a flow's first packet (InfiniBand: NCCL starts each queue pair at 0)."""

ABSENT = "no message of the connections known was seen yet"
LACKING = "connection {} of those known shows nothing yet: the mirror may not show it"
TURNS = (
    "each connection uses several queue pairs (NCCL_IB_QPS_PER_CONNECTION), and whose turn it is "
    "the frames do not tell amid a run"
)
SAME_JOB = (
    "it is the job that was known before: its connections have the same addresses and queue pairs, "
    "and all sizes since it was joined; which parameter lies where in a bucket no size tells"
)
EVIDENCE = "joined amid its run: {} messages on {} connections have the sizes of its iterations"


def knows(known: job.Job, messages: Sequence[MessageSeen]) -> bool:
    """Messages of its connections are there, and none of these was seen from its start."""
    own = _latest(known, messages)
    return bool(own) and not any(from_start(of[0]) for of in own.values())


def of_job(known: job.Job, flow: FlowKey) -> bool:
    """It has the addresses and the queue pair of one of its connections."""
    return any(_name(flow) == _name(own) for edge in known.edges for own in edge.every_flow)


def from_start(message: MessageSeen) -> bool:
    """It is the first one its connection ever carried."""
    return message.first_psn == START_PSN and message.counted


def join_job(
    known: job.Job,
    messages: Sequence[MessageSeen],
    *,
    ended: bool,
    laps: int = 1,
    assumed: str = SAME_JOB,
) -> tuple[job.Job | None, str]:
    """`known` from the first iteration on that lies whole in the stream, or why there is none.

    ended: nothing more comes; else the iteration after it must have begun too; laps: iterations
    that must have been seen; assumed: what it rests on beside sizes.
    """
    if any(edge.queue_pairs for edge in known.edges):
        return None, TURNS
    own = _latest(known, messages)
    if not own:
        return None, ABSENT
    lanes: list[Lane] = []
    for flow, period in iteration_sizes(known):
        if not len(period):
            continue
        of = own.get(_name(flow))
        if of is None:
            return None, LACKING.format(flow.dest_qp)
        lanes.append(Lane(of[0].flow, period, _behind_last_gap(of)))
    cut, told_by = first_iteration(lanes, ended=ended, laps=laps)
    if cut is None:
        return None, told_by
    told = {lane.key: lane.seen[i].first_psn for lane, i in zip(lanes, cut.at, strict=True)}
    count = sum(len(lane.seen) - i for lane, i in zip(lanes, cut.at, strict=True))
    rests_on = (assumed, told_by) if told_by else (assumed,)
    return _from(known, own, told, rests_on, count), ""


def _name(key: FlowKey) -> FlowKey:
    return replace(key, incarnation=0)


def _latest(known: job.Job, messages: Sequence[MessageSeen]) -> dict[FlowKey, list[MessageSeen]]:
    """{flow: its messages in PSN order} of the connections of `known`, of their last owner."""
    names = {_name(flow) for edge in known.edges for flow in edge.every_flow}
    found: dict[FlowKey, dict[int, list[MessageSeen]]] = defaultdict(lambda: defaultdict(list))
    for message in messages:
        if _name(message.flow) in names:
            found[_name(message.flow)][message.flow.incarnation].append(message)
    return {
        name: sorted(owners[max(owners)], key=lambda m: m.first_psn)
        for name, owners in found.items()
    }


def _behind_last_gap(messages: Sequence[MessageSeen]) -> list[MessageSeen]:
    """Those that nothing lacks between; a write that only closes the one before is no message."""
    found: list[MessageSeen] = []
    stop = None
    for message in messages:
        if message.first_psn != stop:
            found = []
        stop = message.first_psn + message.packets
        if not (message.immediate and message.wire_bytes == 0 and not message.va):
            found.append(message)
    return found


def _from(
    known: job.Job,
    own: Mapping[FlowKey, Sequence[MessageSeen]],
    told: Mapping[FlowKey, int],
    assumed: tuple[str, ...],
    count: int,
) -> job.Job:
    """`known` as it goes on from the messages at these PSNs: its first iteration is as the others
    are."""
    called = {name: of[0].flow for name, of in own.items()}
    edges = []
    for edge in known.edges:
        flows = tuple(None if f is None else called.get(_name(f)) for f in edge.flows)
        psns = tuple(0 if f is None else told.get(f, 0) for f in flows)
        flows = tuple(f if psn else None for f, psn in zip(flows, psns, strict=True))
        numbers = (FIRST_NUMBER,) * len(flows)
        # What a flag counts from is told by each message's own.
        edges.append(
            msgspec.structs.replace(
                edge, flows=flows, first_numbers=numbers, first_psns=psns, flags_count=False
            )
        )
    told_until = tuple(f"{sentence} {job.UNSHOWN}" for sentence in assumed)
    evidence = EVIDENCE.format(count, len(told))
    return msgspec.structs.replace(
        known,
        edges=tuple(edges),
        first=known.each,
        first_buckets=known.buckets,
        evidence=tuple(dict.fromkeys((*known.evidence, evidence))),
        assumed=tuple(dict.fromkeys((*known.assumed, *told_until))),
    )
