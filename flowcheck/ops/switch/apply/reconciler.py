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
from flowcheck.findings.finding import Finding, plain_error_text

State = TypeVar("State")
Goal = TypeVar("Goal")


class CommandStep(msgspec.Struct, frozen=True, kw_only=True):
    """One command to run, and what it does as a finding."""

    what: Finding
    command: tuple[str, ...]
    still: Callable[[], bool] | None = None
    """Called directly before the command runs. False: the change is no longer needed. Raises
    StateError where the object has changed since it was read. None: no check."""

    def __str__(self) -> str:
        return shlex.join(self.command)


class MirrorBackend(Protocol[State, Goal]):
    """One mirror session on one switch. `State` is what the switch holds now; `Goal` is what it
    shall hold of this session (an empty goal: nothing)."""

    def observe(self) -> State:
        """Reads what the switch holds now, FlowCheck's objects and others. Raises StateError."""

    def own_goal(self, state: State) -> Goal:
        """The part of `state` that belongs to this session, as a goal that can be restored."""

    def possible_part(self, state: State, goal: Goal) -> Goal:
        """`goal` without what is impossible now, such as ports that no longer exist."""

    def steps(self, state: State, goal: Goal) -> list[CommandStep]:
        """The commands that lead from `state` to `goal`; empty: nothing to change."""

    def run(self, step: CommandStep, *, back: bool) -> None:
        """Runs one command. back: it undoes an earlier one. Raises StateError."""

    def confirm_mirroring(self, goal: Goal) -> None:
        """Checks that the switch really mirrors. Raises StateError where it is configured but does
        not."""

    def clean_up_notes(self, state: State) -> None:
        """Cleans up notes that are no longer needed. state: the last state that was read."""


class ApplyOutcome(StrEnum):
    """How an apply or remove ended: nothing to change; dry run with changes; changed; failed and
    rolled back; failed and not fully rolled back."""

    UNCHANGED = "unchanged"
    WOULD_CHANGE = "would change"
    CHANGED = "changed"
    UNDONE = "undone"
    LEFT = "left"


EXIT_CODES = {ApplyOutcome.UNDONE: 1, ApplyOutcome.LEFT: 2}
"""Exit codes of the command line; 0 for all other outcomes."""


class ApplyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an apply or remove."""

    outcome: ApplyOutcome
    steps: list[CommandStep]
    why: Finding | None = None
    """Why the change failed and was rolled back; None: it did not fail."""
    left: list[str] = []
    """Commands that would restore the previous state, where the rollback failed as well."""
    advice: Finding | None = None
    """What to do where the rollback failed and the present state of the switch is unknown; None:
    `left` says it."""


def reconcile(
    target: MirrorBackend[State, Goal],
    wanted: Callable[[State], Goal],
    *,
    dry_run: bool,
    tell: Callable[[list[CommandStep]], None],
) -> ApplyResult:
    """Brings a switch to a goal: reads its state, runs the commands, checks the result, and rolls
    back on failure.

    wanted: chooses the goal for the state that was read; it may raise to refuse.
    dry_run: only compute and report the commands.
    tell: called with the commands before anything is changed.

    Raises FlowCheckError where nothing was changed; a failure after the first command is reported
    in the result.
    """
    before = target.observe()
    goal = wanted(before)
    steps = target.steps(before, goal)
    tell(steps)
    if dry_run:
        outcome = ApplyOutcome.WOULD_CHANGE if steps else ApplyOutcome.UNCHANGED
        return ApplyResult(outcome=outcome, steps=steps)
    was = target.own_goal(before)
    try:
        _run(target, steps, back=False)
        after = target.observe()
        if missing := target.steps(after, goal):
            raise StateError(STILL_TO_DO([step.what for step in missing]))
        target.confirm_mirroring(goal)
    except (FlowCheckError, OSError, KeyboardInterrupt) as error:
        why = _reason(error)
        if not steps:
            raise StateError(NOTHING_CHANGED(why)) from error
        return _undone(target, was, steps, why)
    target.clean_up_notes(after)
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
    return ERROR_TEXT(kind="os", text=plain_error_text(error))


def _undone(
    target: MirrorBackend[State, Goal], was: Goal, steps: list[CommandStep], why: Finding
) -> ApplyResult:
    """By what is there now, not by what was meant to be: a command that failed may have worked."""
    back = steps
    try:
        state = target.observe()
        back = target.steps(state, target.possible_part(state, was))
        _run(target, back, back=True)
        state = target.observe()
        if back := target.steps(state, target.possible_part(state, was)):
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
    target.clean_up_notes(state)
    return ApplyResult(outcome=ApplyOutcome.UNDONE, steps=steps, why=why)
