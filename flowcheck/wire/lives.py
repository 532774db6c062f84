"""Jobs that followed one another on the same machines, told apart by when their flows were used."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.wire.seen import FlowKey, FlowSeen, MessageSeen

Life = tuple[list[FlowSeen], list[MessageSeen]]


def lives(flows: Sequence[FlowSeen], messages: Sequence[MessageSeen]) -> list[Life]:
    """Flows and their messages, in groups of which one had ended before the next one began.

    The connections of one job are used by turns as long as it lives, so they never fall apart.
    Flows without messages are of every group; there is always one group.
    """
    ends: dict[FlowKey, int] = {}
    for message in messages:
        ends[message.flow] = max(ends.get(message.flow, 0), message.order)
    groups: list[set[FlowKey]] = [set()]
    until = 0
    for message in sorted(messages, key=lambda m: m.order):
        if groups[-1] and message.order > until:
            groups.append(set())
        groups[-1].add(message.flow)
        until = max(until, ends[message.flow])
    quiet = {flow.key for flow in flows} - ends.keys()
    return [
        (
            [flow for flow in flows if flow.key in group or flow.key in quiet],
            [message for message in messages if message.flow in group],
        )
        for group in groups
    ]
