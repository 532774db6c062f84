"""The two writers of the lifecycle record: each stage writes its own part alone. Only here do the
states of the stages and of incarnations change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import is_disk_full
from flowcheck.findings.finding import Finding
from flowcheck.stages.job_state.lifecycle_record_reader import extract_part_of, update_part_of
from flowcheck.stages.job_state.lifecycle_record_schema import (
    ANSWERS_KEPT,
    CheckpointRequest,
    ExtractPart,
    Incarnation,
    LifecycleRecord,
    RequestAnswer,
    RestartVerdict,
    UpdatePart,
)
from flowcheck.stages.job_state.lifecycle_state_machines import (
    EXTRACT_TRANSITIONS,
    INCARNATION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    ExtractState,
    ReplicaState,
    check_transition,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

UNSTORED_STATES = {ExtractState.CLOSING, ExtractState.ENDED}
"""States that are not on file: a process that is started again reaches them by itself."""


class ExtractLifecycle:
    """The writer of the extractor's part."""

    def __init__(self, run: RunDir, tell: Callable[[Finding], None], *, awaits_base: bool) -> None:
        """Continues from what is on file. tell: tells the operator; awaits_base: the job file says
        that the first incarnation begins with an unknown state."""
        self.run, self._tell = run, tell
        self.part = extract_part_of(run)
        if not run.extract_record.exists():
            if awaits_base and self.part.followed == Incarnation():
                self.part = msgspec.structs.replace(self.part, followed=Incarnation(step=None))
            _write_if_room(run.extract_record, self.part)
        self.state = self.part.state

    def enter(self, state: ExtractState, **changes: Any) -> None:
        """Enters a state. changes: fields of the part, on file together with the state when this
        returns."""
        check_transition("extraction", EXTRACT_TRANSITIONS, self.state, state, self._tell)
        on_file = self.part.state if state in UNSTORED_STATES else state
        part = msgspec.structs.replace(self.part, state=on_file, **changes)
        if part != self.part:
            update = update_part_of(self.run)
            before, after = LifecycleRecord(self.part, update), LifecycleRecord(part, update)
            _check_incarnations(before, after, self._tell)
            _write(self.run.extract_record, part)
        self.part, self.state = part, state

    def await_base(self) -> None:
        """The job is joined midstream, from an unknown state. To be called before the job itself is
        on file."""
        followed = msgspec.structs.replace(self.part.followed, step=None)
        self.enter(self.state, followed=followed)

    def verdict(self) -> RestartVerdict | None:
        """The updater's verdict on what is offered; None: there is none yet."""
        return LifecycleRecord(self.part, update_part_of(self.run)).verdict


class UpdateLifecycle:
    """The writer of the updater's part."""

    def __init__(self, run: RunDir, tell: Callable[[Finding], None]) -> None:
        """Continues from what is on file. tell: tells the operator."""
        self.run, self._tell = run, tell
        self.part = update_part_of(run)

    def record(self) -> LifecycleRecord:
        """The record as it is now."""
        return LifecycleRecord(extract_part_of(self.run), self.part)

    def enter(self, state: ReplicaState, number: int) -> None:
        """Enters a state. number: of the followed incarnation. Nothing depends on this being on
        file: it is left out where there is no room."""
        if (state, number) != (self.part.state, self.part.number):
            part = msgspec.structs.replace(self.part, state=state, number=number)
            self._check(part)
            _write_if_room(self.run.update_record, part)
            self.part = part

    def write_verdict(self, verdict: RestartVerdict) -> None:
        """Commits the verdict on the incarnation that is offered."""
        state = ReplicaState.HANDED_OVER if verdict.followed else ReplicaState.STOPPED
        self._commit(verdict=verdict, state=state, number=verdict.number)

    def take(self, request: CheckpointRequest) -> bool:
        """From now on the request cannot be withdrawn, and is taken again after a kill. False: the
        disk is full, and nothing was changed."""
        try:
            self._commit(taking=request)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return False
        return True

    def answer(
        self,
        request: CheckpointRequest,
        at: Step,
        *,
        refused: Finding | None = None,
        incarnation: Incarnation | None = None,
    ) -> None:
        """Commits the answer to a request. incarnation: as it is with what was taken."""
        told = RequestAnswer(id=request.id, at=at, refused=refused)
        changes = {} if incarnation is None else {"incarnation": incarnation}
        self._commit(taking=None, answers=(*self.part.answers, told)[-ANSWERS_KEPT:], **changes)

    def state_known(self, incarnation: Incarnation) -> None:
        """Commits that the incarnation begins with a state that is known without a base."""
        self._commit(incarnation=incarnation)

    def _commit(self, **changes: Any) -> None:
        part = msgspec.structs.replace(self.part, **changes)
        self._check(part)
        _write(self.run.update_record, part)
        self.part = part

    def _check(self, part: UpdatePart) -> None:
        before = self.record()
        states = self.part.state, part.state
        check_transition("the replica", REPLICA_TRANSITIONS, *states, self._tell)
        _check_incarnations(before, LifecycleRecord(before.extract, part), self._tell)


def _check_incarnations(
    before: LifecycleRecord, after: LifecycleRecord, tell: Callable[[Finding], None]
) -> None:
    """Checks the transitions of the incarnations that one change of the record can concern: the
    followed one and the offered one."""
    first = min(before.extract.followed.number, after.extract.followed.number)
    for number in range(first, first + 3):
        states = before.state_of(number), after.state_of(number)
        what = f"incarnation {number} of the job"
        check_transition(what, INCARNATION_TRANSITIONS, *states, tell)


def _write(path: Path, part: ExtractPart | UpdatePart) -> None:
    write_atomically(path, msgspec.json.encode(part))


def _write_if_room(path: Path, part: ExtractPart | UpdatePart) -> None:
    try:
        _write(path, part)
    except OSError as error:
        if not is_disk_full(error):
            raise
