"""How far the rings are read, and how much space is left in their staging files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowcheck.findings.catalog.lost_steps import STAGING_OVERRUN
from flowcheck.findings.finding import Finding
from flowcheck.plane.extraction.payload_extractor import Extractor

SPAN_SLOTS = 4096
"""Slots per ring and turn: a few hundred microseconds."""
SPAN_SLOTS_LEAST = 256
"""Slots, where little room is left for packets whose message another ring may know. A choice: fewer
would make turns of nothing."""

TURN_BYTES = 32 << 20
"""Bytes that one turn moves from staging to the gradient, where rings wait for nothing. A choice:
some milliseconds, in which the ring of a fast port does not fill up."""
BEHIND_TURN_BYTES = 4 << 20
"""The same where more than one turn's slots wait in a ring. A choice: a quarter of the 16 MiB that
a turn takes out of it in frames of 4 KiB, so that most of the time goes to the ring."""


def slots_to_take(extractor: Extractor, rings: int) -> int:
    """How much to take at once: what one of several rings holds for another must find room."""
    if rings == 1:
        return SPAN_SLOTS
    return min(SPAN_SLOTS, max(SPAN_SLOTS_LEAST, extractor.staging.orphan_room))


def bytes_to_place(extractors: Sequence[Extractor]) -> int:
    """How much of what is staged to move to its place before rings have their next turn. A ring
    that overflows loses frames for good, and what is staged can wait."""
    behind = any(x.ring.parsed - x.ring.tail >= SPAN_SLOTS for x in extractors)
    return BEHIND_TURN_BYTES if behind else TURN_BYTES


def rings_drained(extractors: Sequence[Extractor]) -> bool:
    """Every source has ended and every frame of it is extracted."""
    return all(extractor.ring.drained for extractor in extractors)


def staging_overrun(extractors: Sequence[Extractor]) -> Finding | None:
    """What staging, once full, could not take; None: it took everything."""
    dropped = size = 0
    for extractor in extractors:
        commit = extractor.ring.extract_commit()
        dropped += int(commit.counters.unlearned_full_packets)
        size = max(size, int(extractor.staging.handle.header.data_bytes))
    return STAGING_OVERRUN(packets=dropped, bytes=size) if dropped else None


def stalled_extractors(extractors: Sequence[Extractor]) -> list[Extractor]:
    """Those whose source waits until staging has room again."""
    return [extractor for extractor in extractors if extractor.stalled]


def staged_message_count(extractors: Sequence[Extractor]) -> int:
    """Messages that have no placement yet."""
    return sum(int(x.staging.handle.header.records_in_use) for x in extractors)


def completed_messages(
    extractors: Sequence[Extractor], only: Sequence[set[int]] | None = None
) -> int:
    """Whole messages staged so far. only: [ring] indices of the flows that count; None: all, those
    of messages that were let go since, too."""
    if only is None:
        return sum(extractor.staging.completions for extractor in extractors)
    return sum(map(_completed_of, extractors, only))


def _completed_of(extractor: Extractor, flows: set[int]) -> int:
    records, held = extractor.staging.records(), extractor.staging.held()
    whole = held[records["completed"][held] > 0]
    return int(np.count_nonzero(np.isin(records["message"]["flow"][whole], list(flows))))


def held_packets_crowded(extractors: Sequence[Extractor]) -> bool:
    """Packets whose message is not known yet fill two thirds of what any ring may hold of them."""
    return any(2 * x.staging.orphan_room < x.staging.orphan_count for x in extractors)


def staging_fuller_than(extractor: Extractor, share: float) -> bool:
    """Messages fill more than `share` of what one ring may stage, in bytes or in records."""
    header = extractor.staging.handle.header
    if extractor.staging.data_free_bytes < (1 - share) * int(header.data_bytes):
        return True
    return int(header.records_in_use) > share * int(header.records_max)
