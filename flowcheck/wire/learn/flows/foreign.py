"""Writes with immediates that are not NCCL's: storage and message queues use them too.

NCCL's immediate states how much was sent (a piece of a split send states all of it); where it
numbers sends instead (NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME) data still goes to slots.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from flowcheck.wire.collectives.nccl_parameters import SPLIT_BYTES
from flowcheck.wire.collectives.nccl_wire_format import immediate_sizes
from flowcheck.wire.learn.flows.line_flags import line_flag
from flowcheck.wire.traffic.observed_messages import ObservedMessage

ENOUGH = 3
"""Writes below that say too little."""
LEAST_BYTES = 64
"""Smaller ones end a group of receives, and hold its sizes."""
MOST_PIECES = 16
SLOT_GRAIN_BYTES = 8192
"""Slots of all protocols, and of point-to-point buffers, lie so far apart or a multiple of it."""


def of_another_protocol(messages: Sequence[ObservedMessage]) -> bool:
    """Most immediates state no size, and addresses are no slots."""
    told = [
        m
        for m in messages
        if m.immediate is not None and not m.length_inferred and m.va and m.wire_bytes > LEAST_BYTES
    ]
    sizes = Counter((m.wire_bytes, m.immediate or 0) for m in told)
    stated = sum(count for one, count in sizes.items() if _states_size(*one))
    if len(told) < ENOUGH or 2 * stated >= len(told):
        return False
    if any(line_flag(m) is not None for m in told):
        return False
    addresses = [m.va or 0 for m in told]
    return math.gcd(*(va - addresses[0] for va in addresses)) % SLOT_GRAIN_BYTES != 0


def _states_size(wire_bytes: int, immediate: int) -> bool:
    most = MOST_PIECES * (wire_bytes + SPLIT_BYTES)
    return any(wire_bytes <= n <= most for n in immediate_sizes(immediate))
