"""Gradients of steps that were taken, kept so that they can be taken again on another state.

Two logs by turns: while one fills, the other holds the steps before; a full one takes the place of
the older one, whose steps are forgotten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.replica.kept.gradients import GradientLog, room_for
from flowcheck.stages.rundir import RunDir
from flowcheck.step_numbers import Iteration

LOGS = 2


def logs_bytes(steps: int, gradient_bytes: int) -> int:
    """What the logs of so many taken steps take, each reserved in full."""
    return LOGS * room_for(Path(), steps, gradient_bytes).size_bytes if steps else 0


class Retaken:
    """For the updater, its only writer. Nothing is kept where `taken_steps` is 0."""

    def __init__(self, run: RunDir, config: JobConfig, gradient_bytes: int) -> None:
        steps = config.gradient_log.taken_steps
        files = [run.memory / f"taken-{number}" for number in range(LOGS if steps else 0)]
        rooms = [room_for(file, steps, gradient_bytes) for file in files]
        self._logs = [GradientLog([room], gradient_bytes) for room in rooms]

    @property
    def on(self) -> bool:
        """Any are kept at all."""
        return bool(self._logs)

    def keep(self, iteration: Iteration, gradient: np.ndarray, *, wanted: int) -> bool:
        """Keeps one, oldest first. wanted: the first that is to be taken again. False: there is no
        room for it, as memory is full or all others are wanted."""
        older, newer = sorted(self._logs, key=lambda log: log.iterations[-1:])
        if iteration <= max(newer.iterations, default=-1):
            return True  # a kill came between this and the release of the generation
        if newer.full or newer.closed:
            if older.iterations and older.iterations[-1] >= wanted:
                return False
            older.remove()
            older, newer = newer, older
        return newer.append(iteration, gradient)

    def forget_after(self, iteration: Iteration) -> None:
        """Later ones are of a past that is given up: their numbers are used again."""
        for log in self._logs:
            log.forget_after(iteration)

    def of(self, iteration: Iteration) -> np.ndarray | None:
        """[gradient bytes] of one iteration; None where it is not kept."""
        for log in self._logs:
            if iteration in log.iterations:
                return log.read(log.iterations.index(iteration))
        return None

    @property
    def iterations(self) -> frozenset[int]:
        """Those it holds."""
        return frozenset(at for log in self._logs for at in log.iterations)

    def close(self) -> None:
        for log in self._logs:
            log.close()
