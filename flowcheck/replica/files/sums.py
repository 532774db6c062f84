"""An output's files while they are written: written, summed, synced and read back by threads beside
whoever makes them (hashing, writing and waiting let go of the GIL)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
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
AHEAD_FILES = 2
"""Are written and summed at once: what of them is no tensor's own memory is held as long."""
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
        self._writer = ThreadPoolExecutor(1, "write")
        self._waiting = ThreadPoolExecutor(2, "sync")
        self._tensors: dict[str, tuple[torch.Tensor, str, int, int]] = {}
        self._files: dict[str, Future[_Told]] = {}
        self._given_up = Event()
        self._begun: list[tuple[Future[_Told], Future[None]]] = []
        """Of each file in turn: its sums, and that it is written."""
        self._rest: list[Future[Any]] = []
        self.names: dict[str, str] = {}
        """Of files that are written under another name than they will have."""
        self.more: dict[str, Any] = {}
        """Fields of the manifest that this format alone has."""

    def close(self) -> None:
        """Nothing is written and no sum is made any more."""
        self._given_up.set()
        self._writer.shutdown(cancel_futures=True)
        self._waiting.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)

    def put(
        self, name: str, path: Path, pieces: Sequence[Piece], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Begins to write a file, which is whole after `files`; its bytes are not to change before.
        name: the file's in the manifest; tensors: by the labels of `pieces`, what of them is not
        there has no bytes.

        Raises OSError where there was no room for one before.
        """
        own = self.names.get(name, name)
        for one in self._begun[-AHEAD_FILES] if len(self._begun) >= AHEAD_FILES else ():
            one.result()
        told = self._pool.submit(parts.summed, pieces, self._known, self._given_up)
        groups = self._placed(own, pieces, tensors)
        self._begun.append((told, self._writer.submit(self._write, path, pieces, groups)))
        self._files[own] = told
        for label, tensor in tensors.items():
            if label not in self._tensors and not tensor.numel():
                self.empty(label, tensor)

    def _placed(
        self, own: str, pieces: Sequence[Piece], tensors: Mapping[str, torch.Tensor]
    ) -> list[list[tuple[int, Piece]]]:
        """Notes where tensors lie; what is read back of them, together."""
        groups = list[list[tuple[int, Piece]]]()
        at, placed, held = 0, list[tuple[int, Piece]](), 0
        for piece in pieces:
            if piece.label:
                self._tensors[piece.label] = (tensors[piece.label], own, at, piece.nbytes)
                placed.append((at, piece))
                held += piece.nbytes
            at += piece.nbytes
            if held >= TOGETHER_BYTES:
                groups.append(placed)
                placed, held = [], 0
        return [*groups, placed] if placed else groups

    def _write(
        self, path: Path, pieces: Sequence[Piece], groups: list[list[tuple[int, Piece]]]
    ) -> None:
        parts.write(path, pieces, self._given_up)
        self._rest.append(self._waiting.submit(sync, path))
        for placed in groups if self._reads_back else ():
            self._rest.append(self._pool.submit(parts.differs, path, placed))

    def empty(self, label: str, tensor: torch.Tensor) -> None:
        """A tensor without bytes: it lies in no file."""
        self._tensors[label] = (tensor, "", 0, 0)

    def file(self, name: str, path: Path) -> None:
        """A small file that is whole and on disk, without tensors."""
        self._files[self.names.get(name, name)] = self._pool.submit(_of_small, path)

    def files(self) -> dict[str, FileSum]:
        """Waits until all files are summed, on disk, and read back. Raises StateError, which names
        the tensor, where one does not read back as it was written; OSError where there is no
        room."""
        for _, written in self._begun:
            written.result()
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


def _of_small(path: Path) -> _Told:
    return parts.summed([Piece(path.read_bytes())], {})
