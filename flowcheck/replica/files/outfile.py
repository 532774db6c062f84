"""A file that is written block by block, from several threads at once, past the page cache where
its file system lets.

Its pages would be taken, filled and written back for a reader that may never come: half of what a
copy costs in all. Past them the disk takes a block from where it was made, at its own steady rate,
and the fsync at the end has nothing left to wait for.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path

import numpy as np

from flowcheck._core import lib
from flowcheck.errors import StateError
from flowcheck.private_files import FILE

ALIGN_BYTES = 1 << 12
"""Of place, length and memory of a write past the page cache (open(2), O_DIRECT): what disks and
file systems ask for is this or less; one that asks for more refuses, and is written to without."""
LARGE_PAGE_BYTES = 1 << 21
DIRECT_BYTES = 1 << 22
"""A smaller file is one write, and is written through the page cache."""
CACHED_BYTES = 1 << 16
"""Of one write through the page cache. The kernel takes its pages in runs of that length: those of
256 KiB took 2.5 times as long in all, where few are left whole."""


def aligned(count: int) -> np.ndarray:
    """So many bytes of memory that `OutFile.put` takes, up to whole pages; of large ones, where
    there are such: the kernel has each page of a write to look up and to hold."""
    pages = -(-max(1, count) // PAGESIZE)
    memory = mmap(-1, pages * PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
    if count >= LARGE_PAGE_BYTES:
        with suppress(OSError):  # of a kernel without
            memory.madvise(MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class OutFile:
    """An open file of a size that is known."""

    def __init__(self, descriptor: int, name: str, size_bytes: int) -> None:
        self._descriptor, self._name, self._size_bytes = descriptor, name, size_bytes

    def put(self, block: np.ndarray, count: int, first: int, *, reads_back: bool = False) -> None:
        """Writes the first bytes of a block of `aligned` memory at a place of whole pages.
        reads_back: its last page is read again, from the disk where it went there.

        Raises OSError where there is no room, StateError where it does not read back.
        """
        whole = -(-count // ALIGN_BYTES) * ALIGN_BYTES if self.direct else count
        block[count:whole] = 0  # `end` cuts it off
        done = 0
        while done < whole:
            part = block[done:whole]
            try:
                done += os.pwrite(
                    self._descriptor,
                    (part if self.direct else part[:CACHED_BYTES]).data,
                    first + done,
                )
            except OSError as error:
                if error.errno != errno.EINVAL or not self.direct:
                    raise
                self._through_the_cache()
        if not self.direct:
            lib.fc_begin_flush(self._descriptor, first, whole)
        if reads_back:
            self._read_back(block, whole, first)

    @property
    def direct(self) -> bool:
        """Whether it is written past the page cache."""
        return bool(fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def end(self) -> None:
        """Cuts off what a last block was filled up with."""
        if os.fstat(self._descriptor).st_size > self._size_bytes:
            os.ftruncate(self._descriptor, self._size_bytes)

    def _through_the_cache(self) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _read_back(self, block: np.ndarray, count: int, first: int) -> None:
        last = (count - 1) // ALIGN_BYTES * ALIGN_BYTES
        page = aligned(ALIGN_BYTES)
        got = os.preadv(self._descriptor, [page.data[:ALIGN_BYTES]], first + last)
        if got != count - last or not np.array_equal(page[:got], block[last:count]):
            raise StateError(
                f"{self._name} does not read back as it was written (byte {first + last:,} on)"
            )


@contextmanager
def opened(path: Path, size_bytes: int) -> Iterator[OutFile]:
    """A file to write, emptied. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    direct = os.O_DIRECT if size_bytes >= DIRECT_BYTES else 0
    try:
        descriptor = os.open(path, flags | direct, FILE)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
        descriptor = os.open(path, flags, FILE)
    try:
        file = OutFile(descriptor, path.name, size_bytes)
        yield file
        file.end()
    finally:
        os.close(descriptor)
