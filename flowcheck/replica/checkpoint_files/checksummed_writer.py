"""Writes an output's files in threads: checksummed, written and synced while the caller produces
the next ones (hashing, writing and waiting release the GIL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from flowcheck.atomic_write import fsync_path
from flowcheck.closing_context import Closeable
from flowcheck.replica.checkpoint_files.checksum_verifier import (
    NO_EXPECTED_CHECKSUMS,
    ExpectedChecksums,
)
from flowcheck.replica.checkpoint_files.direct_io import DirectWrite
from flowcheck.replica.checkpoint_files.file_read_ahead import FilePiece
from flowcheck.replica.checkpoint_files.manifest import FileSum, TensorSum
from flowcheck.replica.checkpoint_files.sha256 import Sha256, hash_two

AHEAD_FILES = 2
"""Most files that are written and summed at the same time. Their headers stay in memory as long. A
choice: more uses more processors and memory."""
DISK_THREADS = 3
"""Threads that write blocks, so that one write always waits at the disk. A choice: more keeps fast
disks busier and costs context switches."""
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""sha256 of no bytes."""

_FileChecksums = tuple[FileSum, dict[str, str]]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in index order. For a contiguous tensor this is a view, not a copy."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return raw.numpy().data


class ChecksummedWriter(Closeable):
    """Writes the files of one output and collects their checksums for the manifest."""

    def __init__(
        self, expected: ExpectedChecksums = NO_EXPECTED_CHECKSUMS, *, reads_back: bool = False
    ) -> None:
        """expected: checksums that tensors must have, by their addresses in memory. reads_back: one
        page of every written block is read again and compared."""
        self._expected, self._reads_back = expected, reads_back
        self._pool = ThreadPoolExecutor(AHEAD_FILES, "files")
        self._disk = ThreadPoolExecutor(DISK_THREADS, "disk")
        self._ahead = ThreadPoolExecutor(AHEAD_FILES, "ahead")
        self._waiting = ThreadPoolExecutor(AHEAD_FILES, "sync")
        self._spare: list[np.ndarray] = []
        self._tensors: dict[str, tuple[torch.Tensor, str, int, int]] = {}
        self._files: dict[str, Future[_FileChecksums]] = {}
        self._given_up = Event()
        self._begun: list[Future[_FileChecksums]] = []
        """The checksums of each file, in the order of `write_file`; done when it is written."""
        self._synced: list[Future[None]] = []
        self.names: dict[str, str] = {}
        """{name while a file is written: its final name}, where they differ."""
        self.format_fields: dict[str, Any] = {}
        """Fields of the manifest that only this format has."""

    def close(self) -> None:
        """Gives up unfinished files. Nothing is written or summed after this returns."""
        self._given_up.set()
        self._pool.shutdown(cancel_futures=True)
        self._disk.shutdown()  # behind those who hand on to it
        for rest in (self._ahead, self._waiting):
            rest.shutdown(cancel_futures=True)

    def write_file(
        self,
        name: str,
        path: Path,
        pieces: Sequence[FilePiece],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        """Begins to write a file; it is complete after `files` returns, and the bytes of `pieces`
        must not change until then.

        name: the file's name in the manifest. tensors: {label: tensor}, with every label of
        `pieces`; further tensors have no bytes. Raises OSError if an earlier file found no room.
        """
        own = self.names.get(name, name)
        if len(self._begun) >= AHEAD_FILES:
            self._begun[-AHEAD_FILES].result()
        writing = DirectWrite(
            path,
            pieces,
            self._given_up,
            self._disk,
            self._ahead,
            self._spare,
            expected=self._expected,
            reads_back=self._reads_back,
        )
        self._files[own] = self._pool.submit(self._write, writing, path)
        self._begun.append(self._files[own])
        at = 0
        for piece in pieces:
            if piece.label:
                self._tensors[piece.label] = (tensors[piece.label], own, at, piece.nbytes)
            at += piece.nbytes
        for label, tensor in tensors.items():
            if label not in self._tensors and not tensor.numel():
                self.empty(label, tensor)

    def _write(self, writing: DirectWrite, path: Path) -> _FileChecksums:
        told = writing.write()
        self._synced.append(self._waiting.submit(fsync_path, path))
        return told

    def empty(self, label: str, tensor: torch.Tensor) -> None:
        """Adds a tensor without bytes, which is in no file, to the manifest."""
        self._tensors[label] = (tensor, "", 0, 0)

    def file(self, name: str, path: Path) -> None:
        """Begins to sum and sync a small file that is already written and holds no tensors."""
        self._files[self.names.get(name, name)] = self._pool.submit(_of_small, path)
        self._synced.append(self._waiting.submit(fsync_path, path))

    def files(self) -> dict[str, FileSum]:
        """Waits until all files are summed and on disk. Returns {name: checksums}.

        Raises StateError that names the tensor if its checksum is not the expected one or if a page
        does not read back as written; OSError if there is no room.
        """
        for begun in self._begun:
            begun.result()
        for one in self._synced:
            one.result()
        self._expected.end()
        return {name: found.result()[0] for name, found in self._files.items()}

    def tensors(self) -> dict[str, TensorSum]:
        """Waits until all tensors are summed. Returns {label: entry of the manifest}."""
        told: dict[str, TensorSum] = {}
        for label, (tensor, file, first, count) in self._tensors.items():
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            at = ((file, first, count),) if count else ()
            own = self._files[file].result()[1][label] if count else EMPTY_SHA256
            told[label] = TensorSum(dtype, shape, own, at)
        return told


def _of_small(path: Path) -> _FileChecksums:
    raw, own = path.read_bytes(), Sha256()
    hash_two(own, raw)
    return FileSum(len(raw), own.hexdigest(), own.hexdigest()), {}
