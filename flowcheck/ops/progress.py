"""What a replay shows while it runs, and the end of its patience."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.plane.ring import Ring
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.supervisor import Progress as ChainProgress

STALL_LIMIT_S = 120.0
"""No position moved for so long: the chain is stuck, and says where. A pause between two frames
of a capture that is paced by its time stamps is not counted."""


class Watch:
    """The chain's positions as progress bars; called by the supervisor every turn."""

    def __init__(self, where: RunDir, config: JobConfig, console: Console, frames: int) -> None:
        """frames: how many all sources hold together."""
        self._rings = [Ring.open(where.ring(number)) for number in range(len(config.rings))]
        self._frames = frames
        self._paced = any(source.speed is not None for source in config.source)
        self._bars = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(name, total=frames or 1, count="")
            for name in ("captured", "parsed", "extracted", "applied")
        }
        self._last: tuple[int, ...] = ()
        self._moved_s = time.monotonic()

    def __enter__(self) -> Watch:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        for ring in self._rings:
            ring.close()

    def __call__(self, progress: ChainProgress) -> None:
        """Raises StateError, naming the stage, when nothing moved for STALL_LIMIT_S."""
        heads = sum(ring.head for ring in self._rings)
        parsed = sum(ring.parsed for ring in self._rings)
        tails = sum(ring.tail for ring in self._rings)
        now = (heads, parsed, tails, progress.steps, progress.restarts)
        if now == self._last:
            self._patience(now)
            return
        self._last, self._moved_s = now, time.monotonic()
        for name, value in (("captured", heads), ("parsed", parsed), ("extracted", tails)):
            self._bars.update(self._tasks[name], completed=value, count=f"{value:,} frames")
        self._bars.update(
            self._tasks["applied"],
            total=progress.complete_steps or None,
            completed=progress.steps,
            count=f"{progress.steps:,} steps",
        )

    def _patience(self, now: tuple[int, ...]) -> None:
        heads, parsed, tails, steps, _ = now
        waiting_for_time = self._paced and heads < self._frames and heads == parsed == tails
        if waiting_for_time or time.monotonic() - self._moved_s < STALL_LIMIT_S:
            return
        stuck = "update"
        for stage, there, wanted in (
            ("extract", tails, parsed),
            ("parse", parsed, heads),
            ("capture", heads, self._frames),
        ):
            if there < wanted:
                stuck = stage
        raise StateError(
            f"nothing moved for {STALL_LIMIT_S:.0f} s; stuck in {stuck}: {heads} of "
            f"{self._frames} frames captured, {parsed} parsed, {tails} extracted, "
            f"{steps} steps applied"
        )
