"""Retries with backoff for downloads, with a limit, and a message at the first failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from flowcheck.errors import StateError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.findings.finding import Finding
from flowcheck.vault.download.download_source import ServerBusy, TransientError

TRIES = 8
"""Most tries of one request. A choice: more delays the error of a server that is down."""
WAIT_FIRST_S, WAIT_MAX_S = 0.2, 10.0
"""Seconds before the first retry, doubled with each further one, and the longest such wait. A
choice: shorter loads a server that is down, longer resumes later."""
BUSY_S = 600.0
"""Seconds for which a server may refuse a request because it is busy. A choice: longer delays the
error."""
Told = TypeVar("Told")
ReportRetry = Callable[[str], None]


class RetryPolicy:
    """The retries of all threads that download from one source."""

    def __init__(self, url: str, said: ReportRetry) -> None:
        self._url, self._said, self._lock = url, said, Lock()
        self._told: Finding | None = None

    def tell(self, remark: Finding) -> None:
        """Says something of the source besides that it is asked again."""
        self._said(f"{self._url}: {remark}")

    def retry(self, question: Callable[[], Told], stop: Event | None = None) -> Told:
        """Calls `question` until it succeeds, and returns its answer. Raises StateError after too
        many failures, or when `stop` is set."""
        waiting = stop or Event()
        until_s, failed = time.monotonic() + BUSY_S, 0
        while True:
            try:
                answer = question()
            except ServerBusy as error:
                last: TransientError = error
                wait_s = random.uniform(0.2, 2.0)  # so that not all come back at once
                if time.monotonic() > until_s:
                    raise StateError(
                        downloads.BUSY(url=self._url, seconds=round(BUSY_S), error=last)
                    ) from last
                self._report(last, f"retrying for at most {BUSY_S:.0f} s")
            except TransientError as error:
                last, wait_s = error, _wait_s(failed)
                failed += 1
                if failed >= TRIES:
                    raise StateError(
                        downloads.TRIED(url=self._url, tries=TRIES, error=last)
                    ) from last
                left_s = sum(_wait_s(n) for n in range(failed - 1, TRIES - 1))
                self._report(last, f"{TRIES - failed} more tries within {left_s:.0f} s")
            else:
                self._report(None, "answers again")
                return answer
            if waiting.wait(wait_s):
                raise StateError(downloads.GIVEN_UP(url=self._url, error=last)) from last

    def _report(self, why: TransientError | None, then: str) -> None:
        """Reports a new reason for retries once, and once that requests succeed again. why: None if
        a request succeeded."""
        told = None if why is None else why.finding
        with self._lock:
            if told == self._told:
                return
            self._told = told
        self._said(f"{self._url}: {told}: {then}" if told else f"{self._url}: {then}")


def _wait_s(failed: int) -> float:
    return min(WAIT_MAX_S, WAIT_FIRST_S * 2.0**failed)
