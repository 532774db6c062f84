"""Finds the base of a job that was joined midstream among the files of a watched folder: of two
files of the trainer the logged steps must lead from the first to the second, as `flowcheck base
FILE --then LATER` proves it.

A pair of files is tried when the chain has read all that it had captured when the later file was
seen. Steps of which bytes are missing are logged a little later, so it is tried again when more
steps are logged, and then given up: no file is read again for a pair that was refused.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.base_checkpoints import (
    BASE_AWAITS_LATER,
    BASE_AWAITS_LOG,
    BASE_DELAYED,
    BASE_NOT_TRIED,
    BASE_STILL_MISSING,
    BASE_TRIED,
    BEING_JOINED,
    CHAIN_HAS_ENDED,
    CHAIN_WAS_KILLED,
    LOG_BEGINS_BEHIND,
    NO_JOB_YET,
    NO_PLACE,
    NO_UPDATER,
    NO_UPDATER_OF_REPLAY,
    NOT_THE_BASE,
    OF_JOB,
    OF_WHICH_JOB_OPEN,
    REPLAY_HAS_ENDED,
    REPLAY_WAS_KILLED,
    STATE_KNOWN,
    TOO_FEW_STEPS_LOGGED,
)
from flowcheck.findings.catalog.run_directories import (
    ANOTHER_REQUEST,
    REQUEST_WITHDRAWN,
    STILL_TAKEN,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import (
    Candidate,
    file_error_of,
    stamp_of,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import MayBeBase, file_line
from flowcheck.ops.trainer_checkpoint.audit_watch.job_of_file import STEP_IN_NAME, awaits_base
from flowcheck.ops.trainer_checkpoint.base_command import apply_base
from flowcheck.ops.trainer_checkpoint.base_proof import LogPosition
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.job_state.training_facts import known_training
from flowcheck.stages.replica_update.gradient_logs import logged_step_range
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir

TRIED_AGAIN = (2, 8)
"""Logged steps after the first attempt at which a pair is tried again. A step that lacks bytes is
logged once two later ones have come; the rest is a choice: more waits longer before a refusal."""
SEARCH_SHARE = 10
"""Attempts take at most one part in so many of the time. A choice: an attempt replays the log."""
FILES_MAX = 64
"""Files that wait to be tried. A choice: an attempt at a pair of more is not likely to come."""
NOT_YET = (
    ANOTHER_REQUEST,
    BEING_JOINED,
    CHAIN_HAS_ENDED,
    CHAIN_WAS_KILLED,
    NO_JOB_YET,
    NO_UPDATER,
    NO_UPDATER_OF_REPLAY,
    REPLAY_HAS_ENDED,
    REPLAY_WAS_KILLED,
    REQUEST_WITHDRAWN,
    STATE_KNOWN,
    STILL_TAKEN,
)
"""Refusals that say nothing about the files."""
_EPOCH = re.compile(r"epoch[-_=.]?\d+", re.IGNORECASE)

Key = tuple[str, str]
"""(path, stamp) of one content of a file."""
Logged = tuple[tuple[int, int, int], ...]
"""Of each job that may be meant: (incarnation, first logged step, last logged step)."""


@dataclass(slots=True)
class _Pair:
    """Two files, and what came of the attempts at them."""

    first: MayBeBase
    later: MayBeBase
    attempts: int = 0
    logged: Logged = ()
    """What was logged at the first attempt."""
    why: Finding | None = None
    """What the first file is told as, after the last attempt."""
    refused: bool = False

    @property
    def keys(self) -> tuple[Key, Key]:
        return _key(self.first.one), _key(self.later.one)

    @property
    def steps(self) -> int:
        return self.later.step - self.first.step


class BaseSearch:
    """The files of one folder that may be the base of a job, and the attempts at them."""

    def __init__(self, where: RunDir, folder: Path) -> None:
        self._where, self._folder = where, folder
        self._heads: dict[Key, tuple[int, ...]] = {}
        """What was captured when a file was seen first."""
        self._pairs: dict[tuple[Key, Key], _Pair] = {}
        self._attempts: Counter[str] = Counter()
        """Attempts at the files of a series of names."""
        self._told: dict[Key, Finding] = {}
        self._logs: dict[Path, tuple[int, int, int]] = {}
        """What was logged in this look, by run directory."""
        self._free_s = 0.0
        """Time of the next attempt, by the monotonic clock."""

    def is_over(self, files: Sequence[MayBeBase]) -> bool:
        """Whether one of the jobs that the files may be of has its base by now: then all files are
        to be looked at anew, and the search forgets them."""
        runs = {run.root: run for one in files for run in one.runs}
        if all(map(_awaits, runs.values())):
            return False
        self._heads.clear()
        self._pairs.clear()
        self._told.clear()
        return True

    def pair_to_try(self, files: Sequence[MayBeBase], *, last: bool) -> _Pair | None:
        """The two files that are to be tried now; None: none are. The series of names that was
        tried least goes first, the newest files of it before earlier ones: the log may not reach
        back to these. files: all that wait; last: there is no later look."""
        now_s, keys = time.monotonic(), {_key(one.one) for one in files}
        for key in keys - self._heads.keys():
            self._heads[key] = self._positions(self._where, tails=False)
        self._heads = {key: self._heads[key] for key in keys}
        self._told = {key: why for key, why in self._told.items() if key in keys}
        self._pairs = {key: one for key, one in self._pairs.items() if keys.issuperset(key)}
        self._logs.clear()
        if now_s < self._free_s and not last:
            return None
        due = [pair for pair in self._pairs_of(files) if self._is_due(pair, last=last)]

        def order(pair: _Pair) -> tuple[int, int]:
            return -self._attempts[self._series(pair.later)], pair.later.one.time_ns

        return max(due, key=order, default=None)

    def attempt(self, pair: _Pair) -> list[AuditedFile]:
        """Gives the first file to the updater, if the later one proves it to be the base. Returns
        the lines of the files whose search is over."""
        began_s = time.monotonic()
        try:
            return self._attempt(pair)
        finally:
            self._attempts[self._series(pair.later)] += 1
            self._free_s = began_s + SEARCH_SHARE * (time.monotonic() - began_s)

    def given_up(self, files: Sequence[MayBeBase]) -> list[AuditedFile]:
        """Lines of the oldest files, where more than FILES_MAX wait."""
        by_age = sorted(files, key=lambda one: one.one.time_ns)
        return [self._line(one, BASE_NOT_TRIED(FILES_MAX)) for one in by_age[:-FILES_MAX]]

    def waiting_line(self, one: MayBeBase) -> AuditedFile:
        """What a file waits for, as `changes` told it last."""
        why = self._told.get(_key(one.one), BASE_AWAITS_LATER())
        return self._line(one, why, FileOutcome.WAITING)

    def left(self, one: MayBeBase) -> AuditedFile:
        """The line of a file that waits still at the end of the watch."""
        why = self._told.get(_key(one.one), BASE_AWAITS_LATER())
        return self._line(one, BASE_STILL_MISSING(why=why))

    def changes(self, files: Sequence[MayBeBase]) -> list[AuditedFile]:
        """A line for each file that waits for something else than it was told to wait for."""
        pairs = [pair for pair in self._pairs_of(files) if not pair.refused]
        first = {_key(pair.first.one): pair for pair in pairs}
        lines = []
        for one in files:
            pair = first.get(_key(one.one))
            why = BASE_AWAITS_LATER()
            if pair is not None:
                why = pair.why or BASE_AWAITS_LOG(later=pair.later.one.path)
            if self._told.get(_key(one.one)) != why:
                self._told[_key(one.one)] = why
                lines.append(self.waiting_line(one))
        return lines

    def _attempt(self, pair: _Pair) -> list[AuditedFile]:
        first, later = pair.first, pair.later
        logged = self._logged(pair)
        pair.logged = pair.logged or logged
        if (held := _held(logged)) + TRIED_AGAIN[-1] < pair.steps:
            needed = {"step": first.step, "later": later.one.path, "needed": pair.steps}
            return self._refuse(pair, LOG_BEGINS_BEHIND(logged=held, **needed))
        target = first.runs[0] if len(first.runs) == 1 else self._where
        place = LogPosition(later_checkpoint=later.one.path)
        try:
            own, found = apply_base(target, first.one.path, place)
        except (FlowCheckError, OSError) as error:
            return self._refused(pair, error)
        runs = [run.root for run in all_run_dirs(self._where)]
        number = runs.index(own.root) + 1 if len(runs) > 1 else None
        line = self._line(first, found.why, FileOutcome.BASE)
        return [msgspec.structs.replace(line, job=number)]

    def _refused(self, pair: _Pair, error: FlowCheckError | OSError) -> list[AuditedFile]:
        """What follows from a refusal: nothing, another attempt, or that the first file is not the
        base."""
        first, later = pair.first, pair.later
        if any(stamp_of(one.one) != one.one.stamp for one in (first, later)):
            return []  # another content, or none: the next look tells
        known = isinstance(error, FlowCheckError)
        why = file_error_of(error, first.one.path)
        reasons = tuple(_reasons_of(why))
        if not known or not reasons or any(one.is_any_of(*NOT_YET) for one in reasons):
            pair.why = BASE_DELAYED(later=later.one.path, why=why)
            return []
        pair.attempts += 1
        again = any(one.is_any_of(NO_PLACE, TOO_FEW_STEPS_LOGGED) for one in reasons)
        if not again or pair.attempts > len(TRIED_AGAIN):
            return self._refuse(pair, why)
        pair.why = BASE_TRIED(later=later.one.path, why=why)
        return []

    def _refuse(self, pair: _Pair, why: Finding) -> list[AuditedFile]:
        """Gives a pair up, and its first file too, but where another file may be the next of the
        same series."""
        pair.refused = True
        if self._series(pair.first) != self._series(pair.later):
            return []
        return [self._line(pair.first, NOT_THE_BASE(later=pair.later.one.path, why=why))]

    def _pairs_of(self, files: Sequence[MayBeBase]) -> Iterator[_Pair]:
        """Each file with the last one of an earlier step: of the same series of names, or of any
        where its series has none."""
        for later in files:
            earlier = [one for one in files if one.step < later.step and _same_jobs(one, later)]
            own = [one for one in earlier if self._series(one) == self._series(later)]
            if earlier:
                first = max(own or earlier, key=lambda one: (one.step, one.one.time_ns))
                pair = _Pair(first, later)
                yield self._pairs.setdefault(pair.keys, pair)

    def _is_due(self, pair: _Pair, *, last: bool) -> bool:
        if pair.refused:
            return False
        if not pair.attempts:
            return last or self._was_read(pair)
        now, before = self._logged(pair), pair.logged
        if [one[0] for one in now] != [one[0] for one in before]:
            pair.attempts, pair.logged = 0, ()  # another incarnation has another log
            return True
        grown = max((new[2] - old[2] for new, old in zip(now, before, strict=True)), default=0)
        return grown >= (1 if last else TRIED_AGAIN[pair.attempts - 1])

    def _was_read(self, pair: _Pair) -> bool:
        """Whether what was captured when the later file was seen is extracted."""
        heads = self._heads.get(_key(pair.later.one), ())
        return all(
            tail >= head
            for run in pair.later.runs
            for head, tail in zip(heads, self._positions(run, tails=True), strict=False)
        )

    @staticmethod
    def _positions(run: RunDir, *, tails: bool) -> tuple[int, ...]:
        """How many frames each ring has taken, or the job's extractor; () where none can be
        read."""
        found = []
        with suppress(FlowCheckError, OSError):
            for number in range(len(run.port.settings().rings)):
                with FrameRing.open(run.ring(number), reader=run.reader) as ring:
                    found.append(ring.tail if tails else ring.head)
        return tuple(found)

    def _logged(self, pair: _Pair) -> Logged:
        for run in pair.first.runs:
            if run.root not in self._logs:
                self._logs[run.root] = _log_of(run)
        return tuple(self._logs[run.root] for run in pair.first.runs)

    def _line(
        self, one: MayBeBase, why: Finding, outcome: FileOutcome = FileOutcome.NOT_COMPARED
    ) -> AuditedFile:
        line = file_line(self._folder, one.one, why, outcome=outcome, step=one.step)
        return msgspec.structs.replace(line, job=one.job)

    def _series(self, one: MayBeBase) -> str:
        return _series_of(str(one.one.path.relative_to(self._folder)))


@lru_cache(maxsize=4 * FILES_MAX)
def _series_of(name: str) -> str:
    """What the names of one rank's files of all steps have in common."""
    without_step, found = STEP_IN_NAME.subn("#", name)
    return _EPOCH.sub("#", without_step) if found else re.sub(r"\d+", "#", name)


def _key(one: Candidate) -> Key:
    return str(one.path), one.stamp


def _same_jobs(one: MayBeBase, other: MayBeBase) -> bool:
    return {run.root for run in one.runs} == {run.root for run in other.runs}


def _awaits(run: RunDir) -> bool:
    try:
        return awaits_base(run)
    except (FlowCheckError, OSError):
        return False  # whoever looks at the file next tells why


def _log_of(run: RunDir) -> tuple[int, int, int]:
    life = incarnation_of(run).number
    try:
        steps = logged_step_range(run, run.settings(), known_training(run).gradient_bytes)
    except (FlowCheckError, OSError):
        steps = 1, 0  # `flowcheck base` tells why
    return life, *steps


def _held(logged: Logged) -> int:
    """Number of steps that the longest of the logs holds."""
    return max((last - first + 1 for _, first, last in logged), default=0)


def _reasons_of(why: Finding) -> Iterator[Finding]:
    """The reason; of several jobs each one's, without those that have a base."""
    if not why.is_any_of(OF_WHICH_JOB_OPEN):
        yield why
        return
    reasons = why.arguments["reasons"]
    for one in reasons if isinstance(reasons, tuple) else ():
        inner = one.arguments["why"] if isinstance(one, Finding) and one.is_any_of(OF_JOB) else one
        if isinstance(inner, Finding) and not inner.is_any_of(STATE_KNOWN):
            yield inner
