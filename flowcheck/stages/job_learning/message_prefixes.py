"""After how many messages a stream is read, so that a slow machine learns the same job as a fast
one.

What a job is found to be rests on what was there when it was read. So readings take messages up to
fixed counts, in the order in which they became whole, however many more are there by then: the
smallest count that proves a job decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.stages.staged_messages.across_rings import FlowPsn
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage

MESSAGES_MIN = 4
"""Messages before the first reading. A choice: of fewer nothing is learned."""
GROWTH = 1.25
"""Factor. The next reading takes so many times more messages: all readings together cost at most
five times the last one (1 / (1 - 1/1.25)). A choice: smaller learns sooner and costs more."""


def counts_up_to(most: int, after: int = 0) -> tuple[int, ...]:
    """The fixed counts in (after, most], ascending."""
    return tuple(count for count in takewhile(lambda n: n <= most, _counts()) if count > after)


def next_count(after: int) -> int:
    """The smallest fixed count above `after`."""
    return next(count for count in _counts() if count > after)


def _counts() -> Iterator[int]:
    count = MESSAGES_MIN
    while True:
        yield count
        count = max(count + 1, int(count * GROWTH))


@dataclass(frozen=True, slots=True)
class MessagePrefixes:
    """The staged messages of one ring, as they became whole."""

    counts: tuple[int, ...]
    """How many to read, one after the other."""
    completed: Mapping[FlowPsn, int] = field(repr=False)
    """Of each whole message, the how manieth it was."""

    def part(
        self, flows: Sequence[ObservedFlow], messages: Sequence[ObservedMessage], count: int
    ) -> tuple[list[ObservedFlow], list[ObservedMessage]]:
        """The first `count` of them, those before them on the same flow that will never be whole,
        and the flows that were seen by then."""
        chosen: list[ObservedMessage] = []
        last: dict[FlowKey, int] = {}
        for message in messages:
            number = self.completed.get((message.flow, message.first_psn), 0)
            if 0 < number <= count:
                last[message.flow] = max(last.get(message.flow, 0), message.first_psn)
        for message in messages:
            number = self.completed.get((message.flow, message.first_psn), 0)
            if message.first_psn <= last.get(message.flow, -1) and number <= count:
                chosen.append(message)
        until_ns = max((message.first_ns for message in chosen), default=0)
        later = {message.flow for message in messages} - last.keys()
        seen = [flow for flow in flows if flow.key not in later and flow.first_ns <= until_ns]
        return seen, chosen


def prefixes_of(extractor: Extractor, most: int, after: int) -> MessagePrefixes:
    """Of what an extractor has staged. most: messages that became whole so far; after: how many
    were read already."""
    records = extractor.staging.records()
    held = records[(records["state"] == 1) & (records["completed"] > 0)]
    keys = extractor.keys()
    completed = {
        (keys[flow], int(psn) + extractor.psn_shift(flow)): int(number)
        for flow, psn, number in zip(
            held["message"]["flow"].tolist(),
            held["message"]["first_psn"].tolist(),
            held["completed"].tolist(),
            strict=True,
        )
    }
    return MessagePrefixes(counts_up_to(most, after), completed)
