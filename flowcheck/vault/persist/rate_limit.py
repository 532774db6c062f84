"""Rate limit, progress and stop signal of one transfer, shared by its threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Lock

from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_stores import STOPPED


class Stopped(StateError):
    """The transfer was stopped, since the process is ending. The next save does not send again what
    is already at the target."""

    def __init__(self) -> None:
        super().__init__(STOPPED())


class TransferPace:
    """Rate limit, progress and stop signal of one save. All methods may be called in any thread."""

    def __init__(self, limit_bytes_s: int | None = None) -> None:
        self._limit, self._next_s = limit_bytes_s, 0.0
        self._stop, self._lock = Event(), Lock()
        self.on_moved: Callable[[int], None] = lambda _: None
        self.moved_bytes = 0
        self.skipped_bytes = 0
        """Bytes that were at the target already."""
        self.moved_s = time.monotonic()
        """Time of the last progress (time.monotonic())."""

    def wait_to_send(self, count: int) -> None:
        """Waits until the rate limit allows `count` more bytes. Raises Stopped after `stop`."""
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

    def note_moved(self, count: int) -> None:
        """Notes that `count` bytes were transferred."""
        with self._lock:
            self.moved_bytes += count
            self.moved_s = time.monotonic()
        self.on_moved(count)

    def note_skipped(self, count: int) -> None:
        """Notes that `count` bytes are at the target already."""
        with self._lock:
            self.skipped_bytes += count
            self.moved_s = time.monotonic()
        self.on_moved(count)

    def heartbeat(self) -> None:
        """Notes progress other than transferred bytes. Raises Stopped after `stop`."""
        self.moved_s = time.monotonic()
        if self._stop.is_set():
            raise Stopped

    def stop(self) -> None:
        """Stops the transfer: `wait_to_send` and `heartbeat` raise Stopped from now on."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()
