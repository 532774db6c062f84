"""Writes a file past the page cache (O_DIRECT) in blocks that are copied and checksummed in one
pass, by several threads, where the file system allows it.

The page cache would take pages, fill them and write them back for a reader that may never come:
half of what a copy costs in all. Past it the disk takes a block from where it was made, at its own
steady rate, and the fsync at the end has nothing left to wait for.

Blocks are written by other threads meanwhile. A block goes to the disk only after it was summed and
its checksum compared with the expected one.
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
from flowcheck.replica.checkpoint_files.file_pieces import FilePiece, ReadAhead
from flowcheck.replica.checkpoint_files.manifest import FileSum
from flowcheck.replica.checkpoint_files.sha256 import Sha256, copy_and_hash

ALIGN_BYTES = 1 << 12
"""Of place, length and memory of a write past the page cache (open(2), O_DIRECT): what disks and
file systems ask for is this or less; one that asks for more refuses, and is written to without."""
LARGE_PAGE_BYTES = 1 << 21
"""Bytes of a huge page of x86-64: less memory than one gains nothing from them."""
DIRECT_BYTES = 1 << 22
"""Bytes. A smaller file is one write (BLOCK_BYTES), and is written through the page cache."""
CACHED_BYTES = 1 << 16
"""Of one write through the page cache. The kernel takes its pages in runs of that length: those of
256 KiB took 2.5 times as long in all, where few are left whole."""


def aligned_memory(count: int) -> np.ndarray:
    """So many bytes of memory that `DirectFile.put` takes, up to whole pages; of large ones, where
    there are such: the kernel has each page of a write to look up and to hold."""
    pages = -(-max(1, count) // PAGESIZE)
    memory = mmap(-1, pages * PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
    if count >= LARGE_PAGE_BYTES:
        with suppress(OSError):  # of a kernel without
            memory.madvise(MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class DirectFile:
    """An open file of a size that is known."""

    def __init__(self, descriptor: int, name: str, size_bytes: int) -> None:
        self._descriptor, self._name, self._size_bytes = descriptor, name, size_bytes

    def put(self, block: np.ndarray, count: int, first: int, *, reads_back: bool = False) -> None:
        """Writes the first bytes of a block of `aligned_memory` at a place of whole pages.
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
        page = aligned_memory(ALIGN_BYTES)
        got = os.preadv(self._descriptor, [page.data[:ALIGN_BYTES]], first + last)
        if got != count - last or not np.array_equal(page[:got], block[last:count]):
            raise StateError(NOT_READ_BACK(file=self._name, offset=first + last))


@contextmanager
def open_direct(path: Path, size_bytes: int) -> Iterator[DirectFile]:
    """A file to write, emptied. Raises OSError."""
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
"""Of one write: those of 1 MiB took up to twice as long in all, past the page cache."""
BLOCKS = 4
"""Blocks of a file: one is filled, two are written, one waits for its turn. A choice: more takes
memory."""


class _Block:
    """Some bytes of the file. Filled again when it is written."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.held_bytes = 0
        self.written: Future[None] | None = None


class DirectWrite:
    """One file."""

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
        """disk: its threads write blocks; ahead: see `ReadAhead`. spare: whole blocks' memory that
        other files left, and this one leaves. expected: what some tensors' sums are to be.
        reads_back: a page of every block is read again when it is written."""
        self._path, self._pieces, self._given_up, self._disk = path, pieces, given_up, disk
        self._ahead, self._spare = ReadAhead(pieces, ahead), spare
        self._expected, self._reads_back = expected, reads_back
        self._size_bytes = sum(piece.nbytes for piece in pieces)
        self._room_bytes = min(BLOCK_BYTES, self._size_bytes)
        self._blocks: list[_Block] = []
        self._done_bytes = 0
        """Handed to the disk."""

    def write(self) -> tuple[FileSum, dict[str, str]]:
        """Writes the file, not synced yet; (sums of the file, of each tensor in it). Raises
        StateError, which names the tensor, where one has not the sum it is to have, or does not
        read back; OSError, which names the file, where there is no room or it is given up."""
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
        """The next one, when it is written."""
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
