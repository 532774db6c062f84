"""Whether a message is made of LL's or LL128's lines: by a few of its lines, and by its neighbours.

Every line of a message carries its step on the connection plus one: LL in both of two words of 32
bits, LL128 in one of 64. No connection comes to need the upper half of that one: a million steps a
second reach it after more than an hour, when LL's flags begin anew (NCCL src/include/device.h,
union ncclLLFifoLine; src/device/prims_ll.h, prims_ll128.h).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flowcheck.wire.collectives.nccl_parameters import (
    LL128_GROUP_BYTES,
    LL128_LINE_BYTES,
    LL_LINE_BYTES,
    Protocol,
)
from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.traffic.observed_messages import ObservedMessage

LL_FLAGS = struct.Struct("<4xI4xI")
"""Of a line: data, flag, data, flag. A line of LL128 ends with 8 bytes of flag."""
SAMPLED_LINES = 8
"""Of a message. A choice: see `line_flag`."""
MOST_STEPS = 5
"""Of a connection that a send takes which is of no lines: a slice of Simple is two steps long, and
its collective begins at a multiple of four (NCCL src/include/collectives.h, ALLREDUCE_SLICESTEPS,
ALLREDUCE_CHUNKSTEPS; src/proxy.cc)."""
FLAG_BITS = 32


def flag_of(number: int) -> int:
    """The flag of a send where every send before it is one step of the connection."""
    return (number + 1) % (1 << FLAG_BITS)


Claim = tuple[Protocol, int]
"""The protocol that a message looks like, and its flag."""


def line_flag(message: ObservedMessage, granted: Protocol | None = None) -> Claim | None:
    """(protocol, flag modulo 2**32) where the lines looked at carry one and the same flag. granted:
    whose buffer it was written to, where that is known; Simple's lines are not looked at.

    At most `SAMPLED_LINES` lines are read, whatever the message's size. They decide what all of
    them would: NCCL posts a message once the flag stands in every line of it, so that no line of
    lines lacks it, and of other data the first line read mostly has none. LL: both flags of each
    line are one word, which other numbers are once in 2**32 lines. LL128: the upper half of the
    flag is zero, and whole messages are groups of 16 lines, which no single line that equals
    itself is. Numbers that repeat themselves everywhere would deceive all lines as well as some;
    that flags count the sends of a connection tells these (`out_of_step`)."""
    if granted is Protocol.SIMPLE:
        return None
    if granted is not Protocol.LL128 and (flag := _ll_flag(message)):
        return Protocol.LL, flag
    if granted is not Protocol.LL and (flag := _ll128_flag(message)):
        return Protocol.LL128, flag
    return None


def _ll_flag(message: ObservedMessage) -> int | None:
    """The flag; None or 0: none that all lines read have."""
    if not message.wire_bytes or message.wire_bytes % LL_LINE_BYTES:
        return None
    found: int | None = None
    for start in _sampled(message, LL_LINE_BYTES):
        line = message.payload[start : start + LL_LINE_BYTES].tobytes()
        one, two = LL_FLAGS.unpack(line)
        if one != two or found not in (None, one):
            return None
        found = one
    return found


def _ll128_flag(message: ObservedMessage) -> int | None:
    """The same of LL128."""
    if not message.wire_bytes or message.wire_bytes % _grain_bytes(message):
        return None
    found: int | None = None
    for start in _sampled(message, LL128_LINE_BYTES):
        stop = start + LL128_LINE_BYTES
        flag = int.from_bytes(message.payload[stop - 8 : stop].tobytes(), "little")
        if flag >> FLAG_BITS or found not in (None, flag):
            return None
        found = flag
    return found


def _grain_bytes(message: ObservedMessage) -> int:
    """What the size of a message in LL128 is a multiple of: a group of lines, or of a piece that
    one of several queue pairs carries (src/transport/net_ib.cc, ncclIbMultiSend), a line."""
    told = immediate_sizes(message.immediate or 0)
    whole = message.immediate is not None and message.wire_bytes in told
    return LL128_GROUP_BYTES if whole else LL128_LINE_BYTES


def _sampled(message: ObservedMessage, line_bytes: int) -> list[int]:
    """Where the lines that are read begin: of those captured whole the first, the last, and some
    between, evenly. Grows with the ranges that were not captured."""
    if not message.missing:
        return [place * line_bytes for place in _evenly(len(message.payload) // line_bytes)]
    edges = [0, *(edge for lost in message.missing for edge in lost), len(message.payload)]
    runs = [
        (first, count)
        for start, stop in zip(edges[::2], edges[1::2], strict=True)
        if (count := stop // line_bytes - (first := -(-start // line_bytes))) > 0
    ]
    stops = list(accumulate(count for _, count in runs))
    if not stops:
        return []
    found, run = [], 0
    for place in _evenly(stops[-1]):
        while place >= stops[run]:
            run += 1
        first, count = runs[run]
        found.append((first + place - (stops[run] - count)) * line_bytes)
    return found


def _evenly(count: int) -> list[int]:
    """Of so many places the first, the last and some between."""
    least = min(SAMPLED_LINES, count)
    return [n * (count - 1) // max(1, least - 1) for n in range(least)]


@dataclass(frozen=True, slots=True)
class Place:
    """What a send of a connection says of its place in it."""

    flag: int | None
    """None: it is of no lines."""
    first_psn: int
    stop_psn: int


def out_of_step(
    places: Sequence[Place], *, from_start: bool, queue_pairs: int = 1
) -> frozenset[int]:
    """Indices of those whose flag cannot be one: it says another step than sends beside it leave
    room for. places: of one connection, ascending PSN, or of one of so many queue pairs of it.

    Steps only grow: by one from a send of lines to the next one, by at most `MOST_STEPS` for every
    other one between, or one that was lost, which had a packet at least. Of two that contradict
    each other the one is believed that the next one bears out, else the earlier."""
    lost = [max(0, b.first_psn - a.stop_psn) for a, b in pairwise(places)]
    before = [0, *accumulate(lost)]
    told = [i for i, place in enumerate(places) if place.flag is not None]

    def fits(i: int, j: int) -> bool:
        """j after i; i = -1 is what comes before the first of all."""
        steps = (_flag(places, j) - _flag(places, i)) % (1 << FLAG_BITS)
        others = j - i - 1 + before[j] - before[max(0, i)]
        most = 1 + MOST_STEPS * others if queue_pairs == 1 else 1 << (FLAG_BITS - 1)
        return j - i <= steps <= most

    believed = [-1] if from_start else []
    wrong = set()
    for n, j in enumerate(told):
        if not believed or fits(believed[-1], j):
            believed.append(j)
            continue
        last, later = believed[-1], told[n + 1 : n + 2]
        if last >= 0 and any(fits(j, k) and not fits(last, k) for k in later):
            wrong.add(believed.pop())
            if not believed or fits(believed[-1], j):
                believed.append(j)
                continue
        wrong.add(j)
    return frozenset(wrong)


def _flag(places: Sequence[Place], i: int) -> int:
    return (places[i].flag or 0) if i >= 0 else 0
