"""A bounded log of gradients for steps that cannot be applied yet: first in memory, then in a
file.

A part of the log is one file, reserved in full when the first record comes to it: a header, then
records of one size: header, gradient. A record's header is written last, so that a kill leaves
whole records only. Which bytes a gradient lacks stands in a file beside, which is written before
its record and is part of the record's checksum; such a record has a magic number of its own.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, ConfigError, StateError
from flowcheck.findings.catalog.gradient_sources import OTHER_GRADIENTS
from flowcheck.findings.catalog.replica_state_errors import (
    LOG_CHANGED,
    LOG_NOT_WRITABLE,
    LOG_OUT_OF_ORDER,
    OTHER_LOG,
)
from flowcheck.private_files import make_folder, open_private, user_name
from flowcheck.step_numbers import Iteration

MAGIC = b"FCGRADS\n"
VERSION = 1
_HEADER = struct.Struct("<8sIQ")  # magic, version, gradient bytes
_FORMAT_BYTES = 12
"""Of the header: magic and version."""
_CLOSED_OFFSET = 64
_RECORD = struct.Struct("<8sQ16sQ")  # magic, iteration, xxh3 of the gradient, of what is before
_RECORD_MAGIC = b"FCGRAD1\n"
_LACKING_MAGIC = b"FCLACKS\n"
"""Of a gradient with zeros in place of bytes that never came. A reader that does not know it takes
the log to end there."""
LACKING_SUFFIX = ".lacking"
DATA_OFFSET = 4096
RECORD_ALIGN = 4096
ByteRange = tuple[int, int]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class LogFileSpace:
    """Where a part of the log may lie, and how much it may take."""

    path: Path
    size_bytes: int


def log_file_space(path: Path, records: int, gradient_bytes: int) -> LogFileSpace:
    """Of so many gradients."""
    return LogFileSpace(path, DATA_OFFSET + records * _stride(gradient_bytes))


def _stride(gradient_bytes: int) -> int:
    return -(-(_RECORD.size + gradient_bytes) // RECORD_ALIGN) * RECORD_ALIGN


def prepare_log(path: Path) -> None:
    """Has a log begin anew in the file `path`, in whose folder this process is to write. Raises
    ConfigError where it cannot: that is told before gradients come."""
    try:
        make_folder(path.parent)
        remove_stale_log(path)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        right = LOG_NOT_WRITABLE(user=user_name(os.geteuid()), error=error.strerror)
        raise ConfigError("gradient_log.file", str(path), right) from error


def remove_stale_log(path: Path) -> None:
    """Takes away what a chain before left in a file; one of something else stays."""
    with suppress(FileNotFoundError):
        with path.open("rb") as file:
            ours = file.read(len(MAGIC)) == MAGIC
        if ours:
            path.unlink()
            _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """The file that says what the gradients of a log lack: {iteration: int64 start, stop, ...}."""
    return path.with_name(path.name + LACKING_SUFFIX)


def open_log_file(path: Path, gradient_bytes: int) -> GradientLog | None:
    """What one file holds, for who only reads; another process may still write it. None: there is
    no log in it yet. Raises StateError where it is something else, or of other gradients."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        found = os.pread(descriptor, _HEADER.size, 0)
        size_bytes = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    expected = _HEADER.pack(MAGIC, VERSION, gradient_bytes)
    if found != expected:
        # Its writer may be amid the header: each byte is there or is not.
        if len(found) <= len(expected) and all(
            byte in (0, own) for byte, own in zip(found, expected, strict=False)
        ):
            return None
        raise StateError(OTHER_GRADIENTS(file=path, bytes=gradient_bytes))
    return GradientLog([LogFileSpace(path, size_bytes)], gradient_bytes, writes=False)


class _Header(NamedTuple):
    iteration: Iteration
    checksum: bytes
    """Of the gradient, and of what it lacks."""
    lacking: bool


class GradientLog:
    """Gradients of ascending iterations, oldest first, for their only writer, and for readers."""

    def __init__(
        self, rooms: list[LogFileSpace], gradient_bytes: int, *, writes: bool = True
    ) -> None:
        """rooms: in the order they are filled. Opens what is there already; writes: False for who
        only reads, and leaves the files as they are.

        Raises StateError where a file is of other gradients.
        """
        self._gradient_bytes = gradient_bytes
        stride = _stride(gradient_bytes)
        self._parts = [_LogFile(room, gradient_bytes, stride, writes=writes) for room in rooms]
        self._closed = any(part.closed for part in self._parts)
        self._iterations: list[Iteration] = []
        self.reread()

    def reread(self) -> bool:
        """Finds what its writer has added to the files that are open, for who only reads. Whether
        there was anything."""
        self._closed, before = any(part.closed for part in self._parts), len(self._iterations)
        while (found := self._header(len(self._iterations))) is not None:
            self._iterations.append(found.iteration)
        return len(self._iterations) > before

    @property
    def iterations(self) -> tuple[Iteration, ...]:
        """Those it holds, ascending."""
        return tuple(self._iterations)

    @property
    def closed(self) -> bool:
        """One found no room, so none that comes after it is of use."""
        return self._closed

    @property
    def full(self) -> bool:
        """The next one will find no room."""
        return self._place(len(self._iterations))[0] is None

    def append(
        self, iteration: Iteration, gradient: np.ndarray, lacks: Sequence[ByteRange] = ()
    ) -> bool:
        """Keeps one; False, and the log is closed, where there is no room for it.

        gradient: [gradient bytes]; lacks: byte ranges of it that never came, where it is zero.
        Raises StateError for one that does not follow the last.
        """
        if self._iterations and iteration <= self._iterations[-1]:
            last = self._iterations[-1]
            raise StateError(LOG_OUT_OF_ORDER(last=last, iteration=iteration))
        data = np.ascontiguousarray(gradient).reshape(-1).view(np.uint8)
        part, nth = None, len(self._iterations)
        if not self._closed:
            part, nth = self._place(nth)
            while part is not None and not part.reserve():
                part, nth = self._place(len(self._iterations))
        ranges = np.array(lacks, "<i8").tobytes()
        if part is not None and lacks and not part.note_lacking(iteration, ranges):
            part = None
        if part is None:
            self._closed = True
            for part in self._parts:
                part.close_for_good()
            return False
        magic = _LACKING_MAGIC if lacks else _RECORD_MAGIC
        head = magic + struct.pack("<Q", iteration) + _checksum(data, ranges)
        part.write(nth, head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)), data)
        self._iterations.append(iteration)
        return True

    def read(self, index: int) -> np.ndarray:
        """[gradient bytes] of the record at `index`, read-only, valid until `remove` or `close`.

        Raises StateError where it was changed.
        """
        part, nth = self._place(index)
        found = self._header(index)
        assert part is not None
        data = part.data(nth, self._gradient_bytes)
        if found is None or _checksum(data, self._ranges(index)) != found.checksum:
            raise StateError(LOG_CHANGED(path=part.path, record=index))
        return data

    def lacks(self, index: int) -> tuple[ByteRange, ...]:
        """Byte ranges that the gradient of the record at `index` lacks; `read` tells whether they
        were changed."""
        raw = self._ranges(index)
        flat = np.frombuffer(raw[: len(raw) // 16 * 16], "<i8").tolist()
        return tuple(zip(flat[::2], flat[1::2], strict=True))

    def _ranges(self, index: int) -> bytes:
        """As the file beside has them; b"" where it does not."""
        part, _ = self._place(index)
        found = self._header(index)
        assert part is not None
        if found is None or not found.lacking:
            return b""
        return part.lacking().get(found.iteration, b"")

    def forget_after(self, iteration: Iteration) -> None:
        """Takes away later ones, latest first: a kill amid of it leaves whole records in order."""
        while self._iterations and self._iterations[-1] > iteration:
            part, nth = self._place(len(self._iterations) - 1)
            assert part is not None
            part.forget(nth)
            self._iterations.pop()
        if not self._iterations:
            self.remove()

    def remove(self) -> None:
        """Forgets everything; the files are gone."""
        self._iterations.clear()
        self._closed = False
        for part in self._parts:
            part.remove()

    def close(self) -> None:
        """Lets go of the files; views handed out stay readable until they are dropped."""
        for part in self._parts:
            part.close()

    def _place(self, index: int) -> tuple[_LogFile | None, int]:
        for part in self._parts:
            if index < part.records_max:
                return part, index
            index -= part.records_max
        return None, 0

    def _header(self, index: int) -> _Header | None:
        part, nth = self._place(index)
        raw = part.header(nth) if part is not None else b""
        if len(raw) < _RECORD.size:
            return None
        magic, iteration, checksum, check = _RECORD.unpack(raw)
        known = magic in (_RECORD_MAGIC, _LACKING_MAGIC)
        if not known or check != xxhash.xxh3_64_intdigest(raw[:-8]):
            return None
        return _Header(Iteration(iteration), checksum, lacking=magic == _LACKING_MAGIC)


def _checksum(data: np.ndarray, ranges: bytes) -> bytes:
    found = xxhash.xxh3_128(data.data)
    found.update(ranges)
    return found.digest()


class _LogFile:
    """One file of the log. A file system without room for all of it gives none."""

    def __init__(
        self, room: LogFileSpace, gradient_bytes: int, stride: int, *, writes: bool
    ) -> None:
        self.path = room.path
        self.records_max = max(0, (room.size_bytes - DATA_OFFSET) // stride)
        self._stride = stride
        self._header = _HEADER.pack(MAGIC, VERSION, gradient_bytes)
        self._memory: mmap.mmap | None = None
        if writes and self.path.exists():
            self._open()
        elif not writes:
            self._look()

    def _look(self) -> None:
        """As it is by now; its writer may take it away at any time."""
        try:
            descriptor = open_private(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            if os.pread(descriptor, len(self._header), 0) == self._header:
                self._memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)

    def _open(self) -> None:
        descriptor = open_private(self.path, os.O_RDWR | os.O_CREAT)
        try:
            found = os.pread(descriptor, len(self._header), 0)
            unfinished = found != self._header and self._unfinished(descriptor, found)
            if found != self._header and not unfinished:
                raise StateError(OTHER_LOG(self.path))
            page_bytes = max(os.fstatvfs(descriptor).f_bsize, mmap.PAGESIZE)
            size_bytes = DATA_OFFSET + self.records_max * self._stride
            size_bytes = -(-size_bytes // page_bytes) * page_bytes
            os.posix_fallocate(descriptor, 0, size_bytes)
            memory = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        memory[: len(self._header)] = self._header
        if unfinished:
            memory[_CLOSED_OFFSET] = 0
        self._memory = memory

    def _unfinished(self, descriptor: int, found: bytes) -> bool:
        """A kill came while its header was written, by a chain of whatever gradients: every byte of
        what tells the format is there or is not, and nothing is kept behind it."""
        told = zip(found[:_FORMAT_BYTES], self._header, strict=False)
        return all(byte in (0, own) for byte, own in told) and not os.pread(
            descriptor, _RECORD.size, DATA_OFFSET
        ).strip(b"\0")

    def reserve(self) -> bool:
        """Makes the file where there is none; False where the file system has no room for it."""
        if self._memory is None:
            try:
                self._open()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.path.unlink(missing_ok=True)
                self.records_max = 0
        return self._memory is not None

    @property
    def closed(self) -> bool:
        return self._memory is not None and self._memory[_CLOSED_OFFSET] == 1

    def close_for_good(self) -> None:
        if self._memory is not None:
            self._memory[_CLOSED_OFFSET] = 1

    def header(self, nth: int) -> bytes:
        at = DATA_OFFSET + nth * self._stride
        return self._memory[at : at + _RECORD.size] if self._memory is not None else b""

    def data(self, nth: int, size_bytes: int) -> np.ndarray:
        assert self._memory is not None
        at = DATA_OFFSET + nth * self._stride + _RECORD.size
        view = np.frombuffer(self._memory, np.uint8, size_bytes, at)
        view.flags.writeable = False
        return view

    def write(self, nth: int, header: bytes, data: np.ndarray) -> None:
        assert self._memory is not None
        at = DATA_OFFSET + nth * self._stride
        np.frombuffer(self._memory, np.uint8, len(data), at + _RECORD.size)[:] = data
        self._memory[at : at + len(header)] = header

    def forget(self, nth: int) -> None:
        assert self._memory is not None
        at = DATA_OFFSET + nth * self._stride
        self._memory[at : at + _RECORD.size] = bytes(_RECORD.size)

    def note_lacking(self, iteration: Iteration, ranges: bytes) -> bool:
        """Writes what the gradient of an iteration lacks; False where the file system has no room.
        What a kill left of an iteration without its record gives way."""
        told = msgspec.msgpack.encode(self.lacking() | {iteration: ranges})
        try:
            write_atomically(_beside(self.path), told, durable=False)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def lacking(self) -> dict[int, bytes]:
        """{iteration: byte ranges that its gradient lacks}; {} where the file is not readable."""
        with suppress(FileNotFoundError, *DECODE_ERRORS):
            return msgspec.msgpack.decode(_beside(self.path).read_bytes(), type=dict[int, bytes])
        return {}

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)
        _beside(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        self._memory = None
