"""The loop of `flowcheck audit --watch`: looks at a folder again and again, and takes each
checkpoint once, when it is whole and the replica has reached its step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import msgspec

from flowcheck.config import AuditConfig
from flowcheck.errors import FlowCheckError, is_disk_full
from flowcheck.findings.catalog.base_checkpoints import BASE_STILL_MISSING
from flowcheck.findings.catalog.file_audits import (
    CANNOT_LIST,
    KILLED_THE_WATCH,
    NO_ROOM,
    NOT_WHOLE,
    PARTS_REMOVED,
    STEP_AHEAD,
    STEP_NOT_REACHED_YET,
    STILL_CHANGES,
    THERE_BEFORE,
    TOO_MANY_ENTRIES,
    VANISHED,
)
from flowcheck.findings.catalog.run_directories import ANOTHER_REQUEST
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint import audit_command as audits
from flowcheck.ops.trainer_checkpoint.audit_watch import candidates
from flowcheck.ops.trainer_checkpoint.audit_watch.base_search import BaseSearch
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import Candidate
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import (
    MayBeBase,
    NotYet,
    audit_file,
    file_line,
)
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import FileHeal
from flowcheck.stages.job_state.audited_files import (
    AuditedFile,
    FileOutcome,
    read_audited_files,
)
from flowcheck.stages.run_directory.job_run_dirs import all_run_dirs
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR

LOOK_SHARE = 10
"""A look at a large folder takes at most one part in so many of the time. A choice."""
DEATHS_MAX = 2
"""Times that the watch may end while it reads a file, before it leaves the file out. A choice."""
EARLIER_MAX = 256
"""Files that were compared before and that the next one is held against. A choice."""
COMPARED = (FileOutcome.EQUAL, FileOutcome.DIFFERS, FileOutcome.STALE)
OF_A_JOB = (*COMPARED, FileOutcome.BASE)
"""Outcomes of files whose job is known."""


@dataclass(slots=True)
class _Waiting:
    """A candidate that was not taken yet."""

    one: Candidate
    since_s: float
    """When it was seen first with this stamp, or reached the replica's step last."""
    looks: int = 1
    """Looks in which it stood still."""
    ahead: NotYet | None = None
    """The step that the replica has to reach first."""
    lacks: Finding | None = None
    """What its reader or an earlier look says is missing, as long as it does not change."""
    unlearned: tuple[Finding, int] | None = None
    """Its job may be one that is not learned yet: how that was told, and the number of jobs with a
    replica then."""
    may_be_base: MayBeBase | None = None
    """Its job has no base, for which it waits as long as that takes."""


@dataclass(slots=True)
class _Healing:
    """A file that was compared, and whose values the updater has not taken yet."""

    heal: FileHeal
    since_s: float


@dataclass(slots=True)
class FolderWatch:
    """One watch of one folder, for one run."""

    where: RunDir
    settings: AuditConfig
    tell: Callable[[AuditedFile], None]
    """Is told of each file, in the order in which they were taken."""
    warn: Callable[[Finding], None]
    """Is told what keeps the watch from looking."""
    taken: list[AuditedFile] = field(default_factory=list)
    """The files that this watch took."""
    _earlier: list[AuditedFile] = field(default_factory=list)
    """Files of this folder that were compared, by this watch or one before it."""
    _done: set[tuple[str, str]] = field(default_factory=set)
    """(path, stamp) of everything that is not looked at again."""
    _waiting: dict[Path, _Waiting] = field(default_factory=dict)
    _folders: dict[Path, Candidate] = field(default_factory=dict)
    """Folders that were taken and are there still, to be known while they are removed."""
    _healing: list[_Healing] = field(default_factory=list)
    _bases: BaseSearch = field(init=False)
    _said: set[Finding] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._bases = BaseSearch(self.where, self._folder)

    def begin(self, since_ns: int | None = None) -> None:
        """Takes up what an earlier watch of the folder left; else the files that are there now
        were there before, and are listed as such unless they are to be compared. since_ns: files
        that changed after this time, since 1970, are new all the same."""
        files = [f for f in read_audited_files(self.where) if f.folder == str(self._folder)]
        deaths: dict[tuple[str, str], int] = {}
        for file in files:
            key = (file.file, file.stamp)
            if file.outcome is FileOutcome.READING:
                deaths[key] = deaths.get(key, 0) + 1
            else:
                deaths.pop(key, None)
                left = file.outcome is FileOutcome.WAITING or _waited_for_base(file)
                if not (left or (self.settings.existing and _was_before(file))):
                    self._done.add(key)
            if file.outcome in OF_A_JOB:
                self._earlier.append(file)
        killers = {key for key, times in deaths.items() if times >= DEATHS_MAX}
        for one in self._look():
            key = (str(one.path), one.stamp)
            if key in killers:
                self._take(file_line(self._folder, one, KILLED_THE_WATCH(DEATHS_MAX)))
                continue
            before = (since_ns is None or one.time_ns < since_ns) and not _is_none(one)
            if before and key not in self._done and not (files or self.settings.existing):
                self._take(file_line(self._folder, one, THERE_BEFORE()))

    def turn(self, stopping: Callable[[], bool] = lambda: False) -> float:
        """One look, and what it makes ready. Returns the seconds until the next look. stopping:
        asked between two files."""
        begun_s = time.monotonic()
        self._note(self._look())
        lasted_s = time.monotonic() - begun_s
        for healing in list(self._healing):
            if not stopping():
                self._heal(healing)
        for waiting in list(self._waiting.values()):
            if stopping():
                break
            try:
                self._try(waiting)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._say_no_room(waiting.one.path)
                break  # it is taken at a later look
        if not stopping():
            self._search_base()
        return max(self.settings.interval_s, lasted_s * LOOK_SHARE)

    def end(self, limit_s: float) -> None:
        """Takes what becomes whole within `limit_s` seconds, and says of the rest that it was not
        compared."""
        deadline_s = time.monotonic() + limit_s
        pause_s = min(self.settings.interval_s, limit_s / 8)
        self.turn()
        while (self._waiting or self._healing) and time.monotonic() < deadline_s:
            Event().wait(pause_s)
            self.turn()
        self._search_base(last=True)
        for waiting in list(self._waiting.values()):
            self._give_up(waiting, limit_s)
        for healing in list(self._healing):
            self._heal(healing, last=True)

    @property
    def _folder(self) -> Path:
        return Path(self.settings.folder)

    def _look(self) -> tuple[Candidate, ...]:
        """The candidates; () while the folder cannot be read, which is told once."""
        told: Finding | None = None
        found: tuple[Candidate, ...] = ()
        try:
            look = candidates.look_at(self._folder)
            found = look.candidates
            if look.cut:
                told = TOO_MANY_ENTRIES(folder=self._folder, limit=candidates.ENTRIES_MAX)
        except OSError as error:
            told = CANNOT_LIST(folder=self._folder, error=error.strerror or str(error))
        self._say_once(told)
        return found

    def _say_once(self, told: Finding | None) -> None:
        """told: what keeps the watch from its work; None: nothing does."""
        if told is not None and told not in self._said:
            self._said.add(told)
            self.warn(told)

    def _say_no_room(self, file: Path) -> None:
        self._say_once(NO_ROOM(file=file, folder=self.where.root))

    def _note(self, found: tuple[Candidate, ...]) -> None:
        now_s = time.monotonic()
        for path in self._folders.keys() - {one.path for one in found}:
            del self._folders[path]
        for path in self._waiting.keys() - {one.path for one in found}:
            self._take(file_line(self._folder, self._waiting[path].one, VANISHED()))
        for one in found:
            if (str(one.path), one.stamp) in self._done:
                continue
            known = self._waiting.get(one.path)
            if known is not None and known.one.stamp == one.stamp:
                known.looks += 1
            elif _is_none(one):
                self._waiting.pop(one.path, None)
                self._done.add((str(one.path), one.stamp))
            elif (taken := self._folders.get(one.path)) is not None and one.lost_parts_of(taken):
                self._done.add((str(one.path), one.stamp))  # it was taken, and is being removed
            else:
                removed = known is not None and one.lost_parts_of(known.one)
                lacks = PARTS_REMOVED() if removed else None
                self._waiting[one.path] = _Waiting(one, now_s, lacks=lacks)

    def _try(self, waiting: _Waiting) -> None:
        one = waiting.one
        if waiting.may_be_base is not None:
            return None  # `_search_base` has it
        if waiting.looks < 2 or (waiting.ahead is not None and not self._reached(waiting.ahead)):
            return self._expire(waiting)
        if waiting.unlearned is not None and waiting.unlearned[1] == self._learned():
            return self._expire(waiting)
        try:
            if self._unfinished(waiting) is not None:
                return self._expire(waiting)
        except OSError:
            return None  # it is gone at the next look
        self._write(self._under_way(one, STILL_CHANGES(), FileOutcome.READING))
        learned = self._learned()
        told = audit_file(self.where, self._folder, one, self._earlier[-EARLIER_MAX:])
        if isinstance(told, MayBeBase):
            waiting.may_be_base = told
            return None
        if isinstance(told, NotYet):
            self._write(self._under_way(one, _reason_of(told), FileOutcome.WAITING))
            if told.lacks is not None:
                waiting.lacks = told.lacks
                return self._expire(waiting)
            if told.unlearned is not None:
                waiting.unlearned = told.unlearned, learned
            elif told.step is None:
                waiting.looks = 0  # it changed: the next look takes it up anew, or tells its end
            elif waiting.ahead is None or waiting.ahead.at != told.at:
                waiting.ahead, waiting.since_s = told, time.monotonic()
            return None
        if isinstance(told, FileHeal):
            # From here on the file itself is not needed: it may be removed, or change.
            self._done.add((str(one.path), one.stamp))
            self._leave(one)
            healing = _Healing(told, time.monotonic())
            self._healing.append(healing)
            return self._heal(healing)
        return self._take(told)

    def _search_base(self, *, last: bool = False) -> None:
        """Looks for a base among the files that wait for one, and tells what they wait for. last:
        there is no later look."""
        waiting = [one for one in self._waiting.values() if one.may_be_base is not None]
        files = [one.may_be_base for one in waiting if one.may_be_base is not None]
        if self._bases.is_over(files):
            for one in waiting:
                one.may_be_base, one.since_s = None, time.monotonic()
            return
        try:
            for line in self._bases.given_up(files):
                self._take(line)
            pair = self._bases.pair_to_try(files, last=last)
            read = () if pair is None else (pair.first, pair.later)
            for file in read:
                self._write(self._under_way(file.one, STILL_CHANGES(), FileOutcome.READING))
            for line in () if pair is None else self._bases.attempt(pair):
                self._take(line)
            left = [file for file in files if file.one.path in self._waiting]
            for line in self._bases.changes(left):
                self.tell(line)
            for file in left if read else ():
                self._write(self._bases.waiting_line(file))
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._say_no_room(self._folder)

    def _heal(self, healing: _Healing, *, last: bool = False) -> None:
        """Gives a file's values to the updater. While that takes another request they wait for the
        next look. last: there is none."""
        told = healing.heal.attempt()
        waited_s = time.monotonic() - healing.since_s
        if told is None and (last or waited_s > self.settings.wait_s):
            told = healing.heal.failed(ANOTHER_REQUEST(healing.heal.run.root))
        if told is not None:
            self._healing.remove(healing)
            try:
                self._take(told)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._say_no_room(Path(told.file))

    def _learned(self) -> int:
        """How many jobs of the chain have a replica."""
        return sum(run.replica.exists() for run in all_run_dirs(self.where))

    def _reached(self, ahead: NotYet) -> bool:
        from flowcheck.replica.state_file.file_header import peek_versions

        run = ahead.run or self.where
        try:
            return max(peek_versions(run.replica)[1], default=0) >= (ahead.step or 0)
        except (FlowCheckError, OSError):
            return True  # the chain ended: what is left is compared with its digests

    @staticmethod
    def _unfinished(waiting: _Waiting) -> Finding | None:
        """Why its writer is not done with it; None: nothing says so. Raises OSError."""
        still_s = time.monotonic() - waiting.since_s
        return waiting.lacks or candidates.unfinished_reason(waiting.one, still_s)

    def _expire(self, waiting: _Waiting) -> None:
        if time.monotonic() - waiting.since_s > self.settings.wait_s:
            self._give_up(waiting, self.settings.wait_s)

    def _give_up(self, waiting: _Waiting, limit_s: float) -> None:
        one = waiting.one
        if (base := waiting.may_be_base) is not None:
            return self._take(self._bases.left(base))
        if (ahead := waiting.ahead) is not None:
            why = STEP_NOT_REACHED_YET(step=ahead.step, at=ahead.at, limit_s=limit_s)
            return self._take(file_line(self._folder, one, why, step=ahead.step))
        if waiting.unlearned is not None:
            return self._take(file_line(self._folder, one, waiting.unlearned[0]))
        try:
            reason = self._unfinished(waiting) or STILL_CHANGES()
        except OSError:
            return self._take(file_line(self._folder, one, VANISHED()))
        why = NOT_WHOLE(why=reason, limit_s=limit_s)
        return self._take(file_line(self._folder, one, why))

    def _take(self, file: AuditedFile) -> None:
        key = (file.file, file.stamp)
        self._done.add(key)
        waiting = self._waiting.get(Path(file.file))
        if waiting is not None and waiting.one.stamp == file.stamp:
            self._leave(waiting.one)
        self.taken.append(file)
        if file.outcome in OF_A_JOB:
            self._earlier.append(file)
        self.tell(file)
        self._write(file)

    def _under_way(self, one: Candidate, why: Finding, outcome: FileOutcome) -> AuditedFile:
        return file_line(self._folder, one, why, outcome=outcome)

    def _leave(self, one: Candidate) -> None:
        del self._waiting[one.path]
        if one.folder:
            self._folders[one.path] = one

    def _write(self, file: AuditedFile) -> None:
        audits.append_record(self.where, self.where.audit_files, file, durable=False)


def _is_none(one: Candidate) -> bool:
    """Whether it is no checkpoint of the trainer."""
    return candidates.is_own_output(one) or candidates.is_other_file(one)


def _reason_of(told: NotYet) -> Finding:
    """What a file waits for."""
    why = told.lacks or told.unlearned
    if why is not None:
        return why
    return STILL_CHANGES() if told.step is None else STEP_AHEAD(step=told.step, at=told.at)


def _waited_for_base(file: AuditedFile) -> bool:
    """Whether a watch ended while the file waited: the next one goes on with it."""
    return any(one.is_any_of(BASE_STILL_MISSING) for one in file.why)


def _was_before(file: AuditedFile) -> bool:
    return any(one.is_any_of(THERE_BEFORE) for one in file.why)


def chain_lives(where: RunDir, supervisor: int | None) -> bool:
    """Whether the chain whose supervisor had this pid runs still."""
    return supervisor is not None and supervisor_of(where) == supervisor


def supervisor_of(where: RunDir) -> int | None:
    """The pid of a run's supervisor; None: it has ended."""
    return where.port.stage_pids().get(SUPERVISOR.name)


def line_of_file(file: AuditedFile) -> bytes:
    """One line for programs."""
    told = msgspec.to_builtins(file)
    del told["stamp"]
    return msgspec.json.encode(told)
