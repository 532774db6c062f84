"""Log files of bounded size: append a line, trim to the newer half, read complete lines.

A chain may run for months, and its run directory may lie in memory (/run). At a step per second a
line of steps.jsonl (105 bytes, 470 with digests) fills its file in seven days (two), its events
(280 bytes) in one and a half; what is left then is the newer half at least.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flowcheck.atomic_write import put, write_atomically
from flowcheck.errors import has_no_room, naming_file
from flowcheck.private_files import open_private

LOG_BYTES = 8 << 20
"""Bytes of a stage's log; beyond them the newer half is kept. A choice: more takes disk, less keeps
less history."""
LOGS_EVERY_S = 10.0
"""Seconds between two looks at the logs' sizes. A choice: a log may be longer by what is written
meanwhile."""
EVENTS_BYTES = 32 << 20
"""Bytes of events.jsonl; beyond them the newer half is kept. A choice, as LOG_BYTES."""
STEPS_BYTES = 64 << 20
"""Bytes of steps.jsonl; beyond them the newer half is kept. A choice, as LOG_BYTES."""
TAIL_BYTES = 1 << 16
"""Bytes of a file's end that are read first; eight times as many as long as no whole line is in
them. A choice."""


def append_line(path: Path, line: bytes, most_bytes: int) -> None:
    """Appends a line, for the file's only writer. A file that grows beyond `most_bytes` is replaced
    by its newer half, once there is room for that. Raises OSError, and no part of the line stays;
    one that a kill tore is ended first: readers ask `is_complete_line`."""
    with naming_file(path):
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            added = b"\n" * torn + line + b"\n"
            put(descriptor, added, size)
        finally:
            os.close(descriptor)
    if size + len(added) > most_bytes:
        with _where_there_is_room():
            write_atomically(path, _newest(path, most_bytes // 2), durable=False)


def is_complete_line(line: bytes) -> bool:
    """Whether it is a JSON object, which no part of one is that a kill tore; one that ends in a
    brace may be none."""
    if not line.endswith(b"}"):
        return False
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def complete_lines(path: Path) -> list[bytes]:
    """Those of a file of JSON objects, oldest first; [] where there is none."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [line for line in lines if is_complete_line(line)]


@contextmanager
def _where_there_is_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not has_no_room(error):
            raise


def shorten(path: Path, most_bytes: int) -> None:
    """A file another process appends to keeps its newer half once it is beyond `most_bytes`. What
    is appended in the instant between may be lost."""
    try:
        if path.stat().st_size <= most_bytes:
            return
        tail = _newest(path, most_bytes // 2)
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND)
    except FileNotFoundError:
        return
    try:
        os.ftruncate(descriptor, 0)
        with _where_there_is_room():
            os.write(descriptor, tail)
    finally:
        os.close(descriptor)


class LogTrimmer:
    """What stages append to: how long each may get is looked at now and then."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files, self._at_s = files, 0.0

    def look(self) -> None:
        if time.monotonic() >= self._at_s:
            self._at_s = time.monotonic() + LOGS_EVERY_S
            for file in self._files:
                shorten(file, LOG_BYTES)


def _newest(path: Path, most_bytes: int) -> bytes:
    """The last whole lines that fit; of one line that is longer, its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most_bytes))
        tail = file.read()
    begin = tail.find(b"\n") + 1
    return tail[begin:] if begin < len(tail) else tail


def last_complete_line(path: Path) -> bytes | None:
    """The last line of a file of JSON objects that was written whole; None without one."""
    if not path.exists():
        return None
    size, length = path.stat().st_size, TAIL_BYTES
    while True:
        with path.open("rb") as file:
            file.seek(max(0, size - length))
            lines = file.read().split(b"\n")
        whole = lines if length >= size else lines[1:]
        found = next((line for line in reversed(whole) if is_complete_line(line)), None)
        if found is not None or length >= size:
            return found
        length *= 8
