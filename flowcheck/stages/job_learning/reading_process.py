"""One reading of the staged messages in a forked process, so that extraction goes on meanwhile."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.ma  # np.unique asks for it at its first call: 40 ms in each forked reading

from flowcheck.atomic_write import write_atomically
from flowcheck.findings.catalog.job_selection_reasons import READING_EXITED, READING_KILLED
from flowcheck.plane.extraction.staged_snapshot import StagedSnapshot
from flowcheck.stages.job_learning.stream_reading import ReadingOutcome, ReadingTerms, read_staged
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.wire.training_job.learned_job import LearnedJob

READING_NICENESS = 5
"""Added to a reading's nice value (sched(7)): on a core it shares with the stages they go first, as
a ring that overflows is lost for good and a job that is learned later is not."""


class ReadingProcess:
    """A forked child that reads what is staged where it lies, and what it found.

    The child shares the staged payloads, so nothing is copied but the outcome, which it leaves in
    a file in memory. It may be killed at any instant.
    """

    def __init__(
        self,
        staged: Sequence[StagedSnapshot],
        terms: ReadingTerms,
        *,
        weights_file: Path | None = None,
        prepare: Callable[[LearnedJob], None] | None = None,
    ) -> None:
        """staged: [mirror point] as it is now, which the child joins. What takes long the child
        does, while the stage extracts: weights_file: where it writes initial weights, which are
        gigabytes; prepare: called of a job that it proves. Raises OSError where no process can be
        had."""
        self._began_s = time.monotonic()
        self._file = os.memfd_create("reading", os.MFD_CLOEXEC)
        self._pidfd = -1
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._file)
            raise
        if not self._pid:
            _child(self._file, parent, lambda: _found(staged, terms, weights_file, prepare))
        self._pidfd = os.pidfd_open(self._pid)

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended, within so many seconds."""
        return bool(select.select([self._pidfd], [], [], limit_s)[0])

    def outcome(self) -> tuple[ReadingOutcome, float]:
        """Of a child that has ended: what it found, and the seconds it took.

        Raises RuntimeError where the reading itself raised.
        """
        took_s = time.monotonic() - self._began_s
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        os.close(self._pidfd)
        self._pidfd = -1
        with os.fdopen(self._file, "rb") as file:
            self._file = -1
            if code:
                why = READING_KILLED(-code) if code < 0 else READING_EXITED(code)
                return ReadingOutcome(why_not=(why,)), took_s
            file.seek(0)
            found = pickle.load(file)
        assert isinstance(found, ReadingOutcome)
        if found.broke:
            raise RuntimeError(f"a reading of the stream failed:\n{found.broke}")
        return found, took_s

    def kill(self) -> None:
        """Ends it if it still runs; nothing of it is left."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pidfd)
        if self._file >= 0:
            os.close(self._file)
        self._pidfd = self._file = -1


def _child(file: int, parent: int, read: Callable[[], ReadingOutcome]) -> None:
    """The child's whole life: no line of the stage, and no handler of its, runs after it."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not die_with_parent(parent):
            return
        gc.freeze()  # what the stage holds is not looked through, so its pages stay shared
        os.nice(READING_NICENESS)
        try:
            found = read()
        except Exception:
            found = ReadingOutcome(broke=traceback.format_exc())
        with os.fdopen(file, "wb", closefd=False) as out:
            pickle.dump(found, out, protocol=pickle.HIGHEST_PROTOCOL)
        code = 0
    finally:
        os._exit(code)


def _found(
    staged: Sequence[StagedSnapshot],
    terms: ReadingTerms,
    weights_file: Path | None,
    prepare: Callable[[LearnedJob], None] | None,
) -> ReadingOutcome:
    """What is read, with what the stage asked for."""
    found = _with_file(read_staged(staged, terms), weights_file)
    if found.job is not None and prepare is not None:
        prepare(found.job)
    return found


def _with_file(found: ReadingOutcome, weights_file: Path | None) -> ReadingOutcome:
    """The outcome with its weights in that file; where they find no room, the stage is to meet
    that."""
    if weights_file is None or not isinstance(found.weights, np.ndarray):
        return found
    try:
        write_atomically(weights_file, found.weights.data)
    except OSError:
        return found
    return replace(found, weights=weights_file)
