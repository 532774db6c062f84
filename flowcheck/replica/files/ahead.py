"""Pieces of a file looked up, and fetched from a disk where they are mapped from one, before they
are read: whoever sums them waits for no page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

from flowcheck._core import lib
from flowcheck.replica.files.pieces import Piece

PART_BYTES = 4 << 20
"""Fetched at once."""
AHEAD_BYTES = 16 << 20
"""Between what is fetched and what is read."""
LARGE_BYTES = 1 << 16
"""Of a smaller piece the pages are few, and mostly its neighbours'."""


class Ahead:
    """The pieces of one file. Holds their memory."""

    def __init__(self, pieces: Sequence[Piece], threads: Executor) -> None:
        """threads: fetch. One that waits for a disk is not to keep others from writing."""
        self._parts, self._threads, self._asked_bytes = _parts(pieces), threads, 0

    def of(self, done_bytes: int) -> None:
        """So much of the file is read."""
        while self._asked_bytes < done_bytes + AHEAD_BYTES:
            part = next(self._parts, None)
            if part is None:
                return
            address, count = part
            self._asked_bytes += count
            if address:
                self._threads.submit(lib.fc_read_ahead, address, count)


def _parts(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """(address, bytes), in order; no address where it is not worth it."""
    for piece in pieces:
        if piece.late is not None or piece.nbytes < LARGE_BYTES:
            yield 0, piece.nbytes
            continue
        first, count = piece.address
        for at in range(0, count, PART_BYTES):
            yield first + at, min(PART_BYTES, count - at)
