"""Prints what apply and remove will change, and how they ended."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from flowcheck.findings.finding import Finding
from flowcheck.ops.switch.apply.reconciler import ApplyOutcome, ApplyResult, CommandStep
from flowcheck.untrusted_text import printable, printable_lines

OUTCOME_TEXTS = {
    ApplyOutcome.UNCHANGED: "Nothing to do: the switch is as asked already.",
    ApplyOutcome.WOULD_CHANGE: "Nothing was done (--dry-run).",
    ApplyOutcome.CHANGED: "Done, and checked: the switch is as asked.",
    ApplyOutcome.UNDONE: "Failed, and all of it was undone:",
    ApplyOutcome.LEFT: "Failed, and not all of it could be undone:",
}


def print_warning(note: Finding) -> None:
    """Prints a warning on stderr."""
    print(f"note: {printable(str(note))}", file=sys.stderr)


def print_changes(steps: list[CommandStep]) -> None:
    """Prints on stdout the changes that are needed and the exact commands."""
    for step in steps:
        print(printable(str(step.what)))
        print(printable(f"    {step}"))
    sys.stdout.flush()


def print_outcome(result: ApplyResult) -> None:
    """Prints the result: on stdout if the switch is as requested, else on stderr."""
    out = sys.stdout if result.why is None else sys.stderr
    why = [] if result.why is None else [printable_lines(str(result.why))]
    print(OUTCOME_TEXTS[result.outcome], *why, file=out)
    if result.left:
        print("These commands restore what was there before:", file=out)
        for command in result.left:
            print(printable(f"    {command}"), file=out)
    if result.advice is not None:
        print(f"What to do: {result.advice}", file=out)


def as_json(result: ApplyResult, notes: list[Finding]) -> dict[str, Any]:
    """The result for JSON. notes: the warnings of this run."""
    return {
        "outcome": result.outcome.value,
        "steps": [
            {
                "what": str(step.what),
                "finding": msgspec.to_builtins(step.what),
                "command": list(step.command),
            }
            for step in result.steps
        ],
        "why": msgspec.to_builtins(result.why),
        "left": result.left,
        "advice": msgspec.to_builtins(result.advice),
        "notes": msgspec.to_builtins(notes),
    }
