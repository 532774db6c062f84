"""Who scrapes a watcher is told that its chain ends in order, before there is nobody to tell it.

A scrape that finds nobody cannot know whether a chain was killed or taken down.
"""

from __future__ import annotations

import time

EVERY_MAX_S = 2.5
"""Who comes less often is not waited for: an end takes 4 s at most (stages/chain/supervisor.py)."""


class Scrapes:
    """Of all who scrape; times are monotonic."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._every_s: float | None = None
        self._told = False

    def note(self, *, over: bool, now_s: float | None = None) -> None:
        """One was answered; over: that the chain ends, or has ended, in order."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._last_s is not None:
            self._every_s = now_s - self._last_s
        self._last_s, self._told = now_s, over

    def wait_s(self, now_s: float | None = None) -> float:
        """For how long to go on, as the next one may come in that time and has to be told; 0: for
        nobody."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._told or self._last_s is None or self._every_s is None:
            return 0.0
        if self._every_s > EVERY_MAX_S:
            return 0.0
        return max(0.0, self._last_s + 1.5 * self._every_s - now_s)
