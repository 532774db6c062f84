"""Reads the new lines of a JSON-lines file, each once, also after rotation or truncation.

append_line (bounded_log_files.py) replaces a full file by its newer half, and a new start sets the
earlier run's file aside. A reader that remembers a byte position would take old lines for new ones,
or miss some. This one remembers the last line that it has read.
"""

from __future__ import annotations

from pathlib import Path

FIRST_BYTES = 4 << 20
"""Bytes that are read of a file at first, from its end. A choice: more shows older lines and
delays the first state."""
TURN_BYTES = 16 << 20
"""Largest read at once, bytes. A choice that bounds memory; the rest is read with the next
state."""


class JsonLinesTail:
    """Reads a JSON-lines file that another process appends to; each complete line is returned
    once, in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._at = 0
        self._last = b""

    def read_new_lines(self) -> list[bytes]:
        """The lines added since the last call; [] if the file does not exist. Raises OSError where
        it cannot be read."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            size = file.seek(0, 2)
            found = self._path.stat()
            identity = (found.st_dev, found.st_ino)
            if identity != self._identity or size < self._at:
                self._at = self._behind_last(file.fileno(), size)
                self._identity = identity
            file.seek(self._at)
            read = file.read(TURN_BYTES)
        whole = read[: read.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = whole.splitlines()
        self._last = lines[-1] if lines else self._last
        return lines

    def _behind_last(self, descriptor: int, size: int) -> int:
        """Byte position at which to begin in a file that was replaced: after the last line that was
        read, if the file has it."""
        begin = max(0, size - (FIRST_BYTES if self._identity is None else size))
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(begin)
            content = file.read(size - begin)
        if self._last:
            place = content.rfind(self._last + b"\n")
            if place >= 0:
                return begin + place + len(self._last) + 1
        return begin + content.find(b"\n") + 1 if begin else 0
