"""Where a stream that still grows is best cut to be read: where its trainers were not sending.

Collectives come in bursts, between which a trainer computes. A reading of whole bursts needs no
guesses about collectives that are half sent, which is most of what a reading takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.wire.seen import MessageSeen

READ_LEAST = 0.5
"""Share of the messages that is read in any case."""
ALIKE = 0.5
"""A pause of this share of the longest one is as good, if it comes later."""


def up_to_quiet(messages: Sequence[MessageSeen]) -> list[MessageSeen]:
    """The messages in order of discovery, up to a pause in their later part."""
    ordered = sorted(messages, key=lambda m: m.order)
    first = max(1, int(len(ordered) * READ_LEAST))
    starts_ns = np.array([m.first_ns for m in ordered[first - 1 :]], np.int64)
    pauses_ns = np.diff(starts_ns)
    if not len(pauses_ns) or pauses_ns.max() <= 0:
        return ordered
    long = np.flatnonzero(pauses_ns >= ALIKE * pauses_ns.max())
    return ordered[: first + int(long[-1])]
