"""The folder of a step journal: segments, the oldest of which make room for newer ones.

A segment is two files: NAME.jsonl has a line per entry, NAME.gradients their bytes. Lines are
written behind their bytes, both to the disk, so a line that is there has its bytes unless the disk
lost them; a checksum tells that. Segments are numbered in the order in which they were begun.

steps.gap says what is not kept, as long as nothing behind it is (gap_records.py).
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from flowcheck.errors import DECODE_ERRORS, ConfigError
from flowcheck.private_files import make_folder, open_private
from flowcheck.replica.checkpoint_files.direct_io import ALIGN_BYTES, DIRECT_BYTES, DirectFile
from flowcheck.replica.step_journal.gap_records import GapOnDisk
from flowcheck.replica.step_journal.journal_records import Gap, JournalLine
from flowcheck.replica.step_journal.waiting_entries import WaitingEntry
from flowcheck.step_numbers import Step

LINES, GRADIENTS = ".jsonl", ".gradients"
GAP = "steps.gap"
SEGMENT_ENTRIES = 32
"""Entries of a segment. A choice: more drop more at once when the folder is full, fewer make more
files."""
SEGMENTS_LEAST = 4
"""Segments that the folder has room for at least, so that dropping the oldest leaves most. A full
disk drops none of fewer."""
_NAME = re.compile(rf"steps-(\d{{6,}})-from-\d+{re.escape(LINES)}")
"""Nothing else in the folder is read, counted or removed."""


class Segment(NamedTuple):
    """One of a folder, by its order."""

    number: int
    lines: Path

    @property
    def gradients(self) -> Path:
        return self.lines.with_suffix(GRADIENTS)


def segments_in(folder: Path) -> list[Segment]:
    """Oldest first; [] where there is no folder. Raises OSError where it cannot be read."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
        return sorted(Segment(int(name[1]), path) for name, path in found if name)
    return []


def entries_in(segment: Segment) -> list[JournalLine]:
    """Its whole lines; what is no line of a journal is passed over. Raises OSError where it cannot
    be read, ConfigError as `open_private` does."""
    with os.fdopen(open_private(segment.lines, os.O_RDONLY), "rb") as file:
        text = file.read()
    found = []
    for line in text.split(b"\n"):
        with suppress(*DECODE_ERRORS):
            found.append(msgspec.json.decode(line, type=JournalLine))
    return found


def open_gap_in(folder: Path) -> Gap | None:
    """What is not kept in a folder, where nothing behind it is. Raises as `entries_in` does."""
    noted = GapOnDisk(folder / GAP).read()  # first: a segment that is begun since ends it
    if noted.gap is None:
        return None
    newer = [one for one in segments_in(folder) if one.number > noted.segment]
    return None if any(entries_in(one) for one in newer) else noted.gap


class SegmentFigures(NamedTuple):
    """What a segment holds."""

    segment: Segment
    size_bytes: int
    steps: tuple[Step, ...]
    """The first and the last; (): none."""


class _OpenSegment:
    """The segment that is being written."""

    def __init__(self, segment: Segment, payload_bytes: int) -> None:
        """Raises OSError, as all of it does, and ConfigError as `open_private` does."""
        self.segment = segment
        self.steps: list[Step] = []
        self.size_bytes = 0
        new = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._lines = open_private(segment.lines, new | os.O_APPEND)
        self._gradients = -1
        try:
            self._gradients = _open_gradients(segment.gradients, new, payload_bytes)
            self._file = DirectFile(self._gradients, segment.gradients.name, 0)
            _sync_folder(segment.lines.parent)
        except BaseException:
            self.give_up()
            raise

    def append(self, entries: Sequence[WaitingEntry], gaps: Sequence[Gap | None]) -> None:
        """Writes them, to the disk. gaps: [entry] as of JournalLine."""
        text = b""
        for entry, gap in zip(entries, gaps, strict=True):
            payload = entry.payload[: entry.size_bytes]
            line = msgspec.structs.replace(
                entry.line,
                gap=gap,
                at=self.size_bytes,
                size_bytes=entry.size_bytes,
                checksum=xxhash.xxh3_128_digest(payload.data),
            )
            self._file.put(entry.payload, entry.size_bytes, self.size_bytes)
            self.size_bytes += -(-entry.size_bytes // ALIGN_BYTES) * ALIGN_BYTES
            text += msgspec.json.encode(line) + b"\n"
        os.fdatasync(self._gradients)
        if os.write(self._lines, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._lines)
        self.steps += [entry.line.step for entry in entries]

    def close(self) -> SegmentFigures:
        self._close()
        return SegmentFigures(self.segment, _size_bytes(self.segment), _ends(self.steps))

    def give_up(self) -> None:
        """Closes it where it holds no entry: its files are to be gone, however often that is."""
        self._close()
        _remove(self.segment)

    def _close(self) -> None:
        for descriptor in (self._lines, self._gradients):
            with suppress(OSError):  # what had to be on the disk was synced
                if descriptor >= 0:
                    os.close(descriptor)


def _open_gradients(path: Path, flags: int, payload_bytes: int) -> int:
    """Past the page cache where that is worth it and the file system can: half of the work of a
    write is to fill pages that nobody reads."""
    direct = os.O_DIRECT if payload_bytes >= DIRECT_BYTES else 0
    try:
        return open_private(path, flags | direct)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
        path.unlink(missing_ok=True)  # some file systems refuse it once the file is there
        return open_private(path, flags)


def _ends(steps: Sequence[Step]) -> tuple[Step, ...]:
    return (steps[0], steps[-1]) if steps else ()


def _remove(segment: Segment) -> None:
    """Raises OSError. Its lines last: without them nobody would find the bytes again."""
    segment.gradients.unlink(missing_ok=True)
    segment.lines.unlink(missing_ok=True)


def _size_bytes(segment: Segment) -> int:
    """On disk."""
    size_bytes = 0
    for file in segment.lines, segment.gradients:
        with suppress(FileNotFoundError):
            size_bytes += file.lstat().st_blocks * 512
    return size_bytes


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JournalFolder:
    """The writer of a folder. Everything in it may take as long as the disk does."""

    def __init__(self, folder: Path, size_bytes: int, payload_bytes: int) -> None:
        """folder: of this replica alone; size_bytes: that it may take; payload_bytes: of a
        gradient. Touches nothing yet."""
        self._folder, self._size_bytes, self._payload_bytes = folder, size_bytes, payload_bytes
        each = -(-max(payload_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES
        self.entries_max = min(SEGMENT_ENTRIES, size_bytes // SEGMENTS_LEAST // each)
        """Entries of a segment; 0: the folder may hold too few bytes."""
        self.needed_bytes = SEGMENTS_LEAST * each
        self._gap = GapOnDisk(folder / GAP)
        self._closed: deque[SegmentFigures] | None = None
        self._open: _OpenSegment | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk that its segments take."""
        opened = 0 if self._open is None else self._open.size_bytes
        return sum(one.size_bytes for one in self._segments) + opened

    @property
    def steps(self) -> tuple[Step | None, Step | None]:
        """The oldest and the newest step that are kept."""
        held = [one.steps for one in self._segments if one.steps]
        held += [_ends(self._open.steps)] if self._open is not None and self._open.steps else []
        return (held[0][0], held[-1][-1]) if held else (None, None)

    @property
    def _segments(self) -> deque[SegmentFigures]:
        """Those that are complete, oldest first."""
        if self._closed is None:
            self._closed = deque(_figures(one) for one in segments_in(self._folder))
        return self._closed

    def append(self, entries: Sequence[WaitingEntry], gaps: Sequence[Gap | None]) -> None:
        """Brings entries to the disk, in one segment. gaps: [entry] as of JournalLine.

        Raises OSError where that fails, ConfigError where the folder is not trusted; then none of
        them may be there.
        """
        for last in (False, True):
            try:
                self._place(entries).append(entries, gaps)
                return
            except OSError as error:
                self._end_segment()
                # The file system is fuller than the bound says: what is oldest makes room, but for
                # the newest segments, which a full disk is not to cost.
                no_room = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if last or not no_room or len(self._segments) < SEGMENTS_LEAST:
                    raise
                self._drop_oldest()

    def open_gap(self) -> Gap | None:
        """What is not kept, where nothing behind it is. Raises OSError, ConfigError."""
        return open_gap_in(self._folder)

    def note_gap(self, gap: Gap) -> None:
        """Says so in the folder, if it can: what is appended next lies behind it."""
        with suppress(OSError):
            self._end_segment()
            if held := segments_in(self._folder):
                self._gap.note(gap, held[-1].number)

    def _place(self, entries: Sequence[WaitingEntry]) -> _OpenSegment:
        """The segment for them, with room made for it."""
        needed = sum(entry.payload.size for entry in entries)
        opened = self._open
        if opened is not None and len(opened.steps) + len(entries) > self.entries_max:
            self._end_segment()
        while self.size_bytes + needed > self._size_bytes and self._drop_oldest():
            pass
        if self._open is None:
            if not self._folder.is_dir():
                make_folder(self._folder)
                with suppress(PermissionError):  # of a folder that this user may not read
                    _sync_folder(self._folder.parent)
            self._gap.make_room()
            number = max((one.number for one in segments_in(self._folder)), default=0) + 1
            name = f"steps-{number:06}-from-{entries[0].line.step}{LINES}"
            self._open = _OpenSegment(Segment(number, self._folder / name), self._payload_bytes)
        return self._open

    def _drop_oldest(self) -> bool:
        """Takes away the oldest segment but the open one. Whether there was one."""
        if not self._segments:
            return False
        _remove(self._segments[0].segment)
        self._segments.popleft()
        return True

    def _end_segment(self) -> None:
        if self._open is None:
            return
        ended, self._open = self._open, None
        if ended.steps:
            self._segments.append(ended.close())
        else:
            ended.give_up()

    def close(self) -> None:
        self._end_segment()


def _figures(segment: Segment) -> SegmentFigures:
    steps: tuple[Step, ...] = ()
    with suppress(OSError, ConfigError):  # what cannot be read keeps no step
        steps = _ends([line.step for line in entries_in(segment)])
    return SegmentFigures(segment, _size_bytes(segment), steps)
