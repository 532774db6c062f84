"""Several queue pairs of one connection, met amid a run: whose turn it is.

Whole sends go over them by turns; which queue pair follows which is known. Of all that begins
behind one instant the first message is of the one whose turn it is, and from there on each message
begins behind the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flowcheck.wire.seen import MessageSeen

MOST_UNTIMELY = 0.05
"""Share of messages that may begin before the one whose turn was before: a NIC may serve queue
pairs at once. One that is a turn off begins nearly each of its messages too early or too late."""
TURNS = (
    "each connection uses several queue pairs (NCCL_IB_QPS_PER_CONNECTION), and whose turn it is "
    "amid a run their messages' times do not tell"
)
BY_TIMES = "whose turn it is of a connection's queue pairs, by when their messages began"


def in_turn(of: Sequence[Sequence[MessageSeen]]) -> tuple[list[MessageSeen] | None, str]:
    """One connection's messages in order, and what that rests on; None, and why they have none.

    of: [turn] messages of each queue pair behind its last gap, in the order of their turns.
    """
    if len(of) == 1:
        return list(of[0]), ""
    if not all(of):
        return [], ""
    begin = max(_time(one[0]) for one in of)
    left = [[message for message in one if _time(message) >= begin] for one in of]
    if not all(left):
        return [], ""
    first = min(range(len(left)), key=lambda turn: _time(left[turn][0]))
    turned = [*left[first:], *left[:first]]
    found = []
    for place in range(sum(map(len, left))):
        nth, turn = divmod(place, len(turned))
        if nth >= len(turned[turn]):
            break
        found.append(turned[turn][nth])
    untimely = sum(_time(later) < _time(earlier) for earlier, later in pairwise(found))
    if untimely > MOST_UNTIMELY * len(found):
        return None, TURNS
    return found, BY_TIMES


def _time(message: MessageSeen) -> tuple[int, int]:
    return message.first_ns, message.order
