"""Rate limit, progress and stop signal of one transfer, shared by its threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock

from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_stores import STOPPED


class Stopped(StateError):
    """The process was told to end; the next save does not send again what was sent so far."""

    def __init__(self) -> None:
        super().__init__(STOPPED())


class TransferPace:
    """Bytes of one save, in whichever threads they move."""

    def __init__(self, limit_bytes_s: int | None = None) -> None:
        self._limit, self._next_s = limit_bytes_s, 0.0
        self._stop, self._lock = Event(), Lock()
        self.on_moved: Callable[[int], None] = lambda _: None
        self.moved_bytes = 0
        self.skipped_bytes = 0
        """Were there already."""
        self.moved_s = time.monotonic()
        """When something last did."""

    def take(self, count: int) -> None:
        """Waits until so many bytes may go. Raises Stopped where none may any more."""
        if self._stop.is_set():
            raise Stopped
        if self._limit is None:
            return
        with self._lock:
            now = time.monotonic()
            at = max(self._next_s, now)
            self._next_s = at + count / self._limit
        while (left_s := at - time.monotonic()) > 0:
            self.moved_s = time.monotonic()
            if self._stop.wait(min(left_s, 1.0)):
                raise Stopped

    def moved(self, count: int) -> None:
        """So many went."""
        with self._lock:
            self.moved_bytes += count
            self.moved_s = time.monotonic()
        self.on_moved(count)

    def skipped(self, count: int) -> None:
        """So many need not go."""
        with self._lock:
            self.skipped_bytes += count
            self.moved_s = time.monotonic()
        self.on_moved(count)

    def living(self) -> None:
        """Something else happened. Raises Stopped where nothing should."""
        self.moved_s = time.monotonic()
        if self._stop.is_set():
            raise Stopped

    def stop(self) -> None:
        """From any thread: nothing goes any more."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()
