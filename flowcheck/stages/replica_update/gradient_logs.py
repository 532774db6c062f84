"""Gradient logs: gradients that wait for a base, and gradients of applied steps that are kept for
replay.

Applied steps use two logs in turn: one fills while the other holds the steps before. When one is
full, the older one is emptied and filled next; its steps are forgotten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flowcheck.config import JobConfig
from flowcheck.replica.state_file.gradient_log import GradientLog, LogFileSpace, log_file_space
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Iteration


def open_gradient_log(
    run: RunDir, config: JobConfig, gradient_bytes: int, *, writes: bool = False
) -> GradientLog:
    """Opens the log of gradients that wait for a base. writes: for the updater, the only writer."""
    log = config.gradient_log
    rooms = [LogFileSpace(run.gradients, log.memory_bytes)]
    if log.file is not None:
        rooms.append(LogFileSpace(Path(log.file), log.file_bytes))
    return GradientLog(rooms, gradient_bytes, writes=writes)


def logged_step_range(where: RunDir, config: JobConfig, gradient_bytes: int) -> tuple[int, int]:
    """The first and the last step that is logged, counted from 1 since the job was joined; (1, 0)
    where no step is logged."""
    log = open_gradient_log(where, config, gradient_bytes)
    try:
        held = logged_steps(where, log)
        return min(held, default=1), max(held, default=0)
    finally:
        log.close()


def logged_steps(where: RunDir, log: GradientLog) -> dict[int, int]:
    """{step since it was joined, from 1: index in the log}"""
    joined_at = incarnation_of(where).iterations
    return {it - joined_at: i for i, it in enumerate(log.iterations) if it > joined_at}


APPLIED_LOGS = 2


def applied_log_bytes(steps: int, gradient_bytes: int) -> int:
    """Bytes that the two logs of so many applied steps take, each reserved in full."""
    return APPLIED_LOGS * log_file_space(Path(), steps, gradient_bytes).size_bytes if steps else 0


class AppliedGradientLog:
    """Gradients of applied steps, for the updater, the only writer. Keeps nothing where
    `taken_steps` is 0."""

    def __init__(self, run: RunDir, config: JobConfig, gradient_bytes: int) -> None:
        steps = config.gradient_log.taken_steps
        files = [run.memory / f"taken-{number}" for number in range(APPLIED_LOGS if steps else 0)]
        rooms = [log_file_space(file, steps, gradient_bytes) for file in files]
        self._logs = [GradientLog([room], gradient_bytes) for room in rooms]

    @property
    def is_enabled(self) -> bool:
        """Whether gradients are kept at all."""
        return bool(self._logs)

    def keep(self, iteration: Iteration, gradient: np.ndarray, *, wanted: int) -> bool:
        """Keeps a gradient; calls come in ascending order. wanted: the first iteration that must be
        replayed. False: there is no room, as memory is full or all others are wanted."""
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
        """Drops later iterations: the job went back, and their numbers are used again."""
        for log in self._logs:
            log.forget_after(iteration)

    def gradient_of(self, iteration: Iteration) -> np.ndarray | None:
        """[gradient bytes] of one iteration; None where it is not kept."""
        for log in self._logs:
            if iteration in log.iterations:
                return log.read(log.iterations.index(iteration))
        return None

    @property
    def iterations(self) -> frozenset[int]:
        """The iterations that it holds."""
        return frozenset(at for log in self._logs for at in log.iterations)

    def close(self) -> None:
        for log in self._logs:
            log.close()
