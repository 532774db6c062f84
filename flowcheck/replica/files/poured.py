"""A file written by one thread and summed by another, side by side, in one pass over memory each.

They share no buffer: slots handed from one to the other made each byte dearer by a fifth, for every
line of theirs had to change between two cores' caches.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import IO

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.errors import StateError, naming
from flowcheck.replica.files.expected import NOTHING, Expected
from flowcheck.replica.files.manifest import FileSum
from flowcheck.replica.files.pieces import Piece
from flowcheck.replica.files.sha256 import Buffer, Sum, add

BUFFER_BYTES = 1 << 16
"""Of one write. The kernel takes its pages in runs of that length: those of 256 KiB took 2.5 times
as long in all, where few are left whole."""
FLUSH_BYTES = 64 << 20
"""The kernel is told to write so much at a time, not all of it at the end. It keeps the pages: who
loads the file next finds them, and posix_fadvise(POSIX_FADV_DONTNEED), which lets go of them, made
each write dearer by a third."""
STEP_BYTES = 8 << 20
"""Between two looks whether a sum is still wanted."""
LOOK_S = 0.2
"""Between two looks whether what is waited for can still come."""


class Pouring:
    """One file. `write` and `summed` run at the same time, in threads of their own."""

    def __init__(
        self,
        path: Path,
        pieces: Sequence[Piece],
        given_up: Event,
        *,
        expected: Expected = NOTHING,
        reads_back: bool = False,
    ) -> None:
        """expected: what some tensors' sums are to be. reads_back: what was written is read again
        at once and held against memory."""
        self._path, self._pieces, self._given_up = path, pieces, given_up
        self._expected, self._reads_back = expected, reads_back
        self._late: SimpleQueue[bytes] = SimpleQueue()
        """What came late, in order, as it was written."""
        self._ended = Event()
        """The writer has: nothing comes late any more."""

    def write(self) -> None:
        """Writes the file, not synced yet. Raises OSError, which names it, where there is no room
        or it is given up meanwhile; StateError where something does not read back.

        All goes through a buffer of whole pages, at the same place of a page as in the file: the
        kernel copies what lies otherwise at a third of the rate.
        """
        pages = np.frombuffer(mmap(-1, BUFFER_BYTES), np.uint8)  # gone with the last view of it
        try:
            with naming(self._path), self._path.open("w+b", buffering=0) as file:
                self._through(pages, file)
        finally:
            self._ended.set()

    def _through(self, pages: np.ndarray, file: IO[bytes]) -> None:
        raw = ffi.from_buffer("uint8_t[]", pages.data)
        back = bytearray(BUFFER_BYTES) if self._reads_back else None
        held = done = flushed = 0
        for piece in self._pieces:
            own = np.frombuffer(self._told(piece), np.uint8)
            at = 0
            while at < own.size:
                part = own[at : at + BUFFER_BYTES - held]
                pages[held : held + part.size] = part
                if piece.crc is not None:
                    crc = lib.fc_crc32(piece.crc.value, raw + held, part.size)
                    piece.crc.value = int(crc)
                held, at = held + part.size, at + part.size
                if held == BUFFER_BYTES:
                    self._look()
                    _all(file, pages)
                    if back is not None:
                        self._held_against(back, pages, file, done, piece)
                    held, done = 0, done + BUFFER_BYTES
                    if done - flushed >= FLUSH_BYTES:
                        lib.fc_begin_flush(file.fileno(), flushed, done - flushed)
                        flushed = done
        _all(file, pages[:held])
        if back is not None and held:
            self._held_against(back[:held], pages[:held], file, done, self._pieces[-1])

    def _told(self, piece: Piece) -> Buffer:
        if piece.late is None:
            return piece.raw
        late = piece.late()
        self._late.put(late)
        return late

    def _held_against(
        self, back: bytearray, pages: np.ndarray, file: IO[bytes], first: int, piece: Piece
    ) -> None:
        if os.preadv(file.fileno(), [back], first) != pages.size or back != pages.data:
            what = piece.label or self._path.name
            raise StateError(f"{what} does not read back as it was written (byte {first:,} on)")

    def _look(self) -> None:
        if self._given_up.is_set():
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))

    def summed(self) -> tuple[FileSum, dict[str, str]]:
        """(sums of the file, of each tensor in it). Raises StateError, which names the tensor,
        where one has not the sum it is to have; OSError where the file is given up."""
        whole, around = Sum(), Sum()
        tensors: dict[str, str] = {}
        total = 0
        for piece in self._pieces:
            total += piece.nbytes
            own = Sum() if piece.label else around
            view = memoryview(piece.raw if piece.late is None else self._came_late()).cast("B")
            for at in range(0, view.nbytes, STEP_BYTES):
                self._look()
                add(whole, view[at : at + STEP_BYTES], own)
            if piece.label:
                tensors[piece.label] = own.hexdigest()
                self._expected.meet(piece.address, tensors[piece.label])
        return FileSum(total, whole.hexdigest(), around.hexdigest()), tensors

    def _came_late(self) -> bytes:
        while True:
            ended = self._ended.is_set()
            try:
                return self._late.get(timeout=0 if ended else LOOK_S)
            except Empty:
                self._look()
                if ended:  # it failed, and says why
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)) from None


def _all(file: IO[bytes], part: np.ndarray) -> None:
    at = 0
    while at < part.size:
        at += file.write(part[at:].data)
