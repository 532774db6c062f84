"""Decides which step is saved next, and which saved checkpoints may be deleted (retention).
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowcheck.step_numbers import Step


@dataclass(frozen=True, slots=True)
class SaveSchedule:
    """When the next checkpoint is due: after a number of steps or minutes, whichever is first."""

    every_steps: int | None
    every_minutes: float | None

    def due(self, held: Sequence[Step], last: int, since_s: float) -> Step | None:
        """The step to save now; None: no checkpoint is due.

        held: complete steps in memory, ascending. last: the last saved step, 0: none. since_s:
        seconds since the last save began. If the replica went back to a step before `last`, the
        schedule starts again.
        """
        if not held or held[-1] == 0:
            return None
        newest = held[-1]
        last = last if last <= newest else 0
        if newest == last:
            return None
        every = self.every_steps
        if every is not None and newest // every > last // every:
            return next((s for s in reversed(held) if s > last and s % every == 0), newest)
        minutes = self.every_minutes
        return newest if minutes is not None and since_s >= minutes * 60 else None


def deletable_checkpoints(
    steps: Sequence[int], keep_last: int, keep_every: int | None
) -> list[int]:
    """Indices of the checkpoints that may be deleted. steps: the checkpoints' steps, in the order
    they were saved.

    The last `keep_last` checkpoints stay. From each multiple of `keep_every` to the next one, the
    checkpoint that was saved first stays too.
    """
    stay = set(range(max(0, len(steps) - keep_last), len(steps)))
    if keep_every is not None:
        firsts: dict[int, int] = {}
        for index, step in enumerate(steps):
            if step >= keep_every:
                firsts.setdefault(step // keep_every, index)
        stay |= set(firsts.values())
    return [index for index in range(len(steps)) if index not in stay]
