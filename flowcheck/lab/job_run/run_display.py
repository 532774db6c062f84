"""Live display of a lab run: trainers, replica, capture."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shlex import quote
from shutil import which
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flowcheck.ops.watch.state.chain_state import ChainState

EVERY_SHELL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of root's shells (Debian's /etc/profile)."""
PLAIN_EVERY_S = 5.0
"""Seconds between two lines if the output is not a terminal. A choice: a shorter time fills
logs."""


class Display:
    """A live table on a terminal, else a line every few seconds."""

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

    def print_line(self, sentence: str) -> None:
        """Prints a line that stays, without wrapping: it may contain a command to paste."""
        self._console.print(f"==> {sentence}", style="bold", soft_wrap=True)

    def show(self, what: str, trained: dict[str, Any], chain: ChainState | None) -> None:
        """Shows the present figures. trained: the trainer's last JSON line; chain: the chain's
        state, None: unknown."""
        if self._console.is_terminal:
            self._live.update(self._table(what, trained, chain), refresh=True)
        elif time.monotonic() - self._said_s > PLAIN_EVERY_S:
            self._said_s = time.monotonic()
            shown = run_figures(trained, chain)
            told = ", ".join(f"{key} {value}" for key, value in shown.items())
            self._console.print(f"    {what}: {told}", soft_wrap=True)

    def _table(self, what: str, trained: dict[str, Any], chain: ChainState | None) -> Table:
        table = Table(title=f"{what}, {self._steps} steps in all", show_header=False)
        for key, value in run_figures(trained, chain).items():
            table.add_row(key, value)
        return table


def typed_flowcheck_command() -> str:
    """The `flowcheck` command as another terminal can run it: its path, unless PATH of every shell
    has it."""
    own = Path(sys.argv[0]).absolute()
    if own.name != "flowcheck" or which("flowcheck", path=EVERY_SHELL) == str(own):
        return "flowcheck"
    return quote(str(own))


def run_figures(trained: dict[str, Any], chain: ChainState | None) -> dict[str, str]:
    """{label: text} of the figures to show."""
    step = int(trained.get("step", 0))
    # Without a line of its own the trainer is still starting: a resumed one is at no step 0.
    own = f"{step:,}" if trained else "none yet"
    shown = {"trainer's step": own, "loss": str(trained.get("loss", "-"))}
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
