"""Detects that a job has sent nothing for longer than its step time explains."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from statistics import median

from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import counter_values

SILENCE_LEAST_S = 30.0
"""Seconds before which a job is not called silent. A choice: longer tells of a dead job later,
shorter tells of each evaluation or checkpoint."""
SILENCE_STEPS = 10
"""Median steps for which a job may send nothing. A choice, as SILENCE_LEAST_S, for jobs with long
steps."""
SILENCE_WITHOUT_STEP_TIME_S = 300.0
"""Seconds for a job whose step's time is not known yet. A choice: start-up and compilation take
minutes."""
MEDIAN_GAPS = 33
"""Times between whole steps, the newest, of which the median is taken; odd, so that it is one of
them. A choice: more is steadier, fewer follow a changed pace sooner."""
PLACED_COUNTERS = ("placed_packets", "duplicate_bytes", "conflict_bytes")
STAGED_COUNTERS = ("staged_packets", "held_packets")
"""Extract counters (fc_counters.h): packets of flows with a plan, and packets that may belong to a
later incarnation."""


class SilenceChange(StrEnum):
    BEGAN = "began"
    ENDED = "ended"


class SilenceDetector:
    """The detector of one job, by the counters of its own extractor; to be called every half second
    or so. Times are CLOCK_MONOTONIC."""

    def __init__(self, now_ns: int | None = None) -> None:
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        self.frame_ns: list[int] = []
        """[ring] of the look that showed the last new frame; 0: none came."""
        self.placed_ns = self.staged_ns = now_ns
        """Of the look that showed the last packet of a plan, and of none."""
        self.silent = False
        self.lasted_s = 0.0
        """How long the last silence was, or is."""
        self._heads: list[int] = []
        self._tails: list[int] = []
        self._placed = self._staged = 0
        self._gaps: deque[float] = deque(maxlen=MEDIAN_GAPS)
        self._whole_ns: int | None = None
        self._catches_up, self._caught_up_ns = True, 0
        self._came: list[int] | None = None
        """[ring] what had come when a plan was new; None: not looked at yet."""

    @property
    def limit_s(self) -> float:
        """Seconds for which nothing may arrive."""
        return (
            max(SILENCE_LEAST_S, SILENCE_STEPS * median(self._gaps))
            if self._gaps
            else SILENCE_WITHOUT_STEP_TIME_S
        )

    @property
    def step_s(self) -> float:
        """Median time of the job's steps, in seconds; 0: unknown."""
        return median(self._gaps) if self._gaps else 0.0

    @property
    def last_packet_ns(self) -> int:
        """When traffic of the job last arrived."""
        return max(self.placed_ns, self.staged_ns)

    @property
    def unplaced_s(self) -> float:
        """Seconds for which only packets without a plan arrived, since the last one with a plan:
        those of a later incarnation that is not proved yet, or another job's writes."""
        return max(0.0, (self.staged_ns - self.placed_ns) / 1e9)

    def learned(self) -> None:
        """A job, or a later incarnation of it, is followed from now on. Steps that arrived before
        become complete all at once, and tell nothing about the step time."""
        self._catches_up, self._came, self._whole_ns = True, None, None

    def step_completed(self, time_ns: int) -> None:
        """A step became complete at this time."""
        if self._catches_up or time_ns <= self._caught_up_ns:
            return
        if self._whole_ns is not None and time_ns > self._whole_ns:
            self._gaps.append((time_ns - self._whole_ns) / 1e9)
        self._whole_ns = time_ns

    def check(
        self,
        rings: Sequence[FrameRing],
        *,
        counts: bool,
        unread: bool = False,
        now_ns: int | None = None,
    ) -> SilenceChange | None:
        """Returns what began or ended with this look.

        rings: as the job's own extractor reads them; counts: a job is learned, and a source goes
        on; unread: earlier frames are still to be read.
        """
        wall_ns = time.time_ns() if now_ns is None else now_ns
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        heads, tails = [ring.head for ring in rings], [ring.tail for ring in rings]
        if len(heads) != len(self._heads):
            self._heads, self._tails = [0] * len(heads), tails
            self.frame_ns = [0] * len(heads)
        for ring, head in enumerate(heads):
            if head != self._heads[ring]:
                self.frame_ns[ring] = now_ns
        waits = any(
            head > tail and tail == before
            for head, tail, before in zip(heads, tails, self._tails, strict=True)
        )  # the extractor does not get on: what it has not read may be the job's
        placed, staged = _sums(rings)
        if placed != self._placed or waits:
            self.placed_ns = now_ns
        if staged != self._staged:
            self.staged_ns = now_ns
        self._heads, self._tails, self._placed, self._staged = heads, tails, placed, staged
        if self._catches_up:
            self._came = self._came or heads
            waits = any(t < h for t, h in zip(tails, self._came, strict=True))
            self._catches_up, self._caught_up_ns = unread or waits, wall_ns
        return self._turned(now_ns, counts=counts)

    def _turned(self, now_ns: int, *, counts: bool) -> SilenceChange | None:
        silent_s = (now_ns - self.last_packet_ns) / 1e9
        if counts and silent_s > self.limit_s:
            began, self.silent, self.lasted_s = not self.silent, True, silent_s
            return SilenceChange.BEGAN if began else None
        was, self.silent = self.silent, False
        return SilenceChange.ENDED if was else None


def _sums(rings: Sequence[FrameRing]) -> tuple[int, int]:
    each = []
    for ring in rings:
        commit = ring.extract_commit()
        each.append(counter_values(commit.counters))
    placed = sum(one[name] for one in each for name in PLACED_COUNTERS)
    return placed, sum(one[name] for one in each for name in STAGED_COUNTERS)
