"""Gradients from files that a chain's `[gradient_log]` wrote: for a run that follows no
connections, and from a peer that is still writing.

A record in the run directory names the files; they are only read. The number of the last applied
iteration lies in shared memory beside the replica, so that both exist or neither does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.gradient_sources import (
    LOG_CHANGED,
    LOG_CLOSED,
    LOG_GAP,
    NOT_A_SOURCE_RECORD,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.state_file.gradient_log import GradientLog, open_log_file
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.model_layout import optimizer_of
from flowcheck.stages.job_state.training_facts import training_of
from flowcheck.stages.replica_update.gradient_sources.gradient_source import (
    LateDifferences,
    SourceProgress,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration
from flowcheck.wire.traffic.observed_messages import Range
from flowcheck.wire.training_job.training_spec import TrainingFacts

RECORD_FORMAT = 1


class LogFilesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The gradient log files that a run's replica is stepped from."""

    files: tuple[str, ...]
    """In any order; each holds ascending iterations."""
    format: int = RECORD_FORMAT


def _record_of(run: RunDir) -> Path:
    return run.learned_folder / "gradient_logs.json"


def has_log_record(run: RunDir) -> bool:
    """Whether the run's gradients come from files."""
    return _record_of(run).exists()


def write_log_record(run: RunDir, files: Sequence[Path]) -> None:
    """Makes the updater read a run's gradients from these files from now on. Call it after the job
    (RunDir.learned_job or .training_spec) and its weights are written."""
    record = LogFilesRecord(files=tuple(str(file.absolute()) for file in files))
    write_atomically(_record_of(run), msgspec.json.encode(record))


def open_logs(
    run: RunDir, training: TrainingFacts, each: int, *, writes: bool = True
) -> LogFileSource:
    """The source of a run that has a record. writes: False for a process that is not the updater
    and only looks. Raises StateError where the record cannot be read."""
    path = _record_of(run)
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LogFilesRecord)
        if record.format != RECORD_FORMAT:
            raise msgspec.ValidationError(f"format {record.format}")
    except DECODE_ERRORS as error:
        raise StateError(NOT_A_SOURCE_RECORD(file=path, error=error)) from error
    files = [Path(file) for file in record.files]
    began = incarnation_of(run).iterations
    released = ReleasedIteration(run.memory / "released", began, writes=writes)
    return LogFileSource(files, training.gradient_bytes, released, each)


def log_progress(run: RunDir) -> SourceProgress | None:
    """How far a run that has a record is; None: it has none. Raises StateError as `open_logs`."""
    training = training_of(run) if has_log_record(run) else None
    if training is None:
        return None
    each = optimizer_of(training, run.settings()).synced_backwards
    source = open_logs(run, training, each, writes=False)
    try:
        return source.progress
    finally:
        source.close()


class ReleasedIteration:
    """An iteration number in a file of shared memory, changed by one store: never half written
    after a kill."""

    def __init__(self, path: Path, began: Iteration, *, writes: bool = True) -> None:
        """began: its value where there is no file yet. writes: False for who only reads it."""
        self._word: NDArray[np.uint64]
        if not path.exists():
            if not writes:
                self._word = np.array([began], np.uint64)
                return
            write_atomically(path, int(began).to_bytes(8, "little"), durable=False)
        self._word = np.memmap(path, "<u8", "r+" if writes else "r", shape=(1,))

    @property
    def value(self) -> Iteration:
        return Iteration(int(self._word[0]))

    @value.setter
    def value(self, iteration: Iteration) -> None:
        self._word[0] = iteration

    def close(self) -> None:
        del self._word


@dataclass(frozen=True, slots=True)
class LoggedGradient:
    """One record of a log; its checksum was correct when it was read."""

    iteration: Iteration
    data: NDArray[np.uint8]
    unbelieved: Sequence[Range] = ()

    def certain(self) -> bool:
        """True: whoever wrote the record had already checked that nothing contradicts it."""
        return True

    @property
    def doubted(self) -> bool:
        return False


def _lacking_bytes(log: GradientLog, index: int) -> int:
    return sum(stop - start for start, stop in log.lacks(index))


class LogFileSource:
    """Iterations from one or several logs, ascending."""

    def __init__(
        self, files: Sequence[Path], gradient_bytes: int, released: ReleasedIteration, each: int
    ) -> None:
        """each: iterations per step; a log holds those that end one, or all."""
        self._bytes, self._released, self._each = gradient_bytes, released, each
        self._logs: dict[Path, GradientLog | None] = dict.fromkeys(files)
        self._places: dict[Iteration, list[tuple[Path, GradientLog, int]]] = {}
        """Where an iteration is logged: file, log, index."""
        self._ascending: list[Iteration] = []
        self._found: LoggedGradient | None = None  # whose checksum need not be made again
        self._changed: dict[Iteration, Path] = {}
        self._told: Finding | None = None
        self._look()

    @property
    def gradient_bytes(self) -> int:
        return self._bytes

    @property
    def module_buffer_bytes(self) -> int:
        return 0

    @property
    def applied_iteration(self) -> Iteration:
        return self._released.value

    @property
    def next_iteration(self) -> Iteration:
        """The first iteration after the released one that a log holds."""
        logged = self._behind()
        return logged if logged is not None else Iteration(self.applied_iteration + 1)

    def arrived(self, iteration: Iteration) -> LoggedGradient | None:
        if iteration > self.applied_iteration + self._each:
            return None  # behind a gap
        if self._found is None or self._found.iteration != iteration:
            self._found = self._read(iteration)
        return self._found

    def module_buffers(self, iteration: Iteration) -> NDArray[np.uint8] | None:
        return None

    @property
    def partial(self) -> None:
        """None: a record only comes complete."""
        return None

    @property
    def ended(self) -> bool:
        return self._why_ended() is not None

    def new_finding(self) -> Finding | None:
        why = self._why_ended()
        if why is None or why == self._told:
            return None
        self._told = why
        return why

    def differing_late(self) -> Sequence[LateDifferences]:
        """(): whoever wrote a record had already checked that."""
        return ()

    def settle_late(self, late: LateDifferences) -> None:
        pass

    def release(self, iteration: Iteration) -> None:
        self._released.value = iteration

    def rewind(self, iteration: Iteration) -> None:
        self._found = None
        self._released.value = iteration

    def close(self) -> None:
        self._found = None
        for log in self._open:
            log.close()
        self._released.close()

    @property
    def progress(self) -> SourceProgress:
        """Whether a record is damaged is only known once it was read."""
        last, logged = self.applied_iteration, self._behind()
        complete = len(self._ascending) - bisect_right(self._ascending, last)
        never = None if self._why_ended() is None else Iteration(last + 1)
        return SourceProgress(
            gradient_bytes=self._bytes,
            applied_iteration=last,
            complete=complete,
            next_is_complete=logged is not None and never is None,
            lost_iteration=never,
            next_covered_bytes=None,
            covered_bytes=self._bytes * len(self._ascending),
        )

    @property
    def _open(self) -> list[GradientLog]:
        return [log for log in self._logs.values() if log is not None]

    def _look(self) -> None:
        """Reads what was added since the last look. Raises StateError where a file is no log of
        these gradients."""
        more = False
        for file, log in self._logs.items():
            if log is None:
                self._logs[file] = open_log_file(file, self._bytes)
                more = more or self._logs[file] is not None
            else:
                more = log.reread() or more
        if not more:
            return
        self._places = {}
        for file, log in self._logs.items():
            if log is None:
                continue
            for index, iteration in enumerate(log.iterations):
                self._places.setdefault(iteration, []).append((file, log, index))
        self._ascending = sorted(self._places)

    def _behind(self) -> Iteration | None:
        """The first logged iteration after the released one; None: no log holds one, also after
        another look."""
        last = self.applied_iteration
        if not self._ascending or self._ascending[-1] <= last:
            self._look()
        at = bisect_right(self._ascending, last)
        return self._ascending[at] if at < len(self._ascending) else None

    def _read(self, iteration: Iteration) -> LoggedGradient | None:
        """The iteration from the file that has most of it undamaged; None: no file has it."""
        if iteration in self._changed:
            return None
        places = self._places.get(iteration, ())
        for file, log, index in sorted(places, key=lambda place: _lacking_bytes(*place[1:])):
            try:
                data = log.read(index)
            except StateError:
                self._changed[iteration] = file
                continue
            self._changed.pop(iteration, None)
            return LoggedGradient(iteration, data, log.lacks(index))
        return None

    def _why_ended(self) -> Finding | None:
        """Why no further iteration comes; None: the next one is there, or may still come."""
        last, logged = self.applied_iteration, self._behind()
        if logged is None:
            return LOG_CLOSED(last=last) if any(log.closed for log in self._open) else None
        if logged > last + self._each:
            return LOG_GAP(iteration=logged, last=last)
        if logged in self._changed:
            return LOG_CHANGED(iteration=logged, file=self._changed[logged])
        return None
