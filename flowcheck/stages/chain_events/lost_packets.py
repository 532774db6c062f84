"""Packets missing by sequence number (PSN holes) in all flows, each with the iteration it
belongs to.

A hole in a flow's sequence numbers says which packets never came, and the plan of the flow which
iteration those are of: so a loss is of its own step, however late it is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.staging_file import Staging
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration


def missing_packets(flows: FlowTable) -> int:
    """Of all flows of a ring: between packets that were seen. What lies behind the newest one may
    be on its way still, and is no loss before a later one came. The parser may be at work on a
    record meanwhile: what it changes just now may count otherwise."""
    records = flows.flows()
    return int(_each(records).sum()) if len(records) else 0


def _each(records: NDArray[np.void]) -> NDArray[np.int64]:
    """[flows] the holes of each (fc_flow.h), and those that no longer found a place among them."""
    holes = records["holes"]
    starts, stops = holes["start"].astype(np.int64), holes["stop"].astype(np.int64)
    known = np.arange(holes.shape[1])[None, :] < records["holes_used"].astype(np.int64)[:, None]
    inside = np.where(known, np.maximum(stops - starts, 0), 0).sum(axis=1)
    total: NDArray[np.int64] = inside + records["lost_holes"].astype(np.int64)
    return total


PIECES_MAX = 32
"""Iterations that one hole is split into; the iteration of what is left of a longer hole is not
known. A choice: more makes events longer."""
PsnSpan = tuple[int, int]
"""Unwrapped PSNs, half open."""


@dataclass(slots=True)
class PsnHole:
    """PSNs of a flow that were missing at a look."""

    start: int
    stop: int
    iteration: Iteration | None
    """That they are of; None: not known."""
    told: bool = False
    """They were missing at a later look as well."""


@dataclass(slots=True)
class _Flow:
    raw: bytes = b""
    holes: list[PsnHole] = field(default_factory=list)
    lost: int = 0
    """Packets of holes that found no place in the flow's list."""
    next_psn: int = 0


@dataclass(slots=True)
class LossChange:
    """What a look shows that the one before it did not: {iteration: packets}."""

    lost: Counter[Iteration | None] = field(default_factory=Counter)
    healed: Counter[Iteration | None] = field(default_factory=Counter)
    """Came after all."""


class LostPackets:
    """Of one job, over all rings. Its own stay open as long as this is used."""

    def __init__(
        self,
        tables: Sequence[FlowTable],
        own: Sequence[Staging],
        others: Sequence[Sequence[Staging]] = (),
        *,
        first: bool = True,
    ) -> None:
        """tables, own: [ring]; others: [job][ring] of those behind the same ports. first: packets
        of connections that belong to no job are reported with this one."""
        self._tables, self._own, self._others, self._first = tables, own, others, first
        self._flows: dict[tuple[int, int], _Flow] = {}

    def look(self) -> LossChange:
        change = LossChange()
        for ring, table in enumerate(self._tables):
            records = table.flows()
            holed = (records["holes_used"] > 0) | (records["lost_holes"] > 0)
            known = [flow for of, flow in self._flows if of == ring and flow < len(records)]
            for flow in sorted({*map(int, np.flatnonzero(holed)), *known}):
                if self._told_here(ring, flow):
                    self._look_at(ring, flow, records[flow : flow + 1], change)
        return change

    def newest(self) -> Iteration | None:
        """The newest iteration that a packet came of by the plan of its flow; None: not known."""
        seen = [
            of
            for ring, table in enumerate(self._tables)
            for flow, record in enumerate(table.flows())
            if _planned(self._own[ring], flow)
            and record["next_psn"]
            and (of := self._iteration(ring, flow, int(record["next_psn"]) - 1))
        ]
        return max(seen, default=None)

    def _told_here(self, ring: int, flow: int) -> bool:
        if _planned(self._own[ring], flow):
            return True
        return self._first and not any(_planned(other[ring], flow) for other in self._others)

    def _look_at(self, ring: int, flow: int, view: np.ndarray, change: LossChange) -> None:
        record = view.copy()
        if not np.array_equal(record["holes"], view["holes"]):
            return  # the parser is at it: the next look
        have = self._flows.setdefault((ring, flow), _Flow())
        raw = b"".join(record[name].tobytes() for name in ("holes_used", "lost_holes", "holes"))
        if raw == have.raw and all(hole.told for hole in have.holes):
            have.next_psn = int(record["next_psn"][0])
            return
        used = int(record["holes_used"][0])
        now = [(int(h["start"]), int(h["stop"])) for h in record["holes"][0][:used]]
        lost = int(record["lost_holes"][0])
        fell = max(0, lost - have.lost)
        kept: list[PsnHole] = []
        for hole in have.holes:
            fell = self._gone(hole, now, fell, change)
            for start, stop in common((hole.start, hole.stop), now):
                kept += self._confirmed(ring, flow, hole, (start, stop), change)
        if fell:  # came into the list and left it since the last look
            oldest = now[0][0] if now else int(record["next_psn"][0])
            change.lost[self._between(ring, flow, have.next_psn, oldest)] += fell
        before = [(hole.start, hole.stop) for hole in have.holes]
        for span in now:
            for new in without(span, before):
                kept += [PsnHole(*piece) for piece in self._pieces(ring, flow, new)]
        kept.sort(key=lambda hole: hole.start)
        self._flows[ring, flow] = _Flow(raw, kept, lost, int(record["next_psn"][0]))

    def _gone(self, hole: PsnHole, now: Sequence[PsnSpan], fell: int, change: LossChange) -> int:
        """What of a hole is there no more came after all, but for the oldest of it, which fell out
        of the flow's list: so many are left."""
        gone = sum(stop - start for start, stop in without((hole.start, hole.stop), now))
        out = min(gone, fell)
        if hole.told:
            change.healed[hole.iteration] += gone - out
        else:
            change.lost[hole.iteration] += out
        return fell - out

    def _confirmed(
        self, ring: int, flow: int, hole: PsnHole, span: PsnSpan, change: LossChange
    ) -> list[PsnHole]:
        """Packets missing at a second look are reported; which step they belong to may be known by
        now."""
        if hole.told:
            return [PsnHole(*span, hole.iteration, told=True)]
        pieces = [(*span, hole.iteration)]
        if hole.iteration is None:
            pieces = self._pieces(ring, flow, span)
        for start, stop, iteration in pieces:
            if self._first or iteration is not None:
                change.lost[iteration] += stop - start
        return [PsnHole(*piece, told=True) for piece in pieces]

    def _between(self, ring: int, flow: int, begin: int, end: int) -> Iteration | None:
        """The iteration of packets that lie there; None where they may be of several."""
        of = self._iteration(ring, flow, begin)
        return of if of == self._iteration(ring, flow, end) else None

    def _pieces(
        self, ring: int, flow: int, span: PsnSpan
    ) -> list[tuple[int, int, Iteration | None]]:
        """A hole cut where one iteration ends and the next begins."""
        start, stop = span
        pieces: list[tuple[int, int, Iteration | None]] = []
        while start < stop and len(pieces) < PIECES_MAX:
            of = self._iteration(ring, flow, start)
            end = stop if of is None else self._end(ring, flow, (start, stop), of)
            pieces.append((start, end, of))
            start = end
        if start < stop:
            pieces.append((start, stop, None))
        return pieces

    def _end(self, ring: int, flow: int, span: PsnSpan, of: int) -> int:
        """One past the last PSN of a span, at whose start the iteration is `of`, that is of it."""
        low, high = span
        if self._iteration(ring, flow, high - 1) == of:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if self._iteration(ring, flow, middle) == of:
                low = middle
            else:
                high = middle
        return high

    def _iteration(self, ring: int, flow: int, psn: int) -> Iteration | None:
        found = self._own[ring].iteration_at(self._tables[ring], flow, psn)
        return None if found is None else Iteration(found)


def open_lost_packets(run: RunDir, rings: int, files: ExitStack) -> LostPackets:
    """Of a job, and by the first one of all that is of no job; files: closes what is opened.
    Raises RingError where one is not there yet."""
    first = not run.reader
    others = [one for one in all_run_dirs(run.port) if one.root != run.root] if first else []
    with ExitStack() as whole:
        own = [
            [whole.enter_context(Staging.open(one.staging(n))) for n in range(rings)]
            for one in (run, *others)
        ]
        tables = [whole.enter_context(FlowTable.open(run.flows(n))) for n in range(rings)]
        files.push(whole.pop_all())
    return LostPackets(tables, own[0], own[1:], first=first)


def _planned(staging: Staging, flow: int) -> bool:
    plan = staging.plans()[flow]
    return bool(plan["first_sends"] or plan["each_sends"])


def common(span: PsnSpan, others: Sequence[PsnSpan]) -> Iterator[PsnSpan]:
    """What of a span lies in others, which ascend and do not overlap."""
    for start, stop in others:
        low, high = max(start, span[0]), min(stop, span[1])
        if low < high:
            yield low, high


def without(span: PsnSpan, others: Sequence[PsnSpan]) -> Iterator[PsnSpan]:
    """What of a span lies in none of the others, which ascend and do not overlap."""
    at = span[0]
    for start, stop in common(span, others):
        if at < start:
            yield at, start
        at = stop
    if at < span[1]:
        yield at, span[1]
