"""The lifecycle record: what the stages and an operator have agreed on about the followed job.

One schema in three parts, each a file of its own below `learned/`, as each has one writer and a
process that read, changed and wrote a common file would undo what another wrote meanwhile:

    extract.json  the extractor: which incarnation is followed, and which later one is offered
    update.json   the updater: what became of the replica's state, its verdict on what is offered,
                  the checkpoint it is taking and what came of those before
    request.json  `flowcheck base`: the checkpoint that the updater is to take

A part is replaced whole. What it names lies on disk before it does: the folder of the incarnation
that is offered, the file of the checkpoint. A run directory of before these files is read as the
record it stands for (earlier_run_directories.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.lifecycle_records import LATER_VERSION
from flowcheck.findings.finding import Finding
from flowcheck.stages.job_state.lifecycle_state_machines import (
    ExtractState,
    IncarnationState,
    ReplicaState,
)
from flowcheck.step_numbers import Iteration, Step

RECORD_VERSION = 1
"""Of the schema. Fields with a default may be added without another one: they are passed over."""
ANSWERS_KEPT = 8
"""Answers. A command asks for its own every 50 ms (checkpoint_request.py, LOOK_S), and at most one
request waits at a time. A choice: more makes the record longer."""


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """Which incarnation of the job is followed, and how its iterations map to trainer steps."""

    number: int = 1
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before its first one."""
    step: Step | None = Step(0)
    """The trainer's step that iteration ended; None: nobody knows, and a base is waited for."""
    base: Step | None = None
    """The step of the base that was given; None: there was none."""
    audits: int = 0
    """Lines of audits.jsonl that are of what was before it, or before `anchored`."""
    anchored: Step | None = None
    """The last step whose state was replaced by that of the trainer's own file, as they differed;
    None: there was none."""

    def iteration_of(self, step: Step, each: int) -> Iteration:
        """The shard's number of the iteration that ends `step`; each: iterations per step."""
        assert self.step is not None
        return Iteration(self.iterations + (step - self.step) * each)

    def step_within(self, iteration: Iteration, each: int) -> Step:
        """The step an iteration belongs to; while nobody knows, its place in this incarnation."""
        return Step((self.step or 0) - (self.iterations - iteration) // each)

    def step_of(self, iteration: Iteration, each: int) -> Step | None:
        """The step an iteration ends; None where it only adds to one."""
        assert self.step is not None
        steps, rest = divmod(iteration - self.iterations, each)
        return None if rest else Step(self.step + steps)


class RestartVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the updater found of a later incarnation that was offered."""

    number: int
    """Of the incarnation that is over, from 1."""
    step: Step | None
    """The replica's step whose parameters the new incarnation began with; None: none of them."""
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before the new incarnation's first one."""
    why: Finding | None = None
    """Why no step is known."""
    waits: bool = False
    """It is followed all the same: what it sends waits for a base."""

    @property
    def followed(self) -> bool:
        return self.step is not None or self.waits


class OfferedIncarnation(msgspec.Struct, frozen=True, kw_only=True):
    """A later incarnation whose job lies in a folder of its own."""

    number: int
    folder: str
    """Below `learned/`: files as of the job that is followed."""


class RequestKind(StrEnum):
    """What a trainer's checkpoint is to be for the replica."""

    BASE = "base"
    """The state that the job began with."""
    ANCHOR = "anchor"
    """The state of a step that the replica took, in its own's place."""


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's checkpoint that the updater is to take."""

    id: str
    """Tells it apart from others of the same step."""
    kind: RequestKind
    file: str
    """Below `learned/`: the state, as sections of the replica (safetensors)."""
    step: Step
    source: str
    """The trainer's file, for people."""
    after: int = 0
    """Of a base: steps the job took since it was joined until this one, its own included."""


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    id: str
    at: Step
    """The replica's step when it was taken."""
    refused: Finding | None = None
    """Why it was not; None: it was."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    version: int = RECORD_VERSION


class ExtractPart(_Part, frozen=True, kw_only=True):
    """The extractor's part."""

    state: ExtractState = ExtractState.STAGING
    followed: Incarnation = Incarnation()
    """As it began; what the updater has changed since is in its own part."""
    offered: OfferedIncarnation | None = None


class UpdatePart(_Part, frozen=True, kw_only=True):
    """The updater's part."""

    state: ReplicaState = ReplicaState.ABSENT
    number: int = 1
    """Of the incarnation that `state` is of."""
    incarnation: Incarnation | None = None
    """As it is since a base or an anchor; None, or of another number: as it began."""
    verdict: RestartVerdict | None = None
    taking: CheckpointRequest | None = None
    answers: tuple[RequestAnswer, ...] = ()
    """Of the last requests, the newest one last."""

    def answer(self, request: str) -> RequestAnswer | None:
        """None: it is not answered yet."""
        return next((one for one in self.answers if one.id == request), None)


class RequestPart(_Part, frozen=True, kw_only=True):
    """The part of `flowcheck base`."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class LifecycleRecord:
    """Both stages' parts as they were at one time: a part of the updater's that is of a later
    incarnation than the extractor's is never seen."""

    extract: ExtractPart
    update: UpdatePart

    @property
    def incarnation(self) -> Incarnation:
        """The one that is followed, as it is now."""
        began, now = self.extract.followed, self.update.incarnation
        return now if now is not None and now.number == began.number else began

    @property
    def verdict(self) -> RestartVerdict | None:
        """On the incarnation that is offered; None: there is none yet."""
        verdict = self.update.verdict
        offered = self.extract.offered
        if verdict is None or offered is None or offered.number != verdict.number + 1:
            return None
        return verdict

    def state_of(self, number: int) -> IncarnationState:
        """Of one incarnation, from 1."""
        followed, offered = self.incarnation, self.extract.offered
        if number < followed.number:
            return IncarnationState.OVER
        if number > followed.number:
            if offered is None or offered.number != number:
                return IncarnationState.UNLEARNED
            if self.verdict is None:
                return IncarnationState.OFFERED
            accepted = self.verdict.followed
            return IncarnationState.ACCEPTED if accepted else IncarnationState.TURNED_DOWN
        if self.extract.state is ExtractState.STAGING:
            return IncarnationState.UNLEARNED
        if followed.step is None:
            return IncarnationState.AWAITS_BASE
        anchored = followed.anchored is not None
        return IncarnationState.ANCHORED if anchored else IncarnationState.FOLLOWED


PART = TypeVar("PART", bound=_Part)


def read_part(path: Path, kind: type[PART]) -> PART | None:
    """A part as it is on disk; None: it is not there. Raises StateError where a later version wrote
    it, msgspec.MsgspecError where it is damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    version = msgspec.json.decode(text, type=_Part).version
    if version > RECORD_VERSION:
        raise StateError(LATER_VERSION(file=path, version=version, newest=RECORD_VERSION))
    return msgspec.json.decode(text, type=kind)
