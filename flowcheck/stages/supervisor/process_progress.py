"""Whether a process makes progress, by bytes moved and processor time in /proc: a process that
computes or reads does not stand still."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

LEAST_BYTES, LEAST_CPU_S = 64 << 10, 0.2
"""Bytes, and seconds of processor time: a process that reads, writes or computes at all does more
within seconds. A choice: more takes a slow process for a hung one, less the reverse."""
LOOK_S = 1.0
"""Seconds between two looks at a process. A choice: shorter costs processor time."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_work(pid: int) -> tuple[int, float]:
    """Bytes a process has read and written (rchar and wchar), and seconds it has computed: proc(5),
    /proc/PID/io and fields 14 and 15 of /proc/PID/stat. Zeros of one that is gone."""
    own, moved, spent_s = Path(f"/proc/{pid}"), 0, 0.0
    with suppress(OSError):
        told = re.findall(r"^[rw]char: (\d+)", (own / "io").read_text(), re.MULTILINE)
        moved = sum(map(int, told))
    with suppress(OSError):
        fields = (own / "stat").read_text().rpartition(")")[2].split()
        spent_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return moved, spent_s


class ProgressTimeout:
    """Waits for one process until it stands still, or a time limit whatever it does."""

    def __init__(self, pid: int, *, still_s: float, limit_s: float) -> None:
        """still_s: without LEAST_BYTES and LEAST_CPU_S for so long it stands still."""
        self._pid, self._still_s = pid, still_s
        now = time.monotonic()
        self._end_s, self._moved_s, self._looked_s = now + limit_s, now, now
        self._done = process_work(pid)

    def is_over(self) -> bool:
        """Whether the wait is over. Cheap enough for each turn of a loop: it looks every LOOK_S."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return False
        self._looked_s, done = now, process_work(self._pid)
        if done[0] - self._done[0] >= LEAST_BYTES or done[1] - self._done[1] >= LEAST_CPU_S:
            self._done, self._moved_s = done, now
        return now - self._moved_s > self._still_s or now > self._end_s
