"""The step journal: what each step of a replica was made with, in a folder that survives the
chain and the machine.

A saved checkpoint and the entries behind it give every later step again, bit for bit: each entry
names the digest of the state that it was applied to and of the state it led to. So entries form
chains by their digests, whoever wrote them, and however many jobs share the folder.

A segment is two files: NAME.gradients is a gradient log (state_file/gradient_log.py), with a step's
number as the iteration; NAME.jsonl has an entry a line. The line is written behind its gradient;
both reach the disk in a thread beside, so that a step never waits for it. A gradient that was not
on disk when the machine died does not have its checksum, and ends the chain there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEHIND,
    JOURNAL_GOES_ON,
    JOURNAL_NO_ROOM,
    JOURNAL_TOO_SMALL,
    JOURNAL_UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.private_files import append_private, make_folder
from flowcheck.replica.element_patch import ElementPatch
from flowcheck.replica.element_ranges import Ranges
from flowcheck.replica.state_file.gradient_log import GradientLog, log_file_space, open_log_file
from flowcheck.step_numbers import Iteration, Step

GRADIENTS, LINES = ".gradients", ".jsonl"
SEGMENT_STEPS = 32
"""Steps of a segment. A choice: more drop more at once when the folder is full, fewer make more
files."""
SEGMENTS_LEAST = 4
"""Segments that the folder has room for at least, so that dropping the oldest leaves most."""
BEHIND_STEPS, BEHIND_BYTES = 8, 256 << 20
"""Gradients that may wait for the disk, in the page cache; of small ones so many bytes. A choice:
more take more memory, fewer leave out steps after a shorter pause of the disk."""


class JournalLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a step, or the healing of elements of the step before."""

    step: Step
    before: str
    """Digest of the state that it was applied to."""
    digest: str
    """Digest of the state that it led to."""
    left_out: tuple[int, ...] | None = None
    """Numbers of the parameters that had no gradient; None: all always have one."""
    missing: bytes = b""
    """`Ranges` of elements that lacked a byte, as little-endian int64."""
    healed: bytes = b""
    """`Ranges` of elements whose values were replaced; else it is a step."""
    parts: dict[str, bytes] = {}
    """{section: these values}"""

    @property
    def lacked(self) -> Ranges:
        return _ranges(self.missing)

    @property
    def patch(self) -> ElementPatch | None:
        """What was healed; None: it is a step."""
        if not self.healed:
            return None
        parts = {name: np.frombuffer(part, np.uint8) for name, part in self.parts.items()}
        return ElementPatch(_ranges(self.healed), parts)


def _ranges(raw: bytes) -> Ranges:
    return np.frombuffer(raw, "<i8").astype(np.int64).reshape(-1, 2)


def _raw(ranges: Ranges) -> bytes:
    return ranges.astype("<i8").tobytes()


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry and where its gradient lies."""

    entry: JournalLine
    segment: Path
    """The file of entries."""

    def gradient(self, gradient_bytes: int) -> np.ndarray:
        """[gradient bytes] of the step. Raises StateError where it is not there undamaged."""
        file, step = self.segment.with_suffix(GRADIENTS), Iteration(self.entry.step)
        log = None
        try:
            log = open_log_file(file, gradient_bytes)
            if log is not None and step in log.iterations:
                return log.read(log.iterations.index(step)).copy()
        except (OSError, StateError) as error:
            raise StateError(JOURNAL_UNREADABLE(file=file, step=step)) from error
        finally:
            if log is not None:
                log.close()
        raise StateError(JOURNAL_UNREADABLE(file=file, step=step))


def read_entries(folder: Path) -> Iterator[JournalEntry]:
    """All whole entries below a folder, oldest segment first. Lines of something else are passed
    over. Raises OSError where the folder cannot be read."""
    for file in _oldest_first(folder.rglob(f"*{LINES}")):
        with suppress(FileNotFoundError):
            for line in file.read_bytes().split(b"\n"):
                with suppress(*DECODE_ERRORS):
                    yield JournalEntry(msgspec.json.decode(line, type=JournalLine), file)


def _oldest_first(files: Iterable[Path]) -> list[Path]:
    found = []
    for file in files:
        with suppress(FileNotFoundError):
            found.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(found)]


class StepJournal:
    """The writer, for one replica. Whatever fails costs the journal and never the step."""

    def __init__(
        self,
        folder: Path,
        size_bytes: int,
        gradient_bytes: int,
        say: Callable[[Finding], None],
    ) -> None:
        """folder: of this replica alone; size_bytes: that it may take; say: tells the operator."""
        self._folder, self._size_bytes = folder, size_bytes
        self._gradient_bytes, self._say = gradient_bytes, say
        self._each_bytes = log_file_space(folder, 1, gradient_bytes).size_bytes
        steps = size_bytes // SEGMENTS_LEAST // max(self._each_bytes, 1)
        self._steps = min(SEGMENT_STEPS, steps)
        self._segment: Path | None = None
        self._log: GradientLog | None = None
        self._disk = _Disk()
        self._told: Finding | None = None
        if not self._steps:
            needed = SEGMENTS_LEAST * self._each_bytes
            self._tell(JOURNAL_TOO_SMALL(folder=folder, size_bytes=size_bytes, needed=needed))

    def add_step(
        self,
        step: Step,
        states: tuple[str, str],
        gradient: np.ndarray,
        used: np.ndarray | None,
        missing: Ranges,
    ) -> None:
        """A step that was made just now. states: digests before and behind it; gradient:
        [gradient bytes] as it was applied; used: [parameters] bool; missing: elements that lacked a
        byte."""
        left_out = None if used is None else tuple(np.flatnonzero(~used).tolist())
        before, digest = states
        entry = JournalLine(
            step=step, before=before, digest=digest, left_out=left_out, missing=_raw(missing)
        )
        self._attempt(entry, gradient)

    def add_healing(self, step: Step, states: tuple[str, str], patch: ElementPatch) -> None:
        """Elements of the newest step whose values were replaced."""
        parts = {name: part.tobytes() for name, part in patch.parts.items()}
        before, digest = states
        healed = _raw(patch.elements)
        self._attempt(
            JournalLine(step=step, before=before, digest=digest, healed=healed, parts=parts), None
        )

    def _attempt(self, entry: JournalLine, gradient: np.ndarray | None) -> None:
        if not self._steps:
            return
        waiting_bytes = self._disk.waiting_bytes
        if waiting_bytes > max(BEHIND_BYTES, BEHIND_STEPS * self._gradient_bytes):
            what = {"folder": self._folder, "step": entry.step, "bytes": waiting_bytes}
            self._tell(JOURNAL_BEHIND(**what))
            return
        try:
            written = self._write(entry, gradient)
        except (OSError, StateError) as error:
            self._close_segment()
            self._tell(JOURNAL_NO_ROOM(folder=self._folder, step=entry.step, error=str(error)))
            return
        if not written:
            room = os.strerror(28)
            self._tell(JOURNAL_NO_ROOM(folder=self._folder, step=entry.step, error=room))
        elif self._told is not None:
            self._told = None
            self._say(JOURNAL_GOES_ON(folder=self._folder, step=entry.step))

    def _write(self, entry: JournalLine, gradient: np.ndarray | None) -> bool:
        if gradient is not None:
            fits = self._log is not None and not self._log.full
            fits = fits and entry.step > max(self._log.iterations, default=0)  # type: ignore[union-attr]
            if not fits:
                self._begin(entry)
            assert self._log is not None
            if not self._log.append(Iteration(entry.step), gradient):
                # The file system is fuller than the bound says: what is oldest makes room.
                self._drop_oldest()
                self._begin(entry)
                if not self._log.append(Iteration(entry.step), gradient):
                    self._close_segment()
                    return False
        elif self._segment is None:
            self._begin(entry)
        assert self._segment is not None
        append_private(self._segment, msgspec.json.encode(entry))
        self._disk.bring(self._segment, 0 if gradient is None else gradient.nbytes)
        return True

    def _begin(self, entry: JournalLine) -> None:
        """A new segment, with room made for it."""
        self._close_segment()
        make_folder(self._folder)
        space_bytes = log_file_space(self._folder, self._steps, self._gradient_bytes).size_bytes
        while _taken_bytes(self._folder) + space_bytes > self._size_bytes:
            if not self._drop_oldest():
                break
        name, again = f"steps-{entry.step}-{entry.before[:16]}", 0
        while (self._folder / f"{name}-{again}{LINES}").exists():
            again += 1  # a job that began alike
        self._segment = self._folder / f"{name}-{again}{LINES}"
        file = self._segment.with_suffix(GRADIENTS)
        file.unlink(missing_ok=True)  # a kill came before its first line
        space = log_file_space(file, self._steps, self._gradient_bytes)
        self._log = GradientLog([space], self._gradient_bytes)

    def _drop_oldest(self) -> bool:
        """Takes away the oldest segment but the open one. Whether there was one."""
        for file in _oldest_first(self._folder.glob(f"*{LINES}")):
            if file != self._segment:
                file.unlink(missing_ok=True)
                file.with_suffix(GRADIENTS).unlink(missing_ok=True)
                return True
        return False

    def _tell(self, found: Finding) -> None:
        """Once until it works again."""
        if self._told is None or self._told.code != found.code:
            self._told = found
            self._say(found)

    def _close_segment(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log = self._segment = None

    def close(self) -> None:
        """Waits for what is on its way to the disk."""
        self._disk.close()
        self._close_segment()


class _Disk:
    """Brings segments to the disk in a thread: what is written while it waits goes with the next
    time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._lock = threading.Lock()
        self._dirty: dict[Path, int] = {}
        self._on_its_way = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of gradients that may not be on the disk yet."""
        with self._lock:
            return sum(self._dirty.values()) + self._on_its_way

    def bring(self, segment: Path, size_bytes: int) -> None:
        """size_bytes: that were added to the segment."""
        with self._lock:
            idle = not self._dirty
            self._dirty[segment] = self._dirty.get(segment, 0) + size_bytes
        if idle:
            self._thread.submit(self._bring_all)

    def _bring_all(self) -> None:
        with self._lock:
            taken, self._dirty = self._dirty, {}
            self._on_its_way = sum(taken.values())
        try:
            for segment in taken:
                with suppress(OSError):  # what did not get there fails its checksum
                    _to_disk(segment)
        finally:
            with self._lock:
                self._on_its_way = 0

    def close(self) -> None:
        self._thread.shutdown(wait=True)


def _taken_bytes(folder: Path) -> int:
    total = 0
    for file in folder.glob("steps-*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_blocks * 512
    return total


def _to_disk(segment: Path) -> None:
    """The gradients first: a line that is on disk is of one that is."""
    for file in (segment.with_suffix(GRADIENTS), segment):
        with suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
