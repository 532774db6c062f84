"""A file as the pieces it is made of, most of them a tensor's own memory: nothing is copied."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import IO

import numpy as np

from flowcheck._core import ffi
from flowcheck.errors import naming
from flowcheck.replica.files.manifest import FileSum
from flowcheck.replica.files.sha256 import Buffer, Sum, add

FLUSH_BYTES = 64 << 20
"""The kernel is told to write so much at a time, not all of it at the end."""
BUFFER_BYTES = 1 << 18
"""Stays in a core's cache."""
STEP_BYTES = 8 << 20
"""Between two looks whether a sum is still wanted."""
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file; not to change before they are written and summed."""

    raw: Buffer
    label: str = ""
    """The tensor whose bytes they are, all of them; empty where they are none's."""

    @property
    def nbytes(self) -> int:
        return memoryview(self.raw).nbytes

    @property
    def address(self) -> tuple[int, int]:
        """(first byte's, bytes)."""
        view = ffi.from_buffer("uint8_t[]", self.raw)
        return int(ffi.cast("uintptr_t", view)), len(view)


def write(path: Path, pieces: Sequence[Piece]) -> None:
    """Raises OSError, which names the file, where there is no room. Not synced yet.

    All goes through a buffer of whole pages, at the same place of a page as in the file: the kernel
    copies what lies otherwise at a third of the rate.
    """
    pages = np.frombuffer(mmap(-1, BUFFER_BYTES), np.uint8)  # gone with the last view of it
    with naming(path), path.open("wb", buffering=0) as file:
        _through(pages, file, pieces)


def _through(pages: np.ndarray, file: IO[bytes], pieces: Sequence[Piece]) -> None:
    held = done = flushed = 0
    for piece in pieces:
        own = np.frombuffer(piece.raw, np.uint8)
        at = 0
        while at < own.size:
            part = own[at : at + BUFFER_BYTES - held]
            pages[held : held + part.size] = part
            held, at = held + part.size, at + part.size
            if held == BUFFER_BYTES:
                _all(file, pages)
                held, done = 0, done + BUFFER_BYTES
                if done - flushed >= FLUSH_BYTES:
                    advice = os.POSIX_FADV_DONTNEED
                    os.posix_fadvise(file.fileno(), flushed, done - flushed, advice)
                    flushed = done
    _all(file, pages[:held])


def _all(file: IO[bytes], part: np.ndarray) -> None:
    at = 0
    while at < part.size:
        at += file.write(part[at:].data)


def summed(
    pieces: Sequence[Piece], known: Mapping[tuple[int, int], str]
) -> tuple[FileSum, dict[str, str]]:
    """(sums of the file, of each tensor in it), in one pass over memory. known: sums of tensors
    that were checked already, by (address, bytes)."""
    whole, around = Sum(), Sum()
    tensors: dict[str, str] = {}
    total = 0
    for piece in pieces:
        total += piece.nbytes
        checked = known.get(piece.address) if piece.label else None
        own = Sum() if piece.label else around
        view = memoryview(piece.raw).cast("B")
        for at in range(0, view.nbytes, STEP_BYTES):
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
