"""A file that is copied into a few blocks of memory and summed in one pass, and written out of them
by other threads meanwhile: what was summed, and held against what it is to be, the disk is handed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from pathlib import Path
from threading import Event

import numpy as np

from flowcheck.errors import naming
from flowcheck.replica.files.ahead import Ahead
from flowcheck.replica.files.expected import NOTHING, Expected
from flowcheck.replica.files.manifest import FileSum
from flowcheck.replica.files.outfile import OutFile, aligned, opened
from flowcheck.replica.files.pieces import Piece
from flowcheck.replica.files.sha256 import Sum, pour

BLOCK_BYTES = 4 << 20
"""Of one write: those of 1 MiB took up to twice as long in all, past the page cache."""
BLOCKS = 4
"""Of a file: one is filled, two are written, one waits for its turn."""


class _Block:
    """Some bytes of the file. Filled again when it is written."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.held_bytes = 0
        self.written: Future[None] | None = None


class Pouring:
    """One file."""

    def __init__(
        self,
        path: Path,
        pieces: Sequence[Piece],
        given_up: Event,
        disk: Executor,
        ahead: Executor,
        spare: list[np.ndarray],
        *,
        expected: Expected = NOTHING,
        reads_back: bool = False,
    ) -> None:
        """disk: its threads write blocks; ahead: see `Ahead`. spare: whole blocks' memory that
        other files left, and this one leaves. expected: what some tensors' sums are to be.
        reads_back: a page of every block is read again when it is written."""
        self._path, self._pieces, self._given_up, self._disk = path, pieces, given_up, disk
        self._ahead, self._spare = Ahead(pieces, ahead), spare
        self._expected, self._reads_back = expected, reads_back
        self._size_bytes = sum(piece.nbytes for piece in pieces)
        self._room_bytes = min(BLOCK_BYTES, self._size_bytes)
        self._blocks: list[_Block] = []
        self._done_bytes = 0
        """Handed to the disk."""

    def poured(self) -> tuple[FileSum, dict[str, str]]:
        """Writes the file, not synced yet; (sums of the file, of each tensor in it). Raises
        StateError, which names the tensor, where one has not the sum it is to have, or does not
        read back; OSError, which names the file, where there is no room or it is given up."""
        with naming(self._path), opened(self._path, self._size_bytes) as file:
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

    def _through(self, file: OutFile) -> tuple[FileSum, dict[str, str]]:
        whole, around = Sum(), Sum()
        tensors: dict[str, str] = {}
        block = None
        for piece in self._pieces:
            own = Sum() if piece.label else around
            data = np.frombuffer(piece.raw if piece.late is None else piece.late(), np.uint8)
            at = 0
            while at < data.size:
                block = block or self._free()
                held = block.held_bytes
                part = data[at : at + self._room_bytes - held]
                pour(part, block.memory[held:], whole, own, piece.crc)
                block.held_bytes, at = held + part.size, at + part.size
                if block.held_bytes == self._room_bytes:
                    self._hand_on(block, file)
                    block = None
            if piece.label:
                tensors[piece.label] = own.hexdigest()
                self._expected.meet(piece.address, tensors[piece.label])
        if block is not None:
            self._hand_on(block, file)
        return FileSum(self._size_bytes, whole.hexdigest(), around.hexdigest()), tensors

    def _free(self) -> _Block:
        """The next one, when it is written."""
        if self._given_up.is_set():
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        self._ahead.of(self._done_bytes)
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
        return aligned(self._room_bytes)

    def _hand_on(self, block: _Block, file: OutFile) -> None:
        block.written = self._disk.submit(
            file.put,
            block.memory,
            block.held_bytes,
            self._done_bytes,
            reads_back=self._reads_back,
        )
        self._done_bytes += block.held_bytes
