"""Packets missing by sequence number (PSN holes) in all flows, each with the iteration it belongs
to.

A hole in a flow's sequence numbers shows which packets never arrived, and the flow's plan shows
which iteration they belong to. So a loss is counted for its own step, however late it is found.
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
    """Packets missing in all flows of a ring, between packets that were seen. Packets after the
    newest one may still be on their way, and count as lost only once a later one has arrived. The
    parser may change a record during the call; that record may then be counted wrongly."""
    records = flows.flows()
    return int(_each(records).sum()) if len(records) else 0


def _each(records: NDArray[np.void]) -> NDArray[np.int64]:
    """[flows] the missing packets of each: its holes (fc_flow.h), and those that no longer fitted
    into its list of holes."""
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
    """PSNs of a flow that were missing at one look."""

    start: int
    stop: int
    iteration: Iteration | None
    """The iteration that they belong to; None: unknown."""
    told: bool = False
    """Whether they were missing at a later look as well, and so reported."""


@dataclass(slots=True)
class _Flow:
    raw: bytes = b""
    holes: list[PsnHole] = field(default_factory=list)
    lost: int = 0
    """Packets of holes that did not fit into the flow's list."""
    next_psn: int = 0


@dataclass(slots=True)
class LossChange:
    """Changes from one look to the next, as {iteration: packets}."""

    lost: Counter[Iteration | None] = field(default_factory=Counter)
    healed: Counter[Iteration | None] = field(default_factory=Counter)
    """Packets that arrived after all."""


class LostPackets:
    """Lost packets of one job, over all rings. Keeps the job's own shared memory open while it is
    used."""

    def __init__(
        self,
        tables: Sequence[FlowTable],
        own: Sequence[Staging],
        others: Sequence[Sequence[Staging]] = (),
        *,
        first: bool = True,
    ) -> None:
        """tables, own: [ring]; others: [job][ring] of other jobs on the same ports. first: packets
        of connections that belong to no job are reported with this one."""
        self._tables, self._own, self._others, self._first = tables, own, others, first
        self._flows: dict[tuple[int, int], _Flow] = {}

    def check(self) -> LossChange:
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
        """The newest iteration that a packet arrived for, by the plan of its flow; None:
        unknown."""
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
            for start, stop in span_overlap((hole.start, hole.stop), now):
                kept += self._confirmed(ring, flow, hole, (start, stop), change)
        if fell:  # came into the list and left it since the last look
            oldest = now[0][0] if now else int(record["next_psn"][0])
            change.lost[self._between(ring, flow, have.next_psn, oldest)] += fell
        before = [(hole.start, hole.stop) for hole in have.holes]
        for span in now:
            for new in span_difference(span, before):
                kept += [PsnHole(*piece) for piece in self._pieces(ring, flow, new)]
        kept.sort(key=lambda hole: hole.start)
        self._flows[ring, flow] = _Flow(raw, kept, lost, int(record["next_psn"][0]))

    def _gone(self, hole: PsnHole, now: Sequence[PsnSpan], fell: int, change: LossChange) -> int:
        """Counts packets of a hole that is no longer there as arrived, except for the oldest ones,
        which fell out of the flow's list. Returns how many of those are left."""
        gone = sum(stop - start for start, stop in span_difference((hole.start, hole.stop), now))
        out = min(gone, fell)
        if hole.told:
            change.healed[hole.iteration] += gone - out
        else:
            change.lost[hole.iteration] += out
        return fell - out

    def _confirmed(
        self, ring: int, flow: int, hole: PsnHole, span: PsnSpan, change: LossChange
    ) -> list[PsnHole]:
        """Reports packets that are missing at a second look; by then it may be known which step
        they belong to."""
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
        """The iteration of packets in this range; None where they may belong to several."""
        of = self._iteration(ring, flow, begin)
        return of if of == self._iteration(ring, flow, end) else None

    def _pieces(
        self, ring: int, flow: int, span: PsnSpan
    ) -> list[tuple[int, int, Iteration | None]]:
        """Cuts a hole where one iteration ends and the next begins."""
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
        """One past the last PSN of a span that belongs to iteration `of`, which its first PSN
        belongs to."""
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
    """The lost packets of a job; the first job also gets those that belong to no job. files: closes
    what is opened. Raises RingError where shared memory does not exist yet."""
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


def span_overlap(span: PsnSpan, others: Sequence[PsnSpan]) -> Iterator[PsnSpan]:
    """The parts of a span that lie in `others`, which ascend and do not overlap."""
    for start, stop in others:
        low, high = max(start, span[0]), min(stop, span[1])
        if low < high:
            yield low, high


def span_difference(span: PsnSpan, others: Sequence[PsnSpan]) -> Iterator[PsnSpan]:
    """The parts of a span that lie in none of `others`, which ascend and do not overlap."""
    at = span[0]
    for start, stop in span_overlap(span, others):
        if at < start:
            yield at, start
        at = stop
    if at < span[1]:
        yield at, span[1]
