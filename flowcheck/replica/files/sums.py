"""An output's files while they are written: summed, synced and read back by threads beside whoever
writes (hashing and waiting let go of the GIL)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from flowcheck.errors import StateError
from flowcheck.plane.handle import Closing
from flowcheck.replica.files import pieces as parts
from flowcheck.replica.files.manifest import FileSum, TensorSum
from flowcheck.replica.files.pieces import Piece
from flowcheck.whole import sync

TOGETHER_BYTES = 64 << 20
"""What one thread reads back at a time."""
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""sha256 of no bytes."""

Known = Mapping[tuple[int, int], str]
"""(address, bytes) of a contiguous tensor to its sum."""
_Told = tuple[FileSum, dict[str, str]]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in index order; of a contiguous one over the same memory."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return raw.numpy().data


class Sums(Closing):
    """The files of an output that is being written."""

    def __init__(self, known: Known | None = None, *, reads_back: bool = False) -> None:
        """known: sums of tensors that were checked already, where they lie in memory. reads_back:
        every tensor in the files is held against memory."""
        self._known, self._reads_back = known or {}, reads_back
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "sums")
        self._waiting = ThreadPoolExecutor(2, "sync")
        self._tensors: dict[str, tuple[torch.Tensor, str, int, int]] = {}
        self._files: dict[str, Future[_Told]] = {}
        self._rest: list[Future[Any]] = []
        self.names: dict[str, str] = {}
        """Of files that are written under another name than they will have."""
        self.more: dict[str, Any] = {}
        """Fields of the manifest that this format alone has."""

    def close(self) -> None:
        """No sum is made any more."""
        self._waiting.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def put(
        self, name: str, path: Path, pieces: Sequence[Piece], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Writes a file; its bytes are not to change before `files`. name: the file's in the
        manifest; tensors: by the labels of `pieces`, what of them is not there has no bytes.

        Raises OSError where there is no room.
        """
        own = self.names.get(name, name)
        self._files[own] = self._pool.submit(parts.summed, pieces, self._known)
        parts.write(path, pieces)
        self._rest.append(self._waiting.submit(sync, path))
        at, placed, held = 0, list[tuple[int, Piece]](), 0
        for piece in pieces:
            if piece.label:
                self._tensors[piece.label] = (tensors[piece.label], own, at, piece.nbytes)
                placed.append((at, piece))
                held += piece.nbytes
            at += piece.nbytes
            if held >= TOGETHER_BYTES:
                self._read_back(path, placed)
                placed, held = [], 0
        self._read_back(path, placed)
        for label, tensor in tensors.items():
            if label not in self._tensors and not tensor.numel():
                self.empty(label, tensor)

    def empty(self, label: str, tensor: torch.Tensor) -> None:
        """A tensor without bytes: it lies in no file."""
        self._tensors[label] = (tensor, "", 0, 0)

    def file(self, name: str, path: Path) -> None:
        """A small file that is whole and on disk, without tensors."""
        self._files[self.names.get(name, name)] = self._pool.submit(_of_small, path)

    def files(self) -> dict[str, FileSum]:
        """Waits until all files are summed, on disk, and read back. Raises StateError, which names
        the tensor, where one does not read back as it was written; OSError."""
        for one in self._rest:
            if label := one.result():
                raise StateError(f"{label} does not read back as it was written")
        return {name: found.result()[0] for name, found in self._files.items()}

    def tensors(self) -> dict[str, TensorSum]:
        """Waits for them."""
        told: dict[str, TensorSum] = {}
        for label, (tensor, file, first, count) in self._tensors.items():
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            at = ((file, first, count),) if count else ()
            own = self._files[file].result()[1][label] if count else EMPTY
            told[label] = TensorSum(dtype, shape, own, at)
        return told

    def _read_back(self, path: Path, placed: Sequence[tuple[int, Piece]]) -> None:
        if self._reads_back and placed:
            self._rest.append(self._pool.submit(parts.differs, path, placed))


def _of_small(path: Path) -> _Told:
    return parts.summed([Piece(path.read_bytes())], {})
