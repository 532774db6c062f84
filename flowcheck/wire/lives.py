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
