"""How long a search may take, and that it says so while it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

MOST_S = 30.0
"""Of one search; beyond, the best that was found stands, as beyond its steps."""
QUIET_S = 3.0
"""Between two lines on stderr, and before the first."""


class Patience:
    """Of one search of at most so many steps."""

    def __init__(self, most_steps: int, clock: Callable[[], float] = monotonic) -> None:
        self.most_steps = most_steps
        self.clock = clock
        self.started_s = self.said_s = clock()

    def spent(self, steps: int, pairs: int | None) -> bool:
        """Whether to end after so many steps. pairs: of the best choice so far."""
        if steps > self.most_steps:
            return True
        now_s = self.clock()
        if now_s - self.said_s >= QUIET_S:
            self.said_s = now_s
            best = "none yet" if pairs is None else f"{pairs} pairs"
            sys.stderr.write(
                f"searching ports for {now_s - self.started_s:.0f} s: {steps:,} of at most "
                f"{self.most_steps:,} steps, best choice: {best}; ends after {MOST_S:g} s\n"
            )
        return now_s - self.started_s > MOST_S
