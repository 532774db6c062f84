"""A file as the pieces of memory it is made of, without a copy, and read-ahead of pieces that
are mapped from disk.

Mapped pieces are looked up and fetched before they are read, so that whoever sums them does not
wait for pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from flowcheck._core import ffi, lib
from flowcheck.replica.checkpoint_files.sha256 import Buffer, Crc


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Some bytes of a file; not to change before they are written and summed."""

    raw: Buffer
    label: str = ""
    """The tensor whose bytes they are, all of them; empty where they are none's."""
    late: Callable[[], bytes] | None = None
    """What stands there in place of `raw`, as many bytes; to be asked when all before it is
    written."""
    crc: Crc | None = None
    """Made while it is written, for what comes late."""

    @property
    def nbytes(self) -> int:
        return memoryview(self.raw).nbytes

    @property
    def address(self) -> tuple[int, int]:
        """(first byte's, bytes)."""
        view = ffi.from_buffer("uint8_t[]", self.raw)
        return int(ffi.cast("uintptr_t", view)), len(view)


PART_BYTES = 4 << 20
"""Bytes fetched at once. A choice: smaller costs calls, larger delays the first byte."""
AHEAD_BYTES = 16 << 20
"""Bytes between what is fetched and what is read: four parts. A choice: more takes page cache, less
lets readers wait."""
LARGE_BYTES = 1 << 16
"""Bytes of a piece worth fetching: a smaller one has few pages, which are mostly its neighbours'. A
choice."""


class ReadAhead:
    """The pieces of one file. Holds their memory."""

    def __init__(self, pieces: Sequence[FilePiece], threads: Executor) -> None:
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


def _parts(pieces: Sequence[FilePiece]) -> Iterator[tuple[int, int]]:
    """(address, bytes), in order; no address where it is not worth it."""
    for piece in pieces:
        if piece.late is not None or piece.nbytes < LARGE_BYTES:
            yield 0, piece.nbytes
            continue
        first, count = piece.address
        for at in range(0, count, PART_BYTES):
            yield first + at, min(PART_BYTES, count - at)
