"""When the persist stage looks whether all stores have their blocks of all saves."""

from __future__ import annotations

import time
from threading import Thread

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.vault.erasure.scrub import Scrubber, ScrubResult
from flowcheck.vault.persist.rate_limit import Stopped, TransferPace

LOOK_EVERY_S = 60.0
"""Seconds between two looks while a save lacks blocks. A choice: shorter asks a store that is down
more often, longer mends later once it is back."""
CALM_EVERY_S = 600.0
"""The same while none does."""


class ScrubTurns:
    """Looks in a thread of its own, one at a time, between saves: a save stops it."""

    def __init__(self, scrubber: Scrubber, every_hours: float, limit_bytes_s: int) -> None:
        self._scrubber, self._every_s = scrubber, every_hours * 3600
        self._limit = limit_bytes_s
        self._next_s = time.monotonic()
        self._thread: Thread | None = None
        self._pace = TransferPace()
        self._of_blocks = False
        self.result: ScrubResult | None = None
        """Of a look that came to its end and was not taken yet."""
        self.failed: Finding | None = None
        """Why it came to none."""

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Asks a look to end; the next one goes on where it was."""
        self._pace.stop()
        self._next_s = min(self._next_s, time.monotonic())

    def join(self, limit_s: float) -> None:
        if self._thread is not None:
            self._thread.join(limit_s)

    def hurry(self) -> None:
        """A save lacks blocks: the next look is due in LOOK_EVERY_S at most."""
        self._next_s = min(self._next_s, time.monotonic() + LOOK_EVERY_S)

    def begin_if_due(self, whole_s: float) -> bool:
        """Begins a look, if one is due. whole_s: when all blocks were read last (time.time())."""
        if self.runs or self.result is not None or time.monotonic() < self._next_s:
            return False
        self._of_blocks = time.time() - whole_s >= self._every_s
        self._pace = TransferPace(self._limit)
        self._next_s = time.monotonic() + CALM_EVERY_S
        self.failed = None
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()
        return True

    def take(self) -> tuple[ScrubResult, bool] | None:
        """(what the look found, whether it read all blocks), once; None: there is nothing new."""
        if self.runs or self.result is None:
            return None
        taken, self.result = self.result, None
        if taken.lacking:
            self.hurry()
        return taken, self._of_blocks

    def _look(self) -> None:
        try:
            self.result = self._scrubber.look(self._pace, every_block=self._of_blocks)
        except Stopped:
            pass
        except FlowCheckError as error:
            self.failed = error.finding
            self.hurry()
        except Exception as error:
            self.failed = ERROR_TEXT(kind=type(error).__name__, text=plain_error_text(error))
            self.hurry()
