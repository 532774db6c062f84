"""The gradient log of a run: where it lies, and which steps it holds."""

from __future__ import annotations

from pathlib import Path

from flowcheck.config import JobConfig
from flowcheck.plane.shard import Shard
from flowcheck.replica.kept.gradients import GradientLog, Room
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.incarnation import incarnation_of


def open_log(
    run: RunDir, config: JobConfig, gradient_bytes: int, *, writes: bool = False
) -> GradientLog:
    """The gradients that wait. writes: for the updater."""
    log = config.gradient_log
    rooms = [Room(run.gradients, log.memory_bytes)]
    if log.file is not None:
        rooms.append(Room(Path(log.file), log.file_bytes))
    return GradientLog(rooms, gradient_bytes, writes=writes)


def logged(where: RunDir, config: JobConfig) -> tuple[int, int]:
    """The first and the last step that is logged, counted from 1 since the job was joined; (1, 0)
    where none is."""
    with Shard.open(where.shard) as shard:
        log = open_log(where, config, shard.gradient_bytes)
    try:
        held = steps_in(where, log)
        return min(held, default=1), max(held, default=0)
    finally:
        log.close()


def steps_in(where: RunDir, log: GradientLog) -> dict[int, int]:
    """{step since it was joined, from 1: index in the log}"""
    joined_at = incarnation_of(where).iterations
    return {it - joined_at: i for i, it in enumerate(log.iterations) if it > joined_at}
