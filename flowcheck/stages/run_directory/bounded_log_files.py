"""Log files of bounded size: append a line, trim to the newer half, read complete lines.

A chain may run for months, and its run directory may be in memory (/run). At one step per second,
steps.jsonl (105 bytes per line) is full after seven days, or after two with digests (470 bytes),
and events.jsonl (280 bytes) after one and a half. At least the newer half of a full file stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from flowcheck.atomic_write import write_all_at, write_atomically
from flowcheck.errors import is_disk_full, naming_file
from flowcheck.private_files import open_private

LOG_BYTES = 8 << 20
"""Most bytes of a stage's log; a longer log is cut to its newer half. A choice: more takes disk,
less keeps less history."""
LOGS_EVERY_S = 10.0
"""Seconds between two checks of the logs' sizes. A choice: a log may exceed its limit by what is
written in between."""
EVENTS_BYTES = 32 << 20
"""Most bytes of events.jsonl; a longer file is cut to its newer half. A choice: more takes disk,
less keeps less history."""
STEPS_BYTES = 64 << 20
"""Most bytes of steps.jsonl; a longer file is cut to its newer half. A choice: more takes disk,
less keeps less history."""
TAIL_BYTES = 1 << 16
"""Bytes that are read first from a file's end to find its last line; then eight times as many,
until a complete line is found. A choice."""


def append_line(path: Path, line: bytes, most_bytes: int) -> None:
    """Appends a line; for a file with a single writer.

    If a kill left the last line incomplete, a newline ends it first; readers check
    `is_complete_line`. A file that grows beyond `most_bytes` is replaced by its newer half, as soon
    as there is room for it. Raises OSError; then no part of the line is in the file.
    """
    with naming_file(path):
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            added = b"\n" * torn + line + b"\n"
            write_all_at(descriptor, added, size)
        finally:
            os.close(descriptor)
    if size + len(added) > most_bytes:
        with _where_there_is_room():
            write_atomically(path, _newest(path, most_bytes // 2), durable=False)


def is_complete_line(line: bytes) -> bool:
    """Whether a line is a complete JSON object, not the beginning of one that a kill left."""
    if not line.endswith(b"}"):
        return False
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def complete_lines(path: Path) -> list[bytes]:
    """The complete lines of a file of JSON objects, oldest first; [] if there is no file."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [line for line in lines if is_complete_line(line)]


@contextmanager
def _where_there_is_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise


def shorten(path: Path, most_bytes: int) -> None:
    """Cuts a file to which another process appends to its newer half if it is longer than
    `most_bytes`. Lines that the other process appends at this moment may be lost."""
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
    """Cuts the stages' logs to LOG_BYTES, at most every LOGS_EVERY_S seconds."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files, self._at_s = files, 0.0

    def look(self) -> None:
        if time.monotonic() >= self._at_s:
            self._at_s = time.monotonic() + LOGS_EVERY_S
            for file in self._files:
                shorten(file, LOG_BYTES)


def _newest(path: Path, most_bytes: int) -> bytes:
    """The last complete lines that fit into `most_bytes`; the end of a line that is longer."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - most_bytes))
        tail = file.read()
    begin = tail.find(b"\n") + 1
    return tail[begin:] if begin < len(tail) else tail


def last_complete_line(path: Path) -> bytes | None:
    """The last complete line of a file of JSON objects; None without one."""
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


def cut_last_line(path: Path, line: bytes) -> None:
    """Cuts a file off before its last complete line; for its single writer. Raises OSError."""
    with path.open("r+b") as file:
        begin = max(0, path.stat().st_size - len(line) - TAIL_BYTES)
        file.seek(begin)
        at = file.read().rfind(line)
        if at >= 0:
            file.truncate(begin + at)
