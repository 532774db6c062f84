"""Several queue pairs of one connection, met amid a run: whose turn it is.

Whole sends go over them by turns; which queue pair follows which is known. Of all that begins
behind one instant the first message is of the one whose turn it is, and from there on each message
begins behind the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flowcheck.findings.catalog.midstream_jobs import TURNS_BY_TIMES, TURNS_OPEN
from flowcheck.findings.finding import Finding
from flowcheck.wire.traffic.observed_messages import ObservedMessage

MOST_UNTIMELY = 0.05
"""Share of messages that may begin before the one whose turn was before: a NIC may serve queue
pairs at once. One that is a turn off begins nearly each of its messages too early or too late."""


def in_turn(
    of: Sequence[Sequence[ObservedMessage]],
) -> tuple[list[ObservedMessage] | None, Finding | None]:
    """One connection's messages in order, and what that rests on; None, and why they have none.

    of: [turn] messages of each queue pair behind its last gap, in the order of their turns.
    """
    if len(of) == 1:
        return list(of[0]), None
    if not all(of):
        return [], None
    begin = max(one[0].time for one in of)
    left = [[message for message in one if message.time >= begin] for one in of]
    if not all(left):
        return [], None
    first = min(range(len(left)), key=lambda turn: left[turn][0].time)
    turned = [*left[first:], *left[:first]]
    found = []
    for place in range(sum(map(len, left))):
        nth, turn = divmod(place, len(turned))
        if nth >= len(turned[turn]):
            break
        found.append(turned[turn][nth])
    untimely = sum(later.time < earlier.time for earlier, later in pairwise(found))
    if untimely > MOST_UNTIMELY * len(found):
        return None, TURNS_OPEN()
    return found, TURNS_BY_TIMES()
