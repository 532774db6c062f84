"""Packets lost in a row: the length of bursts that `flowcheck plan-loss` asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np


class LossRuns(msgspec.Struct, kw_only=True):
    """Gaps in the sequence numbers of queue pairs, between the first packet and the last."""

    runs: int = 0
    """Gaps that the flow table lists: the latest of each queue pair."""
    packets: int = 0
    """Missing packets in them."""
    longest: int = 0
    """Packets of the longest of them."""
    unlisted_packets: int = 0
    """Missing packets of earlier gaps, for which a queue pair's list has no place any more: of how
    many, and how long they were, is not known."""

    @property
    def mean(self) -> float:
        """Packets of a gap on average; of none, 0."""
        return self.packets / self.runs if self.runs else 0.0

    def add(self, other: LossRuns) -> None:
        self.runs += other.runs
        self.packets += other.packets
        self.longest = max(self.longest, other.longest)
        self.unlisted_packets += other.unlisted_packets


def runs_of_flow(record: np.void, earlier: np.void | None) -> LossRuns:
    """Those of one record of a flow table; earlier: the same record when the watch began, whose
    gaps are left out."""
    since = 0 if earlier is None else int(earlier["next_psn"])
    found = [stop - start for start, stop in _gaps(record) if start >= since]
    unlisted = int(record["lost_holes"])
    if earlier is not None:
        unlisted -= int(earlier["lost_holes"]) + _left_the_list(record, earlier)
    return LossRuns(
        runs=len(found),
        packets=sum(found),
        longest=max(found, default=0),
        unlisted_packets=max(0, unlisted),
    )


def _gaps(record: np.void) -> list[tuple[int, int]]:
    """[start, stop) of each gap that is listed, ascending."""
    listed = record["holes"][: int(record["holes_used"])]
    return [(int(one["start"]), int(one["stop"])) for one in listed]


def _left_the_list(record: np.void, earlier: np.void) -> int:
    """Packets of gaps that were listed earlier and, as a list loses its first ones, no more."""
    first = next((start for start, _ in _gaps(record)), int(record["next_psn"]))
    return sum(stop - start for start, stop in _gaps(earlier) if start < first)


def joined_runs(each: Iterable[LossRuns]) -> LossRuns:
    """Of several links."""
    found = LossRuns()
    for one in each:
        found.add(one)
    return found
