"""A gap of the step journal, written so that a kill loses neither the one before nor the new one:
two places in turn, each with a number and a checksum. The higher number of a sound one counts."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from mmap import mmap
from pathlib import Path

import msgspec
import xxhash

from flowcheck.errors import DECODE_ERRORS, ConfigError
from flowcheck.private_files import open_private
from flowcheck.replica.step_journal.journal_records import Gap

PLACE_BYTES = 512
"""Of one place: what a disk writes whole, or not at all."""
RECORD_BYTES = 2 * PLACE_BYTES
_HEAD = struct.Struct("<QQQ")  # number, bytes of the text, xxh3 of both and the text


class NotedGap(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gap that nothing has been kept behind."""

    gap: Gap | None = None
    """None: there is none."""
    segment: int = 0
    """On disk: the number of the newest segment then. What a newer one holds lies behind the gap
    and says so itself."""


def _written(raw: bytes) -> tuple[int, NotedGap]:
    """What the two places say, and its number. raw: [RECORD_BYTES]."""
    found = 0, NotedGap()
    for begin in (0, PLACE_BYTES):
        place = raw[begin : begin + PLACE_BYTES]
        if len(place) < _HEAD.size:
            continue
        number, size_bytes, check = _HEAD.unpack_from(place)
        text = place[_HEAD.size :][:size_bytes]
        if number > found[0] and check == _check(number, text):
            with suppress(*DECODE_ERRORS):
                found = number, msgspec.json.decode(text, type=NotedGap)
    return found


def _place(raw: bytes, noted: NotedGap) -> tuple[int, bytes]:
    """Where the next record goes, and its bytes. raw: as of `_written`."""
    number, text = _written(raw)[0] + 1, msgspec.json.encode(noted)
    record = _HEAD.pack(number, len(text), _check(number, text)) + text
    assert len(record) <= PLACE_BYTES, "two states and a step"
    return number % 2 * PLACE_BYTES, record


def _check(number: int, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", number, len(text)) + text)


class GapInMemory:
    """In shared memory; one thread at a time writes it."""

    def __init__(self, memory: mmap, begin: int) -> None:
        """begin: its offset there, of RECORD_BYTES bytes."""
        self._memory, self._begin = memory, begin
        self._gap = _written(self._raw)[1].gap

    @property
    def gap(self) -> Gap | None:
        return self._gap

    def note(self, gap: Gap | None) -> None:
        """It outlives this process from here on. None: there is none any more."""
        if gap == self._gap:
            return
        at, record = _place(self._raw, NotedGap(gap))
        begin = self._begin + at
        self._memory[begin : begin + len(record)] = record
        self._gap = gap

    @property
    def _raw(self) -> bytes:
        return self._memory[self._begin : self._begin + RECORD_BYTES]


class GapOnDisk:
    """In a file beside the segments, for whoever reads them."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def make_room(self) -> None:
        """So that a gap can be noted once the disk is full. Raises OSError, ConfigError as
        `open_private` does."""
        with suppress(FileNotFoundError):
            if self._file.lstat().st_size >= RECORD_BYTES:
                return
        descriptor = open_private(self._file, os.O_WRONLY | os.O_CREAT)
        try:
            if os.pwrite(descriptor, bytes(RECORD_BYTES), 0) < RECORD_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> NotedGap:
        """What is noted. Raises OSError where it cannot be read, ConfigError as `open_private`
        does."""
        try:
            descriptor = open_private(self._file, os.O_RDONLY)
        except FileNotFoundError:
            return NotedGap()
        try:
            return _written(os.pread(descriptor, RECORD_BYTES, 0))[1]
        finally:
            os.close(descriptor)

    def note(self, gap: Gap, segment: int) -> bool:
        """Whether it is on the disk now; segment: as of NotedGap."""
        noted = NotedGap(gap, segment)
        try:
            descriptor = open_private(self._file, os.O_RDWR | os.O_CREAT)
            try:
                raw = os.pread(descriptor, RECORD_BYTES, 0)
                if _written(raw)[1] != noted:
                    at, record = _place(raw, noted)
                    if os.pwrite(descriptor, record, at) < len(record):
                        return False
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except (OSError, ConfigError):
            return False
        return True
