"""The lifecycle record: what the stages and an operator have agreed on about the followed job.

One schema in three parts. Each part is a file below `learned/` with one writer, since processes
that read, changed and wrote one common file would undo each other's changes:

    extract.json  the extractor: which incarnation is followed, and which later one is offered
    update.json   the updater: what became of the replica's state, its verdict on what is offered,
                  the checkpoint it is taking and what came of those before
    request.json  `flowcheck base`: the checkpoint that the updater is to take

A part is replaced as a whole. The files that it names are on disk before it is: the folder of the
offered incarnation, the file of the checkpoint. A run directory from before these files is read as
the record it stands for (earlier_run_directories.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from flowcheck.errors import StateError
from flowcheck.findings.catalog.run_directories import LATER_VERSION
from flowcheck.findings.finding import Finding
from flowcheck.stages.job_state.lifecycle_state_machines import (
    ExtractState,
    IncarnationState,
    ReplicaState,
)
from flowcheck.step_numbers import Iteration, Step

RECORD_VERSION = 1
"""Version of the schema. Fields with a default may be added without a new version: older readers
pass over them."""
ANSWERS_KEPT = 8
"""Answers. A command asks for its own every 50 ms (given_checkpoint_request.py, LOOK_S), and at
most one request waits at a time. A choice: more makes the record longer."""


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """Which incarnation of the job is followed, and how its iterations map to trainer steps."""

    number: int = 1
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before this incarnation's first one."""
    step: Step | None = Step(0)
    """The trainer's step that this iteration ended; None: unknown, and the job waits for a base."""
    base: Step | None = None
    """The step of the base that was given; None: none was."""
    audits: int = 0
    """Lines of audits.jsonl from before this incarnation, or from before `anchored`."""
    anchored: Step | None = None
    """The last step whose state was replaced by a trainer checkpoint, as the two differed, or as
    the replica waited for it; None: none was."""
    last_lacking: Step | msgspec.UnsetType = msgspec.UNSET
    """As `lacking`; where it is not set, the record is as earlier versions wrote it."""

    @property
    def lacking(self) -> Step | None:
        """The last step that lacks bytes which may matter to every element. The replica stays
        before such a step, and waits for a trainer checkpoint of the last one or a later step;
        gradients since are logged. None: it waits for none."""
        return None if self.last_lacking is msgspec.UNSET else self.last_lacking

    def iteration_of(self, step: Step, iterations_per_step: int) -> Iteration:
        """The shard's number of the iteration that ends `step`; iterations_per_step: iterations per
        step."""
        assert self.step is not None
        return Iteration(self.iterations + (step - self.step) * iterations_per_step)

    def step_within(self, iteration: Iteration, each: int) -> Step:
        """The step an iteration belongs to; while nobody knows, its place in this incarnation."""
        return Step((self.step or 0) - (self.iterations - iteration) // each)

    def ends_step(self, iteration: Iteration, iterations_per_step: int) -> bool:
        """Whether an iteration ends a step, whatever its number; else it only adds to one."""
        return (iteration - self.iterations) % iterations_per_step == 0

    def step_of(self, iteration: Iteration, iterations_per_step: int) -> Step | None:
        """The step an iteration ends; None where it only adds to one."""
        assert self.step is not None
        steps, rest = divmod(iteration - self.iterations, iterations_per_step)
        return None if rest else Step(self.step + steps)


class RestartVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the updater found about a later incarnation that was offered."""

    number: int
    """Number of the incarnation that is over, from 1."""
    step: Step | None
    """The replica's step whose parameters the new incarnation began with; None: no step matches."""
    iterations: Iteration = Iteration(0)
    """The shard's number of the last iteration before the new incarnation's first one."""
    why: Finding | None = None
    """Why no step is known."""
    waits: bool = False
    """The incarnation is followed although no step is known: its gradients wait for a base."""

    @property
    def followed(self) -> bool:
        return self.step is not None or self.waits


class OfferedIncarnation(msgspec.Struct, frozen=True, kw_only=True):
    """A later incarnation, whose files lie in a folder of their own."""

    number: int
    folder: str
    """Folder below `learned/`, with the same files as the followed job."""


class RequestKind(StrEnum):
    """What a trainer's checkpoint is to be for the replica."""

    BASE = "base"
    """The state that the job began with."""
    ANCHOR = "anchor"
    """The state of a step that the replica applied; it replaces the replica's own state."""
    PATCH = "patch"
    """The values of some elements at a step; they replace the replica's tainted elements."""


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer's checkpoint that the updater is to take."""

    id: str
    """Identifier: several requests may name the same step."""
    kind: RequestKind
    file: str
    """File below `learned/` with the state, as sections of the replica (safetensors); of a patch,
    with the bytes of its elements in each section, and the elements."""
    step: Step
    source: str
    """The trainer's file, or the address of its hook, for people."""
    after: int = 0
    """For a base: how many steps the job took from joining it up to this one, inclusive."""
    asked_bytes: int = 0
    """For a patch: bytes that the trainer sent for it; 0: it is from a file that was there."""
    incarnation: int = 0
    """For a patch: the incarnation of the job that it is of, whose later one may make other steps
    of the same number; 0: of any."""


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    id: str
    at: Step
    """The replica's step when the request was answered."""
    refused: Finding | None = None
    """Why it was refused; None: it was taken."""


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    version: int = RECORD_VERSION


class ExtractPart(_Part, frozen=True, kw_only=True):
    """The extractor's part."""

    state: ExtractState = ExtractState.STAGING
    followed: Incarnation = Incarnation()
    """The followed incarnation as it began; changes since are in the updater's part."""
    offered: OfferedIncarnation | None = None


class UpdatePart(_Part, frozen=True, kw_only=True):
    """The updater's part."""

    state: ReplicaState = ReplicaState.ABSENT
    number: int = 1
    """Number of the incarnation that `state` belongs to."""
    incarnation: Incarnation | None = None
    """The incarnation as a base or an anchor changed it; None, or another number: it is as it
    began."""
    verdict: RestartVerdict | None = None
    taking: CheckpointRequest | None = None
    answers: tuple[RequestAnswer, ...] = ()
    """Answers to the last requests, oldest first."""

    def answer(self, request: str) -> RequestAnswer | None:
        """The answer to a request; None: it is not answered yet."""
        return next((one for one in self.answers if one.id == request), None)


class RequestPart(_Part, frozen=True, kw_only=True):
    """The part that `flowcheck base` writes."""

    request: CheckpointRequest


@dataclass(frozen=True, slots=True)
class LifecycleRecord:
    """Both stages' parts at one time. The updater's part never names a later incarnation than the
    extractor's."""

    extract: ExtractPart
    update: UpdatePart

    @property
    def incarnation(self) -> Incarnation:
        """The followed incarnation, as it is now."""
        began, now = self.extract.followed, self.update.incarnation
        return now if now is not None and now.number == began.number else began

    @property
    def verdict(self) -> RestartVerdict | None:
        """The verdict on the offered incarnation; None: there is none yet."""
        verdict = self.update.verdict
        offered = self.extract.offered
        if verdict is None or offered is None or offered.number != verdict.number + 1:
            return None
        return verdict

    def state_of(self, number: int) -> IncarnationState:
        """The state of one incarnation, numbered from 1."""
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
    """A part as it is on disk; None: it does not exist. Raises StateError where a later version
    wrote it, msgspec.MsgspecError where it is damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    version = msgspec.json.decode(text, type=_Part).version
    if version > RECORD_VERSION:
        raise StateError(LATER_VERSION(file=path, version=version, newest=RECORD_VERSION))
    return msgspec.json.decode(text, type=kind)
