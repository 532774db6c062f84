"""Rings of one size between the same hosts, met amid their run: nothing forwarded from the start on
tells which of their connections belong together."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.learn.flows.streams import Stream
from flowcheck.wire.learn.jobs.late.instants import Lane
from flowcheck.wire.training_job.connection_messages import iteration_sizes
from flowcheck.wire.training_job.learned_job import LearnedJob


def mixable(found: LearnedJob, streams: Sequence[Stream], *, laps: int) -> bool:
    """Some connection beside those of the job has, for so many iterations on end, the sizes of one
    of them, from and to the same address."""
    own = {flow for edge in found.edges for flow in edge.all_flows}
    beside = [stream for stream in streams if stream.key not in own]
    for _, turns, period in iteration_sizes(found):
        if not len(period):
            continue
        ends = {(flow.source, flow.destination) for flow in turns}
        for stream in beside:
            if (stream.key.source, stream.key.destination) not in ends:
                continue
            seen = [stream.sends[number].message for number in sorted(stream.sends)]
            begins = Lane(stream.key, period, seen).begins(laps * len(period))
            if begins[: max(0, len(seen) - laps * len(period) + 1)].any():
                return True
    return False
