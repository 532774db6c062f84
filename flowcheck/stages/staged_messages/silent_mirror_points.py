"""Which mirror points bring nothing any more while others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowcheck.plane.extraction.payload_extractor import Extractor

SILENT_S = 10.0
"""Seconds in which nothing comes from a live mirror point: it may have died. A choice: longer holds
lost steps back, shorter gives up what a slow mirror would still bring."""


class SilentMirrorPoints:
    """Watches the rings of a run, from the first look on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heads: dict[int, tuple[int, float]] = {}
        """{ring: its head, and since when it has not moved}"""

    def look(self, extractors: Sequence[Extractor]) -> frozenset[int]:
        """Rings that brought nothing for SILENT_S while others did, and whose frames are all
        extracted."""
        now_s = self._clock()
        silent = set()
        for number, extractor in enumerate(extractors):
            ring = extractor.ring
            head = ring.head
            known = self._heads.get(number)
            if known is None or head != known[0] or ring.tail != head:
                self._heads[number] = (head, now_s)
            elif now_s - known[1] >= SILENT_S and not ring.drained:
                silent.add(number)
        return frozenset(silent) if len(silent) < len(extractors) else frozenset()
