"""Where a message stream is cut before it is read: between jobs that followed one another, and
at a pause of the trainers.

Collectives come in bursts, between which a trainer computes. A reading of whole bursts needs no
guesses about collectives that are half sent, which is most of what a reading takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

JobTraffic = tuple[list[ObservedFlow], list[ObservedMessage]]


def split_jobs(
    flows: Sequence[ObservedFlow], messages: Sequence[ObservedMessage]
) -> list[JobTraffic]:
    """Flows and their messages, in groups of which one had ended before the next one began.

    The connections of one job are used by turns as long as it lives, so they never fall apart.
    Flows without messages are of every group; there is always one group.
    """
    ports = {flow.key: flow.udp_source_port for flow in flows}

    def connection(key: FlowKey) -> tuple[frozenset[str], int | None]:
        """Both ways of a queue pair: trees leave the ring's alone after the start-up, and what a
        mirror's queues hold may come in another order than it was sent."""
        return frozenset((key.source, key.destination)), ports.get(key)

    ends: dict[object, int] = {}
    for message in messages:
        name = connection(message.flow)
        ends[name] = max(ends.get(name, 0), message.order)
    groups: list[set[FlowKey]] = [set()]
    until = 0
    for message in sorted(messages, key=lambda m: m.order):
        if groups[-1] and message.order > until:
            groups.append(set())
        groups[-1].add(message.flow)
        until = max(until, ends[connection(message.flow)])
    quiet = {flow.key for flow in flows} - {message.flow for message in messages}
    return [
        (
            [flow for flow in flows if flow.key in group or flow.key in quiet],
            [message for message in messages if message.flow in group],
        )
        for group in groups
    ]


READ_SHARE_LEAST = 0.5
"""Share of the messages that is read in any case. A choice: less finds pauses that are older, more
may find none."""
EQUAL_PAUSE_SHARE = 0.5
"""A pause of this share of the longest one is as good, if it comes later. A choice: less takes gaps
within a burst for pauses."""


def up_to_pause(messages: Sequence[ObservedMessage]) -> list[ObservedMessage]:
    """The messages in order of discovery, up to a pause in their later part."""
    ordered = sorted(messages, key=lambda m: m.order)
    first = max(1, int(len(ordered) * READ_SHARE_LEAST))
    starts_ns = np.array([m.first_ns for m in ordered[first - 1 :]], np.int64)
    pauses_ns = np.diff(starts_ns)
    if not len(pauses_ns) or pauses_ns.max() <= 0:
        return ordered
    long = np.flatnonzero(pauses_ns >= EQUAL_PAUSE_SHARE * pauses_ns.max())
    return ordered[: first + int(long[-1])]
