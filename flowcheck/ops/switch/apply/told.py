"""What apply and remove say: the difference before, and how it ended."""

from __future__ import annotations

import sys
from typing import Any

from flowcheck.ops.switch.apply.bring import Outcome, Result, Step
from flowcheck.plain import plain, plain_lines

ENDED = {
    Outcome.UNCHANGED: "Nothing to do: it is as asked.",
    Outcome.WOULD_CHANGE: "Nothing was done (--dry-run).",
    Outcome.CHANGED: "Done, and looked at again: it is as asked.",
    Outcome.UNDONE: "Failed, and all of it was undone:",
    Outcome.LEFT: "Failed, and not all of it could be undone:",
}


def warned(sentence: str) -> None:
    """On stderr."""
    print(f"note: {plain(sentence)}", file=sys.stderr)


def difference(steps: list[Step]) -> None:
    """What will be done, and the very commands, on stdout."""
    for step in steps:
        print(plain(step.what))
        print(plain(f"    {step}"))
    sys.stdout.flush()


def ended(result: Result) -> None:
    """On stdout where it is as asked, else on stderr."""
    well = not result.why
    out = sys.stdout if well else sys.stderr
    print(ENDED[result.outcome], *([plain_lines(result.why)] if result.why else []), file=out)
    if result.left:
        print("What was there before comes back with:", file=out)
        for command in result.left:
            print(plain(f"    {command}"), file=out)


def as_json(result: Result, notes: list[str]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "outcome": result.outcome.value,
        "steps": [{"what": step.what, "command": list(step.command)} for step in result.steps],
        "why": result.why,
        "left": result.left,
        "notes": notes,
    }
