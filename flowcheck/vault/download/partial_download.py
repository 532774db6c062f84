"""A checkpoint that is being downloaded: its files, and a note of the chunks that are there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from threading import Lock

import msgspec

from flowcheck.atomic_write import fsync_path, write_atomically
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import checkpoint_downloads as downloads
from flowcheck.private_files import open_private_folder
from flowcheck.untrusted_paths import FETCH_DONE, FETCH_LISTING, checked_checkpoint_name, open_below
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile

LISTING_NOTE, CHUNKS_NOTE = FETCH_LISTING, FETCH_DONE
NOTES_BYTES_MAX = 64 << 20
"""Most bytes of either note that are read. A line of a few bytes stands for each chunk. A choice
that bounds memory: lines for terabytes fit."""
CHUNK_BYTES = 8 << 20
"""Bytes of a chunk. A choice: larger fetches more again after an interruption, smaller costs
requests."""

Chunk = tuple[int, int]
"""(number of the file, number of the chunk in the file)."""


class _ChunkedListing(msgspec.Struct, frozen=True):
    """The content that the noted chunks belong to."""

    chunk_bytes: int
    files: tuple[tuple[str, int, str], ...]


class PartialDownload:
    """The files of a download. A chunk is written first and noted then, so that every chunk that a
    killed process noted is there."""

    def __init__(self, folder: Path, listing: CheckpointListing, held: int) -> None:
        """held: a descriptor of `folder`, through which all files are opened. Use
        `open_partial_download` instead."""
        self.folder, self.listing = folder, listing
        self._held, self._lock = held, Lock()
        what = _ChunkedListing(
            CHUNK_BYTES, tuple((f.name, f.size_bytes, f.sha256) for f in listing.files)
        )
        self._done: set[Chunk] = set()
        if self._same(what):
            self._done = self._noted()
        else:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            write_atomically(folder / LISTING_NOTE, msgspec.json.encode(what))
        self.done_bytes = sum(self.size(chunk) for chunk in self._done)
        self._note = self._noting()

    def missing(self) -> list[Chunk]:
        """Makes every file with its full size. Returns the chunks that are not there yet."""
        for file in self.listing.files:
            with self._opened(file) as descriptor:
                os.ftruncate(descriptor, file.size_bytes)
        return [
            (number, chunk)
            for number, file in enumerate(self.listing.files)
            for chunk in range(-(-file.size_bytes // CHUNK_BYTES))
            if (number, chunk) not in self._done
        ]

    def refuse_full(self) -> None:
        """Raises StateError if the disk has no room for the missing chunks."""
        lacking = 0
        for file in self.listing.files:
            with self._opened(file) as descriptor:
                here = os.fstat(descriptor).st_blocks * 512  # stat(2)
            lacking += max(0, file.size_bytes - here)
        disk = shutil.disk_usage(self.folder)
        if disk.total and lacking > disk.free:
            raise StateError(
                downloads.DISK_TOO_SMALL(folder=self.folder, missing=lacking, free=disk.free)
            )

    def size(self, chunk: Chunk) -> int:
        file = self.listing.files[chunk[0]]
        return min(CHUNK_BYTES, file.size_bytes - chunk[1] * CHUNK_BYTES)

    def write(self, chunk: Chunk, data: bytes) -> None:
        """Writes and notes a chunk. Raises OSError if there is no room."""
        number, at = chunk
        left, offset = memoryview(data), at * CHUNK_BYTES
        with self._opened(self.listing.files[number]) as descriptor:
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written
        with self._lock:
            self._done.add(chunk)
            self.done_bytes += len(data)
            self._note.write(f"{number} {at}\n".encode())

    def forget(self, file: ListedFile) -> None:
        """Makes all chunks of a file missing again."""
        number = self.listing.files.index(file)
        self._done = {chunk for chunk in self._done if chunk[0] != number}
        self.done_bytes = sum(self.size(chunk) for chunk in self._done)
        lines = "".join(f"{one} {chunk}\n" for one, chunk in sorted(self._done))
        self._note.close()
        write_atomically(self.folder / CHUNKS_NOTE, lines.encode())
        self._note = self._noting()

    def finish(self, final: Path) -> None:
        """Syncs the files, renames the folder to `final` and deletes the notes."""
        for file in self.listing.files:
            with self._opened(file) as descriptor:
                os.fsync(descriptor)
        for folder in {(self.folder / file.name).parent for file in self.listing.files}:
            fsync_path(folder)
        self.folder.rename(final)
        forget_notes(final)
        fsync_path(final.parent)

    def close(self) -> None:
        self._note.close()

    def _same(self, what: _ChunkedListing) -> bool:
        try:
            return msgspec.json.decode(self._read_note(LISTING_NOTE), type=_ChunkedListing) == what
        except (OSError, StateError, *DECODE_ERRORS):
            return False

    def _noted(self) -> set[Chunk]:
        """The chunks that the note lists, without an incomplete last line and without files that
        are gone."""
        try:
            lines = self._read_note(CHUNKS_NOTE).decode().split("\n")[:-1]
            pairs = [line.split() for line in lines]
            found = {(int(a), int(b)) for a, b in (p for p in pairs if len(p) == 2)}
        except (OSError, StateError, ValueError):  # UnicodeDecodeError is one
            return set()
        files = self.listing.files
        return {
            (number, chunk)
            for number, chunk in found
            if 0 <= number < len(files)
            and 0 <= chunk * CHUNK_BYTES < files[number].size_bytes
            and (self.folder / files[number].name).is_file()
        }

    def _read_note(self, name: str) -> bytes:
        with os.fdopen(open_below(self._held, name), "rb") as file:
            return file.read(NOTES_BYTES_MAX)

    def _noting(self) -> FileIO:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return FileIO(open_below(self._held, CHUNKS_NOTE, flags), "ab")

    @contextmanager
    def _opened(self, file: ListedFile) -> Iterator[int]:
        flags = os.O_RDWR | os.O_CREAT
        descriptor = open_below(self._held, file.name, flags, make=True)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def forget_notes(final: Path) -> None:
    """Deletes the notes in a complete checkpoint; a killed process may have left them there."""
    noted = [final / name for name in (CHUNKS_NOTE, LISTING_NOTE) if (final / name).exists()]
    for path in noted:
        path.unlink()
    if noted:
        fsync_path(final)


@contextmanager
def open_partial_download(
    into: Path, name: str, listing: CheckpointListing
) -> Iterator[PartialDownload]:
    """The download of the checkpoint `into`/`name`, new or interrupted before. Raises StateError if
    another process downloads it now, or if other users may write to the folder."""
    folder = into / f".{checked_checkpoint_name(name, str(into))}.part"
    os.close(open_private_folder(into))
    held = open_private_folder(folder)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(downloads.DOWNLOAD_RUNNING(folder)) from error
        except OSError:  # NFS locks no folder
            pass
        part = PartialDownload(folder, listing, held)
        try:
            yield part
        finally:
            part.close()
    finally:
        os.close(held)
