"""Where the iterations of a known job begin in a stream that had begun: instants at which all of
its connections are at the first message of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from flowcheck.findings.catalog.midstream_jobs import (
    BEGIN_BETWEEN_OTHERS,
    BEGIN_BY_PAUSES,
    BEGIN_CONTRADICTORY,
    BEGIN_OPEN,
    NO_WHOLE_ITERATION,
    OTHER_SIZES,
)
from flowcheck.findings.finding import Finding
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

LONGER = 2.0
"""How much longer the shortest pause before an iteration must be than what is usual elsewhere."""
LAPS = 3
"""Pauses that are compared where sizes fit several places."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What one connection sent behind its last gap, and what it sends in an iteration."""

    key: FlowKey
    period: NDArray[np.int64]
    """[messages of an iteration] wire bytes."""
    seen: Sequence[ObservedMessage]

    def begins(self, ahead: int | None) -> NDArray[np.bool_]:
        """[messages] the sizes of so many messages from there on, by default of all, are those of
        iterations that begin there."""
        sizes = np.array([m.wire_bytes for m in self.seen], np.int64)
        count, lap = len(sizes), len(self.period)
        found = np.zeros(count, np.bool_)
        for phase in range(min(lap, count)):
            wrong = sizes != self.period[(np.arange(count) - phase) % lap]
            before = np.concatenate([[0], np.cumsum(wrong)])
            at = np.arange(phase, count, lap)
            stop = np.full(len(at), count) if ahead is None else np.minimum(at + ahead, count)
            found[at] = before[stop] == before[at]
        return found


@dataclass(frozen=True, slots=True)
class Cut:
    """An instant at which every connection is at the beginning of an iteration."""

    at: tuple[int, ...]
    """[lane] index of its next message."""
    pause_ns: int | None
    """Nothing began for so long before; None: before it nothing was seen."""


def first_iteration(
    lanes: Sequence[Lane], *, ended: bool, laps: int
) -> tuple[Cut | None, Finding | None]:
    """Where the first iteration begins that was seen whole, and what that rests on; or none, and
    why. ended: nothing more comes; else the one after must have begun too; laps: iterations on end
    that must have been seen."""
    more = 0 if ended else 1
    needed = [laps * len(lane.period) + more for lane in lanes]
    if any(len(lane.seen) < least for lane, least in zip(lanes, needed, strict=True)):
        return None, NO_WHOLE_ITERATION()
    cuts = _cuts(lanes, [lane.begins(None) for lane in lanes], needed)
    between = None
    if not cuts and all(len(lane.seen) >= LAPS * len(lane.period) for lane in lanes):
        # What comes only now and then lies between iterations.
        if laps > 1:  # else an iteration 0 of the same sizes must not be taken for a later one
            needed = [laps * len(lane.period) for lane in lanes]
        begins = [lane.begins(least) for lane, least in zip(lanes, needed, strict=True)]
        for lane, own, least in zip(lanes, begins, needed, strict=True):
            if not own[: len(lane.seen) - least + 1].any():
                return None, OTHER_SIZES(messages=len(lane.seen), queue_pair=lane.key.dest_qp)
        cuts, between = _cuts(lanes, begins, needed), BEGIN_BETWEEN_OTHERS()
        if _contradict(lanes, cuts, needed):
            return None, BEGIN_CONTRADICTORY()
    if not cuts:
        return None, NO_WHOLE_ITERATION()
    return _chosen(lanes, cuts, between, ended=ended)


def _cuts(
    lanes: Sequence[Lane], begins: Sequence[NDArray[np.bool_]], needed: Sequence[int]
) -> list[Cut]:
    """Instants where an iteration begins on every connection. needed: [lane] messages behind."""
    return [
        Cut(at, pause_ns)
        for at, pause_ns in _instants(lanes)
        if all(
            i + least <= len(lane.seen) and own[i]
            for i, lane, own, least in zip(at, lanes, begins, needed, strict=True)
        )
    ]


def _instants(lanes: Sequence[Lane]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """([lane] index of the next message, time since the one before) before every message."""
    merged = sorted((*message.time, lane) for lane, one in enumerate(lanes) for message in one.seen)
    at = [0] * len(lanes)
    last: int | None = None
    for time_ns, _, lane in merged:
        yield tuple(at), None if last is None else time_ns - last
        at[lane] += 1
        last = time_ns


def _chosen(
    lanes: Sequence[Lane], cuts: Sequence[Cut], assumed: Finding | None, *, ended: bool
) -> tuple[Cut | None, Finding | None]:
    """The first cut of the right kind whose iteration was seen to the last byte."""
    kinds: dict[tuple[int, ...], list[Cut]] = defaultdict(list)
    for cut in cuts:
        # What lies between iterations moves all behind it.
        kinds[() if assumed else _kind(lanes, cut)].append(cut)
    usual = {kind: median(_pauses(own) or [0]) for kind, own in kinds.items()}
    best = max(kinds, key=lambda kind: usual[kind])
    if len(kinds) > 1:
        told = _pauses(kinds[best])
        rest = max(usual[kind] for kind in kinds if kind != best)
        if len(told) < (1 if ended else LAPS) or min(told) < LONGER * rest:
            return None, BEGIN_OPEN(len(kinds))
        assumed = BEGIN_BY_PAUSES(len(kinds))
    for cut in kinds[best]:
        if all(
            message.complete and not message.conflicts
            for i, lane in zip(cut.at, lanes, strict=True)
            for message in lane.seen[i : i + len(lane.period)]
        ):
            return cut, assumed
    return None, NO_WHOLE_ITERATION()


def _contradict(lanes: Sequence[Lane], cuts: Sequence[Cut], needed: Sequence[int]) -> bool:
    """Two of them would share messages, and are no whole iterations apart."""
    for one, other in pairwise(cuts):
        ahead = [b - a for a, b in zip(one.at, other.at, strict=True)]
        shared = any(by < least for by, least in zip(ahead, needed, strict=True))
        laps = {divmod(by, len(lane.period)) for by, lane in zip(ahead, lanes, strict=True)}
        if shared and (len(laps) > 1 or any(rest for _, rest in laps)):
            return True
    return False


def _pauses(cuts: Sequence[Cut]) -> list[int]:
    return [cut.pause_ns for cut in cuts if cut.pause_ns is not None]


def _kind(lanes: Sequence[Lane], cut: Cut) -> tuple[int, ...]:
    """Cuts of one kind are whole iterations apart, as many on every connection."""
    laps = [divmod(i, len(lane.period)) for i, lane in zip(cut.at, lanes, strict=True)]
    return tuple(part for lap, phase in laps for part in (phase, lap - laps[0][0]))
