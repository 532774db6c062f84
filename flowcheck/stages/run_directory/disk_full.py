"""A full disk: log lines that find no room are counted and reported once, and the chain goes on.

That there is room again is reported once as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import has_no_room
from flowcheck.findings.catalog.chain_processes import RECORDS_UNWRITTEN
from flowcheck.findings.finding import Finding

LEAST_BYTES = 16 << 10
"""Bytes that must be free, before it is said that there is room. A choice: less tells of room that
the next line fills."""


class DiskFullCounter:
    """Of one file of records, or of several that are written together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        """Of lines, in all."""
        self.lacks = 0
        """Of them, those since there was room last; 0: there is."""
        self._told = 0
        self._why = ""
        """Of the last one; empty: the last one of all found room."""

    def attempt(self, write: Callable[[], None], lines: int = 1) -> bool:
        """Whether there was room. Raises OSError for any other reason than that there was none."""
        try:
            if self.lacks:
                self._await_room()
            write()
        except OSError as error:
            if not has_no_room(error):
                raise
            self.count += lines
            self.lacks += lines
            self._why = os.strerror(error.errno or 0)
            return False
        self._why = ""
        return True

    def _await_room(self) -> None:
        """The end of a full disk is not a line that just fits into the last page of a file."""
        if is_full(self._path.parent):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    @property
    def full(self) -> Finding | None:
        """For the operator while there is no room; None: there is."""
        return RECORDS_UNWRITTEN(file=self._path, error=self._why) if self._why else None

    def news(self) -> tuple[int, Finding | None] | None:
        """(lines, `full`): how many more found no room since this was asked last; None: nothing
        changed."""
        new, self._told = self.count - self._told, self.count
        over = bool(self.lacks) and not self._why
        if over:
            self.lacks = 0
        return (new, self.full) if new or over else None


def is_full(folder: Path) -> bool:
    """Whether its file system has no room for one more record."""
    found = os.statvfs(folder)
    return bool(found.f_blocks) and found.f_bavail * found.f_frsize < LEAST_BYTES
