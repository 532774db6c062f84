"""What a run of the lab shows while it goes on: the trainers, the replica, the wire."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flowcheck.ops.watch.state import State

PLAIN_EVERY_S = 5.0
"""Between two lines where nobody watches a terminal."""


class Display:
    """A table that renews itself on a terminal; a line now and then elsewhere."""

    def __init__(self, steps: int, *, quiet: bool) -> None:
        self._steps = steps
        self._console = Console(file=sys.stderr, highlight=False, quiet=quiet)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._said_s = 0.0

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, sentence: str) -> None:
        """A line that stays, unbroken: it may hold a command to paste."""
        self._console.print(f"==> {sentence}", style="bold", soft_wrap=True)

    def show(self, what: str, trained: dict[str, Any], chain: State | None) -> None:
        """trained: the trainer's last line; chain: what `flowcheck status` says."""
        if self._console.is_terminal:
            self._live.update(self._table(what, trained, chain), refresh=True)
        elif time.monotonic() - self._said_s > PLAIN_EVERY_S:
            self._said_s = time.monotonic()
            shown = figures(trained, chain)
            self._console.print(f"    {what}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))

    def _table(self, what: str, trained: dict[str, Any], chain: State | None) -> Table:
        table = Table(title=f"{what}, {self._steps} steps in all", show_header=False)
        for key, value in figures(trained, chain).items():
            table.add_row(key, value)
        return table


def figures(trained: dict[str, Any], chain: State | None) -> dict[str, str]:
    """What to show, in words."""
    step = int(trained.get("step", 0))
    shown = {"trainer's step": f"{step:,}", "loss": str(trained.get("loss", "-"))}
    if chain is None:
        return shown
    job = chain.jobs[0]
    replica = job.step or 0
    lost = sum(sum(ring.lost.values()) for ring in chain.rings)
    fill = max(ring.fill for ring in chain.rings)
    learned = "yes" if job.learned else "not yet"
    return shown | {
        "replica's step": f"{replica:,} ({max(0, step - replica)} behind)",
        "job learned": learned,
        "frames": f"{sum(ring.head for ring in chain.rings):,}",
        "lost in capture": f"{lost:,}",
        "ring fill": f"{100 * fill:.1f} %",
    }
