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
"""How much longer a pause before an iteration must be than what is usual elsewhere."""
LAPS = 3
"""Pauses that are compared where sizes fit several places."""
PAUSES_PER_SHORT = 8
"""Of so many pauses before an iteration one may be shorter: where the capture itself was held up,
how long nothing was sent is not told by the times of frames. A choice: fewer than so many must all
be long."""


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
    # The places at which no whole iteration was seen yet, as the stream ends before, fit as well.
    fit = cuts if between else _that_fit(lanes, cuts[0])
    return _chosen(lanes, cuts, fit, between, ended=ended)


def _cuts(
    lanes: Sequence[Lane], begins: Sequence[NDArray[np.bool_]], needed: Sequence[int]
) -> list[Cut]:
    """Instants where an iteration begins on every connection. needed: [lane] messages behind."""
    return [
        cut
        for cut in _instants(lanes)
        if all(
            i + least <= len(lane.seen) and own[i]
            for i, lane, own, least in zip(cut.at, lanes, begins, needed, strict=True)
        )
    ]


def _instants(lanes: Sequence[Lane]) -> Iterator[Cut]:
    """One before every message."""
    merged = sorted((*message.time, lane) for lane, one in enumerate(lanes) for message in one.seen)
    at = [0] * len(lanes)
    last: int | None = None
    for time_ns, _, lane in merged:
        yield Cut(tuple(at), None if last is None else time_ns - last)
        at[lane] += 1
        last = time_ns


def _that_fit(lanes: Sequence[Lane], first: Cut) -> list[Cut]:
    """All instants at which, by the sizes of all that was sent from about the first one on, an
    iteration may begin on every connection, however much of it was seen."""
    begins = [lane.begins(None) for lane in lanes]

    def fits(cut: Cut) -> bool:
        for own, lane, start, i in zip(begins, lanes, first.at, cut.at, strict=True):
            place = start + (i - start) % len(lane.period)
            if i < start or i >= len(own) or not own[place]:
                return False
        return True

    return [cut for cut in _instants(lanes) if fits(cut)]


def _chosen(
    lanes: Sequence[Lane],
    whole: Sequence[Cut],
    cuts: Sequence[Cut],
    assumed: Finding | None,
    *,
    ended: bool,
) -> tuple[Cut | None, Finding | None]:
    """The first cut of the right kind whose iteration was seen to the last byte. whole: those
    behind which as much was seen as is needed; cuts: these, and others that fit."""
    kinds: dict[tuple[int, ...], list[Cut]] = defaultdict(list)
    for cut in cuts:
        # What lies between iterations moves all behind it.
        kinds[() if assumed else _kind(lanes, cut)].append(cut)
    seen = max(map(len, kinds.values())) - 1  # laps; the first or the last one may be cut off
    pauses = {kind: _pauses(own, seen) for kind, own in kinds.items()}
    usual = {kind: median(own or [0]) for kind, own in pauses.items()}
    best = max(kinds, key=lambda kind: usual[kind])
    if len(kinds) > 1:
        told = sorted(pauses[best])
        rest = max(usual[kind] for kind in kinds if kind != best)
        enough = len(told) >= (1 if ended else LAPS)
        if not enough or told[len(told) // PAUSES_PER_SHORT] < LONGER * rest:
            return None, BEGIN_OPEN(len(kinds))
        assumed = BEGIN_BY_PAUSES(len(kinds))
    own = set(kinds[best])
    for cut in whole:
        if cut in own and all(
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


def _pauses(cuts: Sequence[Cut], laps: int) -> list[int]:
    """Those before cuts of one kind, and 0 for each lap that has none of it: all ranks wait for
    each other between iterations, so their begin is an instant of every lap, and one at which
    connections stood but now and then is none, however long it lasted once."""
    told = [cut.pause_ns for cut in cuts if cut.pause_ns is not None]
    return told + [0] * max(0, laps - len(cuts))


def _kind(lanes: Sequence[Lane], cut: Cut) -> tuple[int, ...]:
    """Cuts of one kind are whole iterations apart, as many on every connection."""
    laps = [divmod(i, len(lane.period)) for i, lane in zip(cut.at, lanes, strict=True)]
    return tuple(part for lap, phase in laps for part in (phase, lap - laps[0][0]))
