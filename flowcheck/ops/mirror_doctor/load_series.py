"""Bytes that came in each millisecond: peaks, runs at line rate, and what a buffer must hold."""

from __future__ import annotations

from array import array

import msgspec
import numpy as np
from numpy.typing import NDArray

WINDOW_NS = 1_000_000
"""Nanoseconds of a window. Time stamps of a live capture are taken when frames are polled, about
every 50 us; the windows are wide against that."""
LONG_WINDOWS = 100
"""Windows of the longer peak, 100 ms."""
LINK_OVERHEAD_BYTES = 24
"""Bytes of a frame on the link that no capture has: preamble 8, frame check 4, gap 12 (IEEE
802.3)."""
LINE_SHARE = 0.9
"""Share of the port's speed from which a window counts as line rate. A choice: gaps between bursts
of one window take the rest."""
WINDOWS_MOST = 1 << 20
"""Windows that are kept: 17 minutes of traffic without a pause, 16 MiB. A choice that bounds
memory."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How a port was loaded. Rates in Gb/s with preamble, frame check and gap of each frame;
    bytes without."""

    bytes: int
    mean_gbps: float
    peak_1ms_gbps: float | None
    """None, as the four below: only bytes of 100 ms are known."""
    peak_100ms_gbps: float
    busy_run_bytes: int | None
    """Of the longest run of milliseconds that all had traffic."""
    busy_run_ms: int | None
    line_run_bytes: int | None
    """Of the longest run of milliseconds at 90 % of the port's speed and more; None: the speed is
    unknown."""
    line_run_ms: int | None
    backlog_bytes: int | None
    """The most that waits before a reader that takes the mean rate."""
    complete: bool
    """False: there were more windows than are kept; the rest is in `bytes` alone."""


class LoadSeries:
    """The sums of all windows that had a frame, in order of time."""

    def __init__(self) -> None:
        self._windows, self._bytes, self._frames = array("q"), array("q"), array("q")
        self._last_ns = 0
        self.first_ns = 0
        self.bytes = 0
        self.complete = True

    @property
    def last_ns(self) -> int:
        return self._last_ns

    def add(self, stamps_ns: NDArray[np.uint64], frame_bytes: NDArray[np.uint32]) -> None:
        """Frames in the order in which they came. A stamp that goes back counts as the one before
        it."""
        if not stamps_ns.size:
            return
        sizes = frame_bytes.astype(np.int64)
        self.bytes += int(sizes.sum())
        # Past 2^63 no clock is: a file may claim anything.
        stamps = np.minimum(stamps_ns, np.uint64(2**63 - 1)).astype(np.int64)
        self.first_ns = self.first_ns or int(stamps[0])
        stamps = np.maximum.accumulate(np.maximum(stamps, self._last_ns))
        self._last_ns = int(stamps[-1])
        windows = stamps // WINDOW_NS
        begins = np.flatnonzero(np.diff(windows, prepend=windows[0] - 1))
        sums = np.add.reduceat(sizes, begins)
        counts = np.diff(begins, append=windows.size)
        self._append(windows[begins], sums, counts)

    def _append(
        self, windows: NDArray[np.int64], sums: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        begin = 0
        if self._windows and self._windows[-1] == int(windows[0]):
            self._bytes[-1] += int(sums[0])
            self._frames[-1] += int(counts[0])
            begin = 1
        stop = begin + max(0, WINDOWS_MOST - len(self._windows))
        self.complete &= stop >= windows.size
        self._windows.extend(windows[begin:stop].tolist())
        self._bytes.extend(sums[begin:stop].tolist())
        self._frames.extend(counts[begin:stop].tolist())

    def load(self, seconds: float | None, speed_mbps: int | None) -> Load:
        """The figures. seconds: how long the port was watched; None: from the first frame to the
        last. speed_mbps: of the port, None where it is unknown."""
        windows = np.array(self._windows, np.int64)
        sums = np.array(self._bytes, np.int64)
        on_link = sums + LINK_OVERHEAD_BYTES * np.array(self._frames, np.int64)
        if seconds is None:
            seconds = (self._last_ns - self.first_ns + WINDOW_NS) / 1e9 if windows.size else 0.0
        line = None
        if speed_mbps:
            line_bytes = LINE_SHARE * speed_mbps * 1e6 / 8 / 1000
            line = _longest_run(windows, sums, on_link >= line_bytes)
        busy = _longest_run(windows, sums, sums > 0)
        long_windows, long_begins = np.unique(windows // LONG_WINDOWS, return_index=True)
        long_sums = np.add.reduceat(on_link, long_begins) if long_windows.size else on_link
        return Load(
            bytes=self.bytes,
            mean_gbps=_gbps(int(on_link.sum()), seconds),
            peak_1ms_gbps=_gbps(int(on_link.max(initial=0)), 0.001),
            peak_100ms_gbps=_gbps(int(long_sums.max(initial=0)), 0.1),
            busy_run_bytes=busy[0],
            busy_run_ms=busy[1],
            line_run_bytes=None if line is None else line[0],
            line_run_ms=None if line is None else line[1],
            backlog_bytes=_backlog(windows, sums, seconds),
            complete=self.complete,
        )


def _gbps(size: int, seconds: float) -> float:
    return round(size * 8 / seconds / 1e9, 6) if seconds > 0 else 0.0


def _longest_run(
    windows: NDArray[np.int64], sums: NDArray[np.int64], taken: NDArray[np.bool_]
) -> tuple[int, int]:
    """(bytes, windows) of the run of adjacent windows with most bytes, of those that are taken."""
    windows, sums = windows[taken], sums[taken]
    if not windows.size:
        return 0, 0
    begins = np.flatnonzero(np.diff(windows, prepend=windows[0] - 2) > 1)
    runs = np.add.reduceat(sums, begins)
    lengths = np.diff(begins, append=windows.size)
    most = int(runs.argmax())
    return int(runs[most]), int(lengths[most])


def _backlog(windows: NDArray[np.int64], sums: NDArray[np.int64], seconds: float) -> int:
    """The most bytes that wait before a reader of the mean rate, which is never ahead of what has
    come (Lindley's recursion, in windows)."""
    if not windows.size or seconds <= 0:
        return 0
    mean = float(sums.sum()) / (seconds * 1000)
    drained = mean * (windows - windows[0]).astype(np.float64)
    come = np.cumsum(sums).astype(np.float64)
    floor = np.minimum.accumulate(come - sums - drained)
    return int((come - drained - floor).max())
