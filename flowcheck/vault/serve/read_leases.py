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
"""Seconds without a request after which a client counts as gone. A choice: longer keeps old steps
on disk, shorter deletes a step under a slow client."""


class ReadLeases:
    """Shared locks on the folders that clients read or read lately. A process that deletes a folder
    takes an exclusive lock first (vault/persist/local_folder.py)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: dict[Path, tuple[int, float]] = {}
        self._reading: dict[Path, int] = {}

    @contextmanager
    def reading(self, folder: Path) -> Iterator[None]:
        """Locks a folder while it is read, and for LEASE_S afterwards. Raises OSError if the folder
        is gone."""
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
        """Whether the folder is being read or was read within the last LEASE_S seconds."""
        with self._lock:
            return folder in self._held and not self._over(folder)

    def release(self, *, all_of_them: bool = False) -> None:
        """Unlocks the folders that are no longer read. all_of_them: unlocks all folders."""
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
