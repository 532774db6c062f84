"""A file as the pieces it is made of, most of them a tensor's own memory: nothing is copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from threading import Event
from typing import IO

import numpy as np

from flowcheck._core import ffi, lib
from flowcheck.errors import naming
from flowcheck.replica.files.manifest import FileSum
from flowcheck.replica.files.sha256 import Buffer, Sum, add

FLUSH_BYTES = 64 << 20
"""The kernel is told to write so much at a time, not all of it at the end. It keeps the pages: they
are read back, and posix_fadvise(POSIX_FADV_DONTNEED), which lets go of them, made each write dearer
by a third."""
BUFFER_BYTES = 1 << 16
"""Of one write. The kernel takes its pages in runs of that length: those of 256 KiB took 2.5 times
as long in all, where few are left whole."""
STEP_BYTES = 8 << 20
"""Between two looks whether a sum is still wanted."""
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file; not to change before they are written and summed."""

    raw: Buffer
    label: str = ""
    """The tensor whose bytes they are, all of them; empty where they are none's."""
    late: Callable[[], bytes] | None = None
    """Waits for what stands there in place of `raw`, as many bytes."""

    @property
    def told(self) -> Buffer:
        """What is written."""
        return self.raw if self.late is None else self.late()

    @property
    def nbytes(self) -> int:
        return memoryview(self.raw).nbytes

    @property
    def address(self) -> tuple[int, int]:
        """(first byte's, bytes)."""
        view = ffi.from_buffer("uint8_t[]", self.raw)
        return int(ffi.cast("uintptr_t", view)), len(view)


def write(path: Path, pieces: Sequence[Piece], given_up: Event | None = None) -> None:
    """Raises OSError, which names the file, where there is no room or it is given up meanwhile. Not
    synced yet.

    All goes through a buffer of whole pages, at the same place of a page as in the file: the kernel
    copies what lies otherwise at a third of the rate.
    """
    pages = np.frombuffer(mmap(-1, BUFFER_BYTES), np.uint8)  # gone with the last view of it
    with naming(path), path.open("wb", buffering=0) as file:
        _through(pages, file, pieces, given_up or Event())


def _through(pages: np.ndarray, file: IO[bytes], pieces: Sequence[Piece], given_up: Event) -> None:
    held = done = flushed = 0
    for piece in pieces:
        own = np.frombuffer(piece.told, np.uint8)
        at = 0
        while at < own.size:
            part = own[at : at + BUFFER_BYTES - held]
            pages[held : held + part.size] = part
            held, at = held + part.size, at + part.size
            if held == BUFFER_BYTES:
                _look(given_up)
                _all(file, pages)
                held, done = 0, done + BUFFER_BYTES
                if done - flushed >= FLUSH_BYTES:
                    lib.fc_begin_flush(file.fileno(), flushed, done - flushed)
                    flushed = done
    _all(file, pages[:held])


def _look(given_up: Event) -> None:
    if given_up.is_set():
        raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))


def _all(file: IO[bytes], part: np.ndarray) -> None:
    at = 0
    while at < part.size:
        at += file.write(part[at:].data)


def summed(
    pieces: Sequence[Piece],
    known: Mapping[tuple[int, int], str],
    given_up: Event | None = None,
) -> tuple[FileSum, dict[str, str]]:
    """(sums of the file, of each tensor in it), in one pass over memory. known: sums of tensors
    that were checked already, by (address, bytes). Raises OSError where it is given up."""
    given_up = given_up or Event()
    whole, around = Sum(), Sum()
    tensors: dict[str, str] = {}
    total = 0
    for piece in pieces:
        total += piece.nbytes
        checked = known.get(piece.address) if piece.label else None
        own = Sum() if piece.label else around
        view = memoryview(piece.told).cast("B")
        for at in range(0, view.nbytes, STEP_BYTES):
            _look(given_up)
            add(whole, view[at : at + STEP_BYTES], None if checked else own)
        if piece.label:
            tensors[piece.label] = checked or own.hexdigest()
    return FileSum(total, whole.hexdigest(), around.hexdigest()), tensors


def differs(path: Path, placed: Sequence[tuple[int, Piece]]) -> str:
    """The first tensor of which the file does not hold at that place what memory does; empty if
    there is none."""
    buffer = bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as file:
        for first, piece in placed:
            view = memoryview(piece.raw).cast("B")
            for at in range(0, view.nbytes, READ_BYTES):
                part = view[at : at + READ_BYTES]
                into = buffer if part.nbytes == READ_BYTES else bytearray(part.nbytes)
                got = os.preadv(file.fileno(), [into], first + at)
                if got != part.nbytes or into != part:
                    return piece.label
    return ""
