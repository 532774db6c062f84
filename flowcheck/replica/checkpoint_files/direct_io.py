"""Writes a file past the page cache (O_DIRECT), where the file system allows it. Blocks are copied
and checksummed in one pass and written by several threads.

The page cache would fill pages and write them back for a reader that may never come; that is half
of the whole cost of a copy. With O_DIRECT the disk reads a block from the buffer it was made in, at
the disk's steady rate, and the fsync at the end has nothing left to wait for.

Other threads write blocks while this one fills the next block.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager, suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path
from threading import Event

import numpy as np

from flowcheck._core import lib
from flowcheck.errors import StateError, naming_file
from flowcheck.findings.catalog.unloadable_checkpoints import NOT_READ_BACK
from flowcheck.private_files import PRIVATE_FILE_MODE
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece, ReadAhead
from flowcheck.replica.checkpoint_files.manifest import FileSum
from flowcheck.replica.checkpoint_files.sha256 import Sha256, copy_and_hash

ALIGN_BYTES = 1 << 12
"""Bytes to which offset, length and memory of an O_DIRECT write are aligned (open(2)). Disks and
file systems require this or less. One that requires more refuses the write, and the file is then
written through the page cache."""
LARGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page of x86-64. A smaller buffer gains nothing from huge pages."""
DIRECT_BYTES = 1 << 22
"""Bytes of the smallest file that is written with O_DIRECT. A smaller file is a single write
(BLOCK_BYTES) and goes through the page cache."""
CACHED_BYTES = 1 << 16
"""Bytes of one write through the page cache. The kernel allocates contiguous page-cache memory of
this length; with 256 KiB a file took 2.5 times as long where memory was fragmented."""


def aligned_memory(count: int) -> np.ndarray:
    """Memory of `count` bytes, rounded up to whole pages, for `DirectFile.put`. Uses huge pages
    where the kernel has them, since the kernel looks up and pins each page of a write."""
    pages = -(-max(1, count) // PAGESIZE)
    memory = mmap(-1, pages * PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
    if count >= LARGE_PAGE_BYTES:
        with suppress(OSError):  # of a kernel without
            memory.madvise(MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class DirectFile:
    """An open file whose final size is known."""

    def __init__(self, descriptor: int, name: str, size_bytes: int) -> None:
        self._descriptor, self._name, self._size_bytes = descriptor, name, size_bytes

    def put(self, block: np.ndarray, count: int, first: int, *, reads_back: bool = False) -> None:
        """Writes the first `count` bytes of `block` at the offset `first`.

        block: from `aligned_memory`. first: a multiple of ALIGN_BYTES. reads_back: the last page of
        the block is read again and compared; with O_DIRECT it comes from the disk. Raises OSError
        if there is no room, StateError if the page differs.
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
        """Whether the file is written past the page cache."""
        return bool(fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def end(self) -> None:
        """Cuts off the padding of the last block."""
        if os.fstat(self._descriptor).st_size > self._size_bytes:
            os.ftruncate(self._descriptor, self._size_bytes)

    def _through_the_cache(self) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def _read_back(self, block: np.ndarray, count: int, first: int) -> None:
        last = (count - 1) // ALIGN_BYTES * ALIGN_BYTES
        page = aligned_memory(ALIGN_BYTES)
        got = os.preadv(self._descriptor, [page.data[:ALIGN_BYTES]], first + last)
        if got != count - last or not np.array_equal(page[:got], block[last:count]):
            raise StateError(NOT_READ_BACK(file=self._name, offset=first + last))


@contextmanager
def open_direct(path: Path, size_bytes: int) -> Iterator[DirectFile]:
    """Opens an empty file for writing, with O_DIRECT if it is large and the file system allows it.
    Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    direct = os.O_DIRECT if size_bytes >= DIRECT_BYTES else 0
    try:
        descriptor = os.open(path, flags | direct, PRIVATE_FILE_MODE)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
        descriptor = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        file = DirectFile(descriptor, path.name, size_bytes)
        yield file
        file.end()
    finally:
        os.close(descriptor)


BLOCK_BYTES = 4 << 20
"""Bytes of one write. With 1 MiB a file took up to twice as long, past the page cache."""
BLOCKS = 4
"""Blocks in memory per file: one is filled, two are written, one waits. A choice: more takes
memory."""


class _Block:
    """A buffer for one block of the file. It is used again once it is written."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.held_bytes = 0
        self.written: Future[None] | None = None


class DirectWrite:
    """The writing of one file."""

    def __init__(
        self,
        path: Path,
        pieces: Sequence[FilePiece],
        given_up: Event,
        disk: Executor,
        ahead: Executor,
        spare: list[np.ndarray],
        *,
        expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS,
        reads_back: bool = False,
    ) -> None:
        """disk: its threads write blocks. ahead: its threads fetch pieces (`ReadAhead`). spare:
        memory of whole blocks, shared by the files of an output. expected: checksums that tensors
        must have. reads_back: one page of every written block is read again and compared."""
        self._path, self._pieces, self._given_up, self._disk = path, pieces, given_up, disk
        self._ahead, self._spare = ReadAhead(pieces, ahead), spare
        self._expected, self._reads_back = expected, reads_back
        self._size_bytes = sum(piece.nbytes for piece in pieces)
        self._room_bytes = min(BLOCK_BYTES, self._size_bytes)
        self._blocks: list[_Block] = []
        self._done_bytes = 0
        """Bytes given to the disk threads."""

    def write(self) -> tuple[FileSum, dict[str, str]]:
        """Writes the file without a sync. Returns (checksums of the file, {label: sha256}).

        Raises StateError that names the tensor if its checksum is not the expected one, or names
        the file if a page does not read back as written; OSError that names the file if there is no
        room or writing was given up.
        """
        with naming_file(self._path), open_direct(self._path, self._size_bytes) as file:
            try:
                told = self._through(file)
            finally:  # the file stays open as long as it is written to
                writes = [one.written for one in self._blocks if one.written is not None]
                wait(writes)
                if self._room_bytes == BLOCK_BYTES:
                    self._spare.extend(one.memory for one in self._blocks)
            for write in writes:
                write.result()
        return told

    def _through(self, file: DirectFile) -> tuple[FileSum, dict[str, str]]:
        whole, around = Sha256(), Sha256()
        tensors: dict[str, str] = {}
        block = None
        for piece in self._pieces:
            own = Sha256() if piece.label else around
            data = np.frombuffer(
                piece.raw if piece.deferred_bytes is None else piece.deferred_bytes(), np.uint8
            )
            at = 0
            while at < data.size:
                block = block or self._free()
                held = block.held_bytes
                part = data[at : at + self._room_bytes - held]
                copy_and_hash(part, block.memory[held:], whole, own, piece.crc)
                block.held_bytes, at = held + part.size, at + part.size
                if block.held_bytes == self._room_bytes:
                    self._hand_on(block, file)
                    block = None
            if piece.label:
                tensors[piece.label] = own.hexdigest()
                self._expected.verify(piece.address, tensors[piece.label])
        if block is not None:
            self._hand_on(block, file)
        return FileSum(self._size_bytes, whole.hexdigest(), around.hexdigest()), tensors

    def _free(self) -> _Block:
        """The next block to fill; waits until its earlier content is written."""
        if self._given_up.is_set():
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        self._ahead.advance(self._done_bytes)
        number = self._done_bytes // self._room_bytes
        if number < BLOCKS:
            self._blocks.append(_Block(self._memory()))
        block = self._blocks[number % BLOCKS]
        if block.written is not None:
            block.written.result()
        block.held_bytes = 0
        return block

    def _memory(self) -> np.ndarray:
        if self._room_bytes == BLOCK_BYTES:
            with suppress(IndexError):
                return self._spare.pop()
        return aligned_memory(self._room_bytes)

    def _hand_on(self, block: _Block, file: DirectFile) -> None:
        block.written = self._disk.submit(
            file.put,
            block.memory,
            block.held_bytes,
            self._done_bytes,
            reads_back=self._reads_back,
        )
        self._done_bytes += block.held_bytes
