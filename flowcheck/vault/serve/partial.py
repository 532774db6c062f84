"""A checkpoint that is being fetched: its files as far as they are there, and which chunks are."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import msgspec

from flowcheck.errors import StateError
from flowcheck.vault.persist.listing import File, Listing
from flowcheck.whole import sync, write_whole

WHAT, DONE = ".fetch.json", ".fetch.done"
CHUNK_BYTES = 8 << 20

Chunk = tuple[int, int]
"""Number of the file, number of the chunk in it."""


class _What(msgspec.Struct, frozen=True):
    """Chunks are of this and no other content."""

    chunk_bytes: int
    files: tuple[tuple[str, int, str], ...]


class Partial:
    """Chunks are written to their place, then noted; those a killed process noted are there."""

    def __init__(self, folder: Path, listing: Listing) -> None:
        """Use `partial`."""
        self.folder, self.listing = folder, listing
        self._lock = Lock()
        what = _What(CHUNK_BYTES, tuple((f.name, f.size_bytes, f.sha256) for f in listing.files))
        self._done: set[Chunk] = set()
        if self._same(what):
            self._done = self._noted()
        else:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            write_whole(folder / WHAT, msgspec.json.encode(what))
        self.done_bytes = sum(self.size(chunk) for chunk in self._done)
        self._note = (folder / DONE).open("ab", buffering=0)
        self._open = [self._opened(file) for file in listing.files]

    def missing(self) -> list[Chunk]:
        return [
            (number, chunk)
            for number, file in enumerate(self.listing.files)
            for chunk in range(-(-file.size_bytes // CHUNK_BYTES))
            if (number, chunk) not in self._done
        ]

    def refuse_full(self) -> None:
        """Raises StateError where what is to come has no room on this disk."""
        held = (os.fstat(descriptor).st_blocks * 512 for descriptor in self._open)  # stat(2)
        sizes = (file.size_bytes for file in self.listing.files)
        lacking = sum(max(0, size - here) for size, here in zip(sizes, held, strict=True))
        disk = shutil.disk_usage(self.folder)
        if disk.total and lacking > disk.free:
            raise StateError(
                f"{self.folder}: {lacking:,} bytes are still to come, and {disk.free:,} are free "
                "there: make room, or fetch to another disk"
            )

    def size(self, chunk: Chunk) -> int:
        file = self.listing.files[chunk[0]]
        return min(CHUNK_BYTES, file.size_bytes - chunk[1] * CHUNK_BYTES)

    def write(self, chunk: Chunk, data: bytes) -> None:
        """Raises OSError where there is no room."""
        number, at = chunk
        left, offset = memoryview(data), at * CHUNK_BYTES
        while left:
            written = os.pwrite(self._open[number], left, offset)
            left, offset = left[written:], offset + written
        with self._lock:
            self._done.add(chunk)
            self.done_bytes += len(data)
            self._note.write(f"{number} {at}\n".encode())

    def forget(self, file: File) -> None:
        """Its chunks are to come again."""
        number = self.listing.files.index(file)
        self._done = {chunk for chunk in self._done if chunk[0] != number}
        self.done_bytes = sum(self.size(chunk) for chunk in self._done)
        lines = "".join(f"{one} {chunk}\n" for one, chunk in sorted(self._done))
        self._note.close()
        write_whole(self.folder / DONE, lines.encode())
        self._note = (self.folder / DONE).open("ab", buffering=0)

    def finish(self, final: Path) -> None:
        """Gives it its name, on disk; what was noted goes last."""
        for descriptor in self._open:
            os.fsync(descriptor)
        for folder in {(self.folder / file.name).parent for file in self.listing.files}:
            sync(folder)
        self.folder.rename(final)
        for name in (DONE, WHAT):
            (final / name).unlink(missing_ok=True)
        sync(final)
        sync(final.parent)

    def close(self) -> None:
        self._note.close()
        for descriptor in self._open:
            os.close(descriptor)

    def _same(self, what: _What) -> bool:
        try:
            return msgspec.json.decode((self.folder / WHAT).read_bytes(), type=_What) == what
        except (OSError, msgspec.MsgspecError):
            return False

    def _noted(self) -> set[Chunk]:
        """Whole lines of the note; of files that are there with all their bytes."""
        try:
            lines = (self.folder / DONE).read_text().split("\n")[:-1]
        except (OSError, UnicodeDecodeError):
            return set()
        pairs = [line.split() for line in lines]
        found = {(int(a), int(b)) for a, b in (p for p in pairs if len(p) == 2)}
        files = self.listing.files
        return {
            (number, chunk)
            for number, chunk in found
            if number < len(files)
            and chunk * CHUNK_BYTES < files[number].size_bytes
            and (self.folder / files[number].name).is_file()
        }

    def _opened(self, file: File) -> int:
        path = self.folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(descriptor, file.size_bytes)
        return descriptor


@contextmanager
def partial(into: Path, name: str, listing: Listing) -> Iterator[Partial]:
    """The part of `into`/`name` that is there. Raises StateError where another process fetches it
    just now."""
    folder = into / f".{name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"{folder}: another process is fetching this step there") from error
        except OSError:  # NFS locks no folder
            pass
        part = Partial(folder, listing)
        try:
            yield part
        finally:
            part.close()
    finally:
        os.close(held)
