"""What a run of the lab showed, at its end."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from flowcheck.lab.run.train import Outcome, statements

FAILED = 1


def show(outcome: Outcome, *, as_json: bool) -> int:
    """Prints the statements of a run; 0 if all hold."""
    found = statements(outcome)
    good = bool(found) and all(holds for holds, _ in found)
    if as_json:
        told = asdict(outcome) | {
            "passed": good,
            "statements": [{"holds": holds, "says": says} for holds, says in found],
        }
        print(json.dumps(told))
        return 0 if good else FAILED
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    for holds, says in found:
        mark = "[green]holds[/]" if holds else "[red]FAILS[/]"
        console.print(f"  {mark}  {says}")
    console.print(f"  {outcome.seconds:.0f} s in all")
    return 0 if good else FAILED
