"""A file as the pieces of memory it consists of, without a copy, and read-ahead of pieces that are
mapped from disk.

Threads fetch mapped pieces before they are read, so that the thread that sums them does not wait
for pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from flowcheck._core import ffi, lib
from flowcheck.replica.checkpoint_files.sha256 import Buffer, Crc


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Some bytes of a file. They must not change before they are written and summed."""

    raw: Buffer
    label: str = ""
    """Label of the tensor, if these are all bytes of one tensor; else empty."""
    deferred_bytes: Callable[[], bytes] | None = None
    """Returns the bytes to write in place of `raw`, of the same number. It is called when all
    earlier pieces are copied and summed."""
    crc: Crc | None = None
    """The crc-32 of these bytes, computed while they are copied; a later piece can use it."""

    @property
    def nbytes(self) -> int:
        return memoryview(self.raw).nbytes

    @property
    def address(self) -> tuple[int, int]:
        """(address of the first byte, number of bytes)."""
        view = ffi.from_buffer("uint8_t[]", self.raw)
        return int(ffi.cast("uintptr_t", view)), len(view)


PART_BYTES = 4 << 20
"""Bytes of one fetch. A choice: smaller costs calls, larger delays the first byte."""
AHEAD_BYTES = 16 << 20
"""Bytes that are fetched ahead of the reader: four parts. A choice: more takes page cache, less
lets the reader wait."""
LARGE_BYTES = 1 << 16
"""Bytes of the smallest piece that is fetched ahead. A choice: a smaller piece has few pages, which
are mostly fetched with its neighbours."""


class ReadAhead:
    """Fetches the pieces of one file from disk ahead of the reader."""

    def __init__(self, pieces: Sequence[FilePiece], threads: Executor) -> None:
        """threads: fetch pieces. Not the threads that write: a fetch may wait for a slow disk."""
        self._parts, self._threads, self._asked_bytes = _parts(pieces), threads, 0

    def advance(self, done_bytes: int) -> None:
        """Begins to fetch the next parts. done_bytes: how much of the file is already read."""
        while self._asked_bytes < done_bytes + AHEAD_BYTES:
            part = next(self._parts, None)
            if part is None:
                return
            address, count = part
            self._asked_bytes += count
            if address:
                self._threads.submit(lib.fc_read_ahead, address, count)


def _parts(pieces: Sequence[FilePiece]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each part, in order. Address 0: the part is not fetched ahead."""
    for piece in pieces:
        if piece.deferred_bytes is not None or piece.nbytes < LARGE_BYTES:
            yield 0, piece.nbytes
            continue
        first, count = piece.address
        for at in range(0, count, PART_BYTES):
            yield first + at, min(PART_BYTES, count - at)
