"""Prints what apply and remove will change, and how they ended."""

from __future__ import annotations

import sys
from typing import Any

from flowcheck.ops.switch.apply.reconciler import ApplyOutcome, ApplyResult, CommandStep
from flowcheck.terminal_escape import printable, printable_lines

ENDED = {
    ApplyOutcome.UNCHANGED: "Nothing to do: it is as asked.",
    ApplyOutcome.WOULD_CHANGE: "Nothing was done (--dry-run).",
    ApplyOutcome.CHANGED: "Done, and looked at again: it is as asked.",
    ApplyOutcome.UNDONE: "Failed, and all of it was undone:",
    ApplyOutcome.LEFT: "Failed, and not all of it could be undone:",
}


def warned(sentence: str) -> None:
    """On stderr."""
    print(f"note: {printable(sentence)}", file=sys.stderr)


def difference(steps: list[CommandStep]) -> None:
    """What will be done, and the very commands, on stdout."""
    for step in steps:
        print(printable(step.what))
        print(printable(f"    {step}"))
    sys.stdout.flush()


def ended(result: ApplyResult) -> None:
    """On stdout where it is as asked, else on stderr."""
    well = not result.why
    out = sys.stdout if well else sys.stderr
    print(ENDED[result.outcome], *([printable_lines(result.why)] if result.why else []), file=out)
    if result.left:
        print("What was there before comes back with:", file=out)
        for command in result.left:
            print(printable(f"    {command}"), file=out)


def as_json(result: ApplyResult, notes: list[str]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "outcome": result.outcome.value,
        "steps": [{"what": step.what, "command": list(step.command)} for step in result.steps],
        "why": result.why,
        "left": result.left,
        "notes": notes,
    }
