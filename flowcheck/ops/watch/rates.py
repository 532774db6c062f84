"""Counters a second, over the last seconds of looks."""

from __future__ import annotations

import time
from collections import deque

SPAN_S = 5.0
LEAST_S = 0.2


class Rates:
    """Each look's counters are held against those of a look about SPAN_S before."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque()

    def look(self, counters: dict[str, int], now_s: float | None = None) -> dict[str, float]:
        """{name: a second}; of those that have been there for LEAST_S and did not fall, as they do
        when a chain begins anew."""
        at_s = time.monotonic() if now_s is None else now_s
        self._looks.append((at_s, dict(counters)))
        while len(self._looks) > 2 and at_s - self._looks[1][0] >= SPAN_S:
            self._looks.popleft()
        began_s, before = self._looks[0]
        span_s = at_s - began_s
        if span_s < LEAST_S:
            return {}
        return {
            name: (value - before[name]) / span_s
            for name, value in counters.items()
            if name in before and value >= before[name]
        }
