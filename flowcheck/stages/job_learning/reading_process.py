"""One reading of the staged messages in a forked process, so that extraction goes on meanwhile."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.ma  # np.unique asks for it at its first call: 40 ms in each forked reading

from flowcheck.atomic_write import atomic_path, write_atomically
from flowcheck.findings.catalog.job_selection_reasons import READING_EXITED, READING_KILLED
from flowcheck.plane.extraction.staged_snapshot import StagedSnapshot
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.private_files import PRIVATE_FILE_MODE
from flowcheck.stages.job_learning.stream_reading import ReadingOutcome, ReadingTerms, read_staged
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.wire.learn.reading import Deferred

READING_NICENESS = 5
"""Added to a reading's nice value (sched(7)): on a core it shares with the stages they go first, as
a ring that overflows is lost for good and a job that is learned later is not."""


RAISED, NOT_MADE = 3, 4
"""Exit codes of a child behind whose outcome something raised, which it leaves behind it, and of
one whose weights are not to be had. Any but 0, 1 and 2, which Python uses."""


class ToMake(NamedTuple):
    """What a reading makes behind its outcome, as that has it."""

    weights_source: bytes | None
    shard: ShardSize | None


NOTHING_TO_MAKE = ToMake(None, None)


@dataclass(frozen=True, slots=True)
class Behind:
    """How a child makes what its outcome asks for; as of `ReadingProcess`."""

    weights_file: Callable[[bytes | None], Path] | None
    by_another: ToMake
    prepare: Callable[[ShardSize], None] | None

    def asked(self, found: ReadingOutcome) -> ToMake:
        """What is left to make of it."""
        source, shard = found.weights_source, found.shard
        weights_made = self.weights_file is None or source == self.by_another.weights_source
        shard_made = self.prepare is None or shard == self.by_another.shard
        return ToMake(None if weights_made else source, None if shard_made else shard)

    def make(self, found: ReadingOutcome) -> int:
        """Makes it; returns the exit code."""
        source, shard = self.asked(found)
        if source is not None:
            assert self.weights_file is not None and found.deferred is not None
            if not _write_weights(self.weights_file(source), found.deferred):
                return NOT_MADE
        if shard is not None and self.prepare is not None:
            self.prepare(shard)
        return 0


class ReadingProcess:
    """A forked child that reads what is staged where it lies, and tells what it found.

    The child shares the staged payloads, so nothing is copied but the outcome, which it leaves in
    a file in memory. Behind the outcome it goes on to make what a job needs and what takes long: a
    file of the initial weights, which are gigabytes, and the shard. It may be killed at any
    instant.
    """

    def __init__(
        self,
        staged: Sequence[StagedSnapshot],
        terms: ReadingTerms,
        *,
        weights_file: Callable[[bytes | None], Path] | None = None,
        made_by_another: ToMake = NOTHING_TO_MAKE,
        prepare: Callable[[ShardSize], None] | None = None,
    ) -> None:
        """staged: [mirror point] as it is now, which the child joins. weights_file: where it
        writes initial weights of a source (`Weights.sources`; None: of another kind);
        made_by_another: what another reading makes; prepare: makes a shard. Raises OSError where
        no process can be had."""
        self._began_s = time.monotonic()
        self._file = os.memfd_create("reading", os.MFD_CLOEXEC)
        self._pidfd = self._told = -1
        self._code: int | None = None
        parent = os.getpid()
        try:
            self._told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._pid = os.fork()
        except OSError:
            self._close()
            raise
        if not self._pid:
            goes_on = Behind(weights_file, made_by_another, prepare)
            _child(self._file, self._told, parent, lambda: _found(staged, terms, goes_on), goes_on)
        self._pidfd = os.pidfd_open(self._pid)

    def wait(self, limit_s: float) -> bool:
        """Whether it has told its outcome, or ended, within so many seconds."""
        return bool(select.select([self._pidfd, self._told], [], [], limit_s)[0])

    def outcome(self) -> tuple[ReadingOutcome, float]:
        """Of a child that told it, or ended: what it found, and the seconds it took.

        Raises RuntimeError where the reading itself raised.
        """
        took_s = time.monotonic() - self._began_s
        told = bool(select.select([self._told], [], [], 0)[0])
        code = 0 if told else self._exit_code()
        if not told:
            why = READING_KILLED(-code) if code < 0 else READING_EXITED(code)
            self._close()
            return ReadingOutcome(why_not=(why,)), took_s
        found = next(self._on_file())
        if not found.goes_on:
            self._exit_code()  # it has nothing left to do
            self._close()
        if found.broke:
            raise RuntimeError(f"a reading of the stream failed:\n{found.broke}")
        return found, took_s

    def _on_file(self) -> Iterator[ReadingOutcome]:
        """What the child left, in its order. It may write on meanwhile, so the file is opened
        anew."""
        with Path(f"/proc/self/fd/{self._file}").open("rb") as file:
            while True:
                found = pickle.load(file)
                assert isinstance(found, ReadingOutcome)
                yield found

    def made(self, limit_s: float) -> bool | None:
        """Of a child that goes on behind its outcome: whether all that it goes on to make is
        there; None: not yet, within so many seconds. Raises RuntimeError where making it raised."""
        if self._pidfd < 0:
            return self._code == 0
        if not select.select([self._pidfd], [], [], limit_s)[0]:
            return None
        broke = ""
        if self._exit_code() == RAISED:
            _, raised = islice(self._on_file(), 2)
            broke = raised.broke
        self._close()
        if broke:
            raise RuntimeError(f"what a job needs could not be made:\n{broke}")
        return self._code == 0

    def kill(self) -> None:
        """Ends it if it still runs; nothing of it is left."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._exit_code()
        self._close()

    def _exit_code(self) -> int:
        """Waits for the end of the child."""
        self._code = code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return code

    def _close(self) -> None:
        for number in (self._file, self._told, self._pidfd):
            if number >= 0:
                os.close(number)
        self._file = self._told = self._pidfd = -1


def _write_weights(file: Path, deferred: Deferred) -> bool:
    """Whether the file is there, and no two copies of a byte differ. Where it finds no room, the
    stage is to meet that."""
    try:
        with atomic_path(file) as place:
            number = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE_MODE)
            try:
                sound = deferred.write(number)
            finally:
                os.close(number)
            if not sound:
                raise CopiesDifferError
    except (OSError, CopiesDifferError):
        return False
    return True


class CopiesDifferError(Exception):
    """Two copies of a byte of the weights differ: no file of them gets its name."""


def _child(
    file: int, told: int, parent: int, read: Callable[[], ReadingOutcome], behind: Behind
) -> None:
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
        _leave(file, replace(found, deferred=None))
        os.eventfd_write(told, 1)
        try:
            code = behind.make(found) if found.goes_on else 0
        except Exception:
            _leave(file, ReadingOutcome(broke=traceback.format_exc()))
            code = RAISED
    finally:
        os._exit(code)


def _leave(file: int, found: ReadingOutcome) -> None:
    """At the end of the file."""
    with os.fdopen(file, "wb", closefd=False) as out:
        pickle.dump(found, out, protocol=pickle.HIGHEST_PROTOCOL)


def _found(staged: Sequence[StagedSnapshot], terms: ReadingTerms, behind: Behind) -> ReadingOutcome:
    """What is read, with the weights in a file where they are put together by now."""
    found = read_staged(staged, terms)
    if behind.weights_file is not None:
        found = _with_file(found, behind.weights_file(None))
    return replace(found, goes_on=behind.asked(found) != NOTHING_TO_MAKE)


def _with_file(found: ReadingOutcome, weights_file: Path) -> ReadingOutcome:
    """The outcome with its weights in that file; where they find no room, the stage is to meet
    that."""
    if not isinstance(found.weights, np.ndarray):
        return found
    try:
        write_atomically(weights_file, found.weights.data)
    except OSError:
        return found
    return replace(found, weights=weights_file)
