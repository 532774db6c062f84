"""The writer of the step journal, for one replica. Whatever fails costs the journal and never the
step: an entry is copied to shared memory, and a thread brings it to the disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEHIND,
    JOURNAL_ENTRY_TOO_LARGE,
    JOURNAL_GOES_ON,
    JOURNAL_LEFT_WAITING,
    JOURNAL_NO_MEMORY,
    JOURNAL_NO_ROOM,
    JOURNAL_STOPPED,
    JOURNAL_TOO_SMALL,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.state_digest import StateId
from flowcheck.replica.step_journal.journal_figures import JournalFigures, read_figures
from flowcheck.replica.step_journal.journal_folder import JournalFolder
from flowcheck.replica.step_journal.journal_records import JournalLine, gap_over, joined
from flowcheck.replica.step_journal.waiting_entries import (
    WaitingEntries,
    WaitingEntry,
)
from flowcheck.replica.step_journal.waiting_sizes import waiting_bytes

CLOSE_S = 3.0
"""Seconds that the end of the updater waits for what is on its way to the disk. A choice, below the
time after which a stage that does not end is killed (supervisor.py, GRACE_S)."""


class StepJournal:
    """Takes entries from the updater, which it never makes wait."""

    def __init__(
        self,
        folder: Path,
        size_bytes: int,
        gradient_bytes: int,
        newest: StateId,
        *,
        waiting: Path,
        figures: Path,
    ) -> None:
        """folder: of this replica alone; size_bytes: that it may take; newest: the replica's state;
        waiting: file of entries that wait, in shared memory; figures: file of `JournalFigures`.
        What waits there from an updater before goes first."""
        self._folder, self._figures = folder, figures
        self._disk = JournalFolder(folder, size_bytes, gradient_bytes)
        before = read_figures(figures)
        self._not_kept = 0 if before is None else before.not_kept
        self._lock = threading.Condition()
        self._findings: deque[Finding] = deque()
        self._told: Finding | None = None
        self._stopped: Finding | None = None
        """Why the thread has ended before its time."""
        self._uncommitted: WaitingEntry | None = None
        self._closing = self._has_new = False
        self._waiting: WaitingEntries | None = None
        if not self._disk.entries_max:
            needed = self._disk.needed_bytes
            self._keep_none(JOURNAL_TOO_SMALL(folder=folder, size_bytes=size_bytes, needed=needed))
            return
        try:
            self._waiting = WaitingEntries(waiting, gradient_bytes)
        except (OSError, FlowCheckError) as error:
            what = {"size_bytes": waiting_bytes(gradient_bytes), "error": _why(error)}
            self._keep_none(JOURNAL_NO_MEMORY(folder=folder, file=waiting, **what))
            return
        for entry in iter(self._waiting.uncommitted, None):
            self._uncommitted = entry
            self._settle(newest)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, line: JournalLine, parts: Sequence[np.ndarray] = ()) -> None:
        """Keeps a change, as of now: what `parts` are may change behind this. parts: its bytes, one
        behind the other. To be called before anybody sees the changed state, with `committed`
        behind that: a kill between leaves it to the next updater, which sees what the replica
        has."""
        if self._waiting is None:
            return
        self._settle(line.before)
        line = msgspec.structs.replace(line, gap=self._waiting.left_out.gap)
        if not self._waiting.fits(line, parts):
            size_bytes = sum(part.nbytes for part in parts)
            what = JOURNAL_ENTRY_TOO_LARGE(folder=self._folder, step=line.step, bytes=size_bytes)
        elif entry := self._waiting.put(line, parts):
            self._uncommitted = entry
            return
        else:
            what = self._stopped or JOURNAL_BEHIND(folder=self._folder, step=line.step)
        self._waiting.left_out.note(gap_over(None, line))
        self._leave_out(1, what)
        self._wake()

    def committed(self) -> None:
        """The change that was added last is the replica's."""
        if self._uncommitted is not None:
            self._settle(self._uncommitted.line.behind)

    def _settle(self, newest: StateId) -> None:
        """What waits for its commit has it, or never will. newest: the replica's state."""
        entry, self._uncommitted = self._uncommitted, None
        if entry is None or self._waiting is None:
            return
        if entry.line.behind == newest:
            self._waiting.commit(entry)
            self._wake()
        else:
            self._waiting.withdraw(entry)

    def _keep_none(self, why: Finding) -> None:
        self._told = why
        self._findings.append(why)
        self._write_figures()

    def new_finding(self) -> Finding | None:
        """What the operator is to know; each is returned once."""
        with suppress(IndexError):
            return self._findings.popleft()
        return None

    def close(self) -> None:
        """Waits for what is on its way to the disk, CLOSE_S at most. What waits then is for the
        next updater."""
        if self._waiting is None:
            return
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and (left := self._waiting.waiting()):
            told = {"count": len(left), "step": left[0].line.step}
            self._findings.append(JOURNAL_LEFT_WAITING(folder=self._folder, **told))

    def _wake(self) -> None:
        with self._lock:
            self._has_new = True
            self._lock.notify()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # nobody else would tell that nothing is kept any more
            self._stopped = JOURNAL_STOPPED(folder=self._folder, error=repr(error))
            self._leave_out(0, self._stopped)
            with suppress(Exception):
                self._write_figures()

    def _work(self) -> None:
        assert self._waiting is not None
        self._find_gap(self._waiting)
        while True:
            entries = self._waiting.waiting()
            for first in range(0, len(entries), self._disk.entries_max):
                self._bring(entries[first : first + self._disk.entries_max])
            self._write_figures()
            with self._lock:
                while not (self._has_new or self._closing):
                    self._lock.wait()
                if self._closing and not self._has_new:
                    break
                self._has_new = False
        with suppress(OSError):
            self._disk.close()

    def _find_gap(self, waiting: WaitingEntries) -> None:
        """Of a writer whose shared memory is gone."""
        if waiting.unwritten.gap is None:
            with suppress(OSError, FlowCheckError):  # nothing can be read there, by nobody
                waiting.unwritten.note(self._disk.open_gap())

    def _bring(self, entries: list[WaitingEntry]) -> None:
        assert self._waiting is not None
        unwritten = self._waiting.unwritten
        gaps = [entry.line.gap for entry in entries]
        gaps[0] = joined(unwritten.gap, gaps[0])
        try:
            self._disk.append(entries, gaps)
        except (OSError, FlowCheckError) as error:
            self._not_written(entries, error)
        else:
            unwritten.note(None)
            behind_gap = [entry for entry, gap in zip(entries, gaps, strict=True) if gap]
            if behind_gap:
                self._go_on(behind_gap[-1])
        for entry in entries:
            self._waiting.remove(entry)

    def _not_written(self, entries: list[WaitingEntry], error: OSError | FlowCheckError) -> None:
        assert self._waiting is not None
        gap = self._waiting.unwritten.gap
        for entry in entries:
            gap = gap_over(gap, entry.line)
        assert gap is not None, "of one entry at least"
        self._waiting.unwritten.note(gap)
        self._disk.note_gap(gap)
        step = entries[0].line.step
        what = JOURNAL_NO_ROOM(folder=self._folder, step=step, error=_why(error))
        self._leave_out(len(entries), what)

    def _leave_out(self, count: int, what: Finding) -> None:
        """Told once until it works again."""
        with self._lock:
            self._not_kept += count
            if self._told is None or self._told.code != what.code:
                self._findings.append(what)
            self._told = what

    def _go_on(self, entry: WaitingEntry) -> None:
        with self._lock:
            self._told = None
            told = JOURNAL_GOES_ON(folder=self._folder, step=entry.line.step)
            self._findings.append(told)

    def _write_figures(self) -> None:
        try:
            (first, last), size_bytes = self._disk.steps, self._disk.size_bytes
        except OSError:  # told with the next entry
            first, last, size_bytes = None, None, 0
        with self._lock:
            figures = JournalFigures(
                folder=str(self._folder),
                size_bytes=size_bytes,
                first_step=first,
                last_step=last,
                not_kept=self._not_kept,
                why_not=self._told,
            )
        with suppress(OSError, FlowCheckError):  # a full disk is told of elsewhere
            write_atomically(self._figures, msgspec.json.encode(figures), durable=False)


def _why(error: OSError | FlowCheckError) -> Finding | str:
    if isinstance(error, FlowCheckError):
        return error.finding
    return error.strerror or os.strerror(error.errno or 0)
