"""Locks on folders that clients are reading, so that nobody deletes them meanwhile."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

LEASE_S = 60.0
"""Seconds. A client that asks for nothing for so long is gone. A choice: longer keeps old steps on
disk, shorter takes a step from a slow client."""


class ReadLeases:
    """A shared lock on each folder that was read of late: whoever takes folders away asks for the
    whole lock first (vault/persist/local_folder.py)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[Path, tuple[int, float]] = {}
        self._reading: dict[Path, int] = {}

    @contextmanager
    def reading(self, folder: Path) -> Iterator[None]:
        """Raises OSError where the folder is gone."""
        with self._lock:
            if folder not in self._held:
                self._held[folder] = (_locked(folder), time.monotonic())
            self._reading[folder] = self._reading.get(folder, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._reading[folder] -= 1
                self._held[folder] = (self._held[folder][0], time.monotonic())

    def busy(self, folder: Path) -> bool:
        """It is read, or was within LEASE_S."""
        with self._lock:
            return folder in self._held and not self._over(folder)

    def end(self, *, all_of_them: bool = False) -> None:
        """Lets go of what nobody reads any more."""
        with self._lock:
            for folder in list(self._held):
                if all_of_them or self._over(folder):
                    os.close(self._held.pop(folder)[0])
                    self._reading.pop(folder, None)

    def _over(self, folder: Path) -> bool:
        since_s = time.monotonic() - self._held[folder][1]
        return not self._reading.get(folder) and since_s > LEASE_S


def _locked(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # NFS locks no folder
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor
