"""Brings a switch from its present state to the wanted one: observe, run commands, verify, roll
back on failure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.switch_changes import (
    INTERRUPTED,
    NOT_RESTORED,
    NOTHING_CHANGED,
    REMOVE_AGAIN,
    STILL_TO_DO,
    UNDO_FAILED,
)
from flowcheck.findings.finding import Finding, text_of

State = TypeVar("State")
Goal = TypeVar("Goal")


class CommandStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command, and what it does."""

    what: Finding
    command: tuple[str, ...]
    still: Callable[[], bool] | None = None
    """Looks again at what the command is about: False where there is nothing left to do.
    Raises StateError where it is no longer what it was."""

    def __str__(self) -> str:
        return shlex.join(self.command)


class MirrorBackend(Protocol[State, Goal]):
    """One session of one switch. A goal is what of it shall be there; an empty one is nothing."""

    def observe(self) -> State:
        """What is there now, ours and others'. Raises StateError."""

    def own(self, state: State) -> Goal:
        """What of this session is there, as far as it can be made again."""

    def possible(self, state: State, goal: Goal) -> Goal:
        """What of a goal can be there: nothing can of a port that has gone."""

    def steps(self, state: State, goal: Goal) -> list[CommandStep]:
        """The commands from a state to a goal; none where it is reached."""

    def run(self, step: CommandStep, *, back: bool) -> None:
        """Runs a step; back: it undoes one. Raises StateError."""

    def confirm(self, goal: Goal) -> None:
        """Raises StateError where the switch holds the goal but does not do it."""

    def settle(self, state: State) -> None:
        """Forgets what need not be remembered any more; `state` is the last one seen."""


class ApplyOutcome(StrEnum):
    """How it ended."""

    UNCHANGED = "unchanged"
    WOULD_CHANGE = "would change"
    CHANGED = "changed"
    UNDONE = "undone"
    LEFT = "left"


EXIT_CODES = {ApplyOutcome.UNDONE: 1, ApplyOutcome.LEFT: 2}
"""Of the command line; 0 for the others."""


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    outcome: ApplyOutcome
    steps: list[CommandStep]
    why: Finding | None = None
    """Why it was undone; None: it was not."""
    left: list[str] = []
    """Commands that would bring back what was before, where undoing failed too."""
    advice: Finding | None = None
    """What to do in their place, where the switch does not say what it has."""


def reconcile(
    target: MirrorBackend[State, Goal],
    wanted: Callable[[State], Goal],
    *,
    dry_run: bool,
    tell: Callable[[list[CommandStep]], None],
) -> ApplyResult:
    """Brings `target` to the goal that `wanted` chooses by what is there.

    tell: is given the difference before anything is done. Raises FlowCheckError where nothing was
    touched; what fails later is in the result.
    """
    before = target.observe()
    goal = wanted(before)
    steps = target.steps(before, goal)
    tell(steps)
    if dry_run:
        outcome = ApplyOutcome.WOULD_CHANGE if steps else ApplyOutcome.UNCHANGED
        return ApplyResult(outcome=outcome, steps=steps)
    was = target.own(before)
    try:
        _run(target, steps, back=False)
        after = target.observe()
        if missing := target.steps(after, goal):
            raise StateError(STILL_TO_DO([step.what for step in missing]))
        target.confirm(goal)
    except (FlowCheckError, OSError, KeyboardInterrupt) as error:
        why = _reason(error)
        if not steps:
            raise StateError(NOTHING_CHANGED(why)) from error
        return _undone(target, was, steps, why)
    target.settle(after)
    return ApplyResult(
        outcome=ApplyOutcome.CHANGED if steps else ApplyOutcome.UNCHANGED, steps=steps
    )


def _run(target: MirrorBackend[State, Goal], steps: list[CommandStep], *, back: bool) -> None:
    for step in steps:
        if step.still is None or step.still():
            target.run(step, back=back)


def _reason(error: BaseException) -> Finding:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED()
    if isinstance(error, FlowCheckError):
        return error.finding
    return ERROR_TEXT(kind="os", text=text_of(error))


def _undone(
    target: MirrorBackend[State, Goal], was: Goal, steps: list[CommandStep], why: Finding
) -> ApplyResult:
    """By what is there now, not by what was meant to be: a command that failed may have worked."""
    back = steps
    try:
        state = target.observe()
        back = target.steps(state, target.possible(state, was))
        _run(target, back, back=True)
        state = target.observe()
        if back := target.steps(state, target.possible(state, was)):
            raise StateError(NOT_RESTORED())
    except (FlowCheckError, OSError, KeyboardInterrupt) as error:
        unseen = back is steps
        return ApplyResult(
            outcome=ApplyOutcome.LEFT,
            steps=steps,
            why=UNDO_FAILED(why=why, undo=_reason(error)),
            left=[] if unseen else [str(step) for step in back],
            advice=REMOVE_AGAIN() if unseen or not back else None,
        )
    target.settle(state)
    return ApplyResult(outcome=ApplyOutcome.UNDONE, steps=steps, why=why)
