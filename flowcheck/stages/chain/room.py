"""The lines of events.jsonl as far as there is room, and what of all records had none.

Of what lacks there an event tells, in front of the first line that is written again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from flowcheck.messages import Unwritten as Told
from flowcheck.stages.bounded import EVENTS_BYTES, append_line
from flowcheck.stages.chain.events import LINES, Event, Kind, line_of
from flowcheck.stages.unwritten import Unwritten, again


class Room:
    """Of one run: events here, and what its updater says of steps."""

    def __init__(self, events: Path, say: Callable[[str], None]) -> None:
        self._events, self._say = events, say
        self._own = Unwritten(events)
        self._lack: Counter[str] = Counter()
        """Lines of other files, since there was room for them last."""
        self._full: dict[str, str] = {}
        self._others = 0

    @property
    def lines(self) -> int:
        """Of all files, that found no room since the chain began."""
        return self._own.count + self._others

    @property
    def full(self) -> tuple[str, ...]:
        """A sentence for each file that has no room just now."""
        return tuple(sentence for sentence in (self._own.full, *self._full.values()) if sentence)

    def append(self, line: bytes) -> bool:
        """Writes a line where there is room; whether the end of a lack was told before it."""
        return self._put([line])

    def look(self) -> bool:
        """Tells the end of a lack without a line behind it; whether it did."""
        return bool(self._own.lacks) and self._put([])

    def _put(self, lines: list[bytes]) -> bool:
        lacks, was_full = self._own.lacks, bool(self._own.full)
        if lacks:
            why = again(str(self._events), lacks)
            over = Event(kind=Kind.NOTE, time_ns=time.time_ns(), count=lacks, what=LINES, why=why)
            lines = [line_of(over, {}), *lines]
        told = len(lines) - bool(lacks)

        def write() -> None:
            append_line(self._events, b"\n".join(lines), EVENTS_BYTES)

        if not self._own.attempt(write, told):
            if not was_full:
                self._say(self._own.full)
            return False
        if lacks:
            self._own.lacks = 0
            self._say(again(str(self._events), lacks))
        return bool(lacks)

    def elsewhere(self, told: Told) -> Event | None:
        """What a stage says of a file of its own; the event of there being room again."""
        self._others += told.lines
        self._lack[told.file] += told.lines
        if told.full:
            if told.file not in self._full:
                self._say(told.full)
            self._full[told.file] = told.full
            return None
        self._full.pop(told.file, None)
        lacks = self._lack.pop(told.file)
        why = again(told.file, lacks)
        self._say(why)
        return Event(kind=Kind.NOTE, stage=told.stage, count=lacks, what=LINES, why=why)
