"""Handles a full disk: the chain goes on, and log lines that find no room are counted.

The full disk is reported once, and once that there is room again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import is_disk_full
from flowcheck.findings.catalog.chain_processes import RECORDS_UNWRITTEN
from flowcheck.findings.finding import Finding

LEAST_BYTES = 16 << 10
"""Bytes that must be free before FlowCheck reports that there is room again. A choice: less would
report room that the next line fills."""


class DiskFullCounter:
    """Counts the lines that found no room, for one file of records or several that are written
    together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        """Number of lines that found no room."""
        self.lacks = 0
        """Number of lines that found no room since the disk became full; 0: the disk is not
        full."""
        self._told = 0
        self._why = ""
        """Error text of the last line; empty: it found room."""

    def attempt(self, write: Callable[[], None], lines: int = 1) -> bool:
        """Calls `write`, which writes `lines` lines. Returns whether there was room. Raises OSError
        for any other error."""
        try:
            if self.lacks:
                self._await_room()
            write()
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.count += lines
            self.lacks += lines
            self._why = os.strerror(error.errno or 0)
            return False
        self._why = ""
        return True

    def _await_room(self) -> None:
        """Raises OSError until LEAST_BYTES are free, so that a line that just fits into the last
        page of a file does not count as room."""
        if is_full(self._path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    @property
    def full(self) -> Finding | None:
        """The finding for the operator while the disk is full; None: it is not full."""
        return RECORDS_UNWRITTEN(file=self._path, error=self._why) if self._why else None

    def changes(self) -> tuple[int, Finding | None] | None:
        """(lines that found no room since the last call, `full`); None: nothing changed."""
        new, self._told = self.count - self._told, self.count
        over = bool(self.lacks) and not self._why
        if over:
            self.lacks = 0
        return (new, self.full) if new or over else None


def is_full(folder: Path) -> bool:
    """Whether the folder's file system has fewer than LEAST_BYTES free."""
    found = os.statvfs(folder)
    return bool(found.f_blocks) and found.f_bavail * found.f_frsize < LEAST_BYTES
