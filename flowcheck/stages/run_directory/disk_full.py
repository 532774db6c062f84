"""A full disk: log lines that found no room are counted and reported, and the chain goes on.

What had no room is counted, and said once; so is that there is room again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from flowcheck.errors import has_no_room

LEAST_BYTES = 16 << 10
"""Free again, before it is said that there is room."""
FULL = (
    "{} cannot be written ({}): steps are taken all the same, and what lacks there is counted; "
    "make room on its file system"
)
AGAIN = "{} is written again; {} lines lack there, as its file system was full"


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
    def full(self) -> str:
        """A sentence for the operator while there is no room; empty: there is."""
        return FULL.format(self._path, self._why) if self._why else ""

    def news(self) -> tuple[int, str] | None:
        """(lines, `full`): how many more lack since this was asked last; None: nothing changed."""
        new, self._told = self.count - self._told, self.count
        over = bool(self.lacks) and not self._why
        if over:
            self.lacks = 0
        return (new, self.full) if new or over else None


def is_full(folder: Path) -> bool:
    """Whether its file system has no room for one more record."""
    found = os.statvfs(folder)
    return bool(found.f_blocks) and found.f_bavail * found.f_frsize < LEAST_BYTES


def writable_again_note(name: str, lines: int) -> str:
    """The sentence that ends it."""
    return AGAIN.format(name, f"{lines:,}")
