"""sd_notify(3): tells systemd that a chain is up, alive, still writing or stopping.

Without NOTIFY_SOCKET in the environment nothing happens: a chain in a terminal has no service
manager.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from flowcheck.stages.supervisor.process_progress import LEAST_BYTES, LEAST_CPU_S, process_work

EXTEND_S = 120
"""Seconds by which systemd's limit is extended while work goes on: longer than anything stands
still that is still at work (stage_process.py, STILL_LIMIT_S), twice. A choice."""
LOOK_S = 5.0
"""Seconds between two notices to systemd. A choice: far below EXTEND_S."""


class SdNotifier:
    """Messages of one process to its service manager. Sending never fails or waits: a manager that
    does not listen must not end a chain."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        *,
        look_s: float = LOOK_S,
        moved: tuple[int, float] = (LEAST_BYTES, LEAST_CPU_S),
    ) -> None:
        """look_s: between two looks at whether something moves; moved: bytes read and written, or
        seconds computed, meanwhile that count as such. environment: NOTIFY_SOCKET, WATCHDOG_USEC
        and WATCHDOG_PID as in sd_watchdog_enabled(3)."""
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        told = environment.get("WATCHDOG_USEC", "0") if mine else "0"
        self._every_s = int(told) / 1e6 / 4 if told.isdecimal() else 0.0
        self._look_s, self._moved = look_s, moved
        self._said_s, self._ready = -float("inf"), False

    def turn(self, *, up: bool) -> None:
        """Called in every turn of the supervisor's loop. up: every stage has greeted."""
        if up and not self._ready:
            self._ready = True
            self._send("READY=1", "STATUS=every stage is up")
        now_s = time.monotonic()
        if self._every_s and now_s - self._said_s >= self._every_s:
            self._said_s = now_s
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stages have ended")

    @contextmanager
    def busy(self, status: str, *others: int) -> Iterator[None]:
        """While this process, or others that it waits for, write for as long as it takes: more time
        as long as bytes or the processor move. others: their pids. What stands still is not helped:
        its replica stays in memory."""
        if not self._address:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._tell, args=(status, done, others), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _tell(self, status: str, done: threading.Event, others: Sequence[int]) -> None:
        bytes_least, cpu_least_s = self._moved
        before, more = _done(others), (f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}", "WATCHDOG=1")
        self._send(f"STATUS={status}", *more)
        pause_s = min(self._look_s, self._every_s or self._look_s)
        while not done.wait(pause_s):
            now = _done(others)
            if now[0] - before[0] >= bytes_least or now[1] - before[1] >= cpu_least_s:
                before = now
                self._send(*more)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)


def _done(others: Sequence[int]) -> tuple[int, float]:
    """Bytes and seconds of this process and of others."""
    of = [process_work(pid) for pid in (os.getpid(), *others)]
    return sum(moved for moved, _ in of), sum(spent_s for _, spent_s in of)
