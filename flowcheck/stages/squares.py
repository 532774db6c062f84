"""The norm by which both rings of one job are clipped: each updater leaves the square of its ring's
own for the other, in a file beside what it learned, and waits for the other's.

A square is told by the step and by which life of the job it is of. It is on file before the step
is taken, so that a kill of either side costs nothing: none is more than a step ahead of the other.
Of a step that the other ring lost, or did not see whole before its next life, no square comes any
more: what is whole of it here is given up, and both replicas stay before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.plane.shard import GENERATIONS, Shard, State
from flowcheck.replica.layout import Layout
from flowcheck.replica.rules.clipping import clipped, square
from flowcheck.replica.rules.optimizers import Used
from flowcheck.stages.incarnation import incarnation_of
from flowcheck.stages.rundir import RunDir
from flowcheck.whole import write_whole

KEPT = 4
"""Steps whose squares are on file; the other ring asks for its next one alone."""
STOOD_S = 10.0
WAITS = (
    "step {} waits for job {}: both rings are clipped by one norm (clip_together), and that of its "
    "own gradients is not known"
)

GIVEN_UP = (
    "step {} is whole, but not in job {}, and both rings are clipped by one norm (clip_together): "
    "it is given up, and the replica stays before it"
)


class Squares:
    """Of one of two rings; of a job that is not clipped so it does nothing."""

    def __init__(
        self,
        run: RunDir,
        config: JobConfig,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.optimizer is not None
        self._run, self._optimizer = run, config.optimizer
        self._say, self._clock = say, clock
        self._other = 1 if run.reader else 2
        self._told: dict[str, str] = _read(_file(run))
        self._since: tuple[str, float, bool] = ("", 0.0, False)
        self._over = ""
        self.gone = False
        """The step that was asked for last is never to be taken."""

    def clipped(
        self, layout: Layout, step: int, gradient: np.ndarray, used: Used
    ) -> np.ndarray | None:
        """What the replica is to take of a step's gradient; None: the other ring's square is not
        there yet."""
        optimizer = self._optimizer
        if not optimizer.clip_together or optimizer.clip_norm is None:
            return gradient
        name = f"{incarnation_of(self._run).number}:{step}"
        if name not in self._told:
            own = square(gradient, layout, used, threads=optimizer.torch_threads)
            newest = [*self._told.items(), (name, own.hex())][-KEPT:]
            self._told = dict(newest)
            write_whole(_file(self._run), msgspec.json.encode(self._told), durable=False)
        other, self.gone = self._told_by(name), False
        if other is None and self._passed(step):
            other = self._told_by(name)  # told before it passed on, if at all
            self.gone = other is None
        if other is None:
            self._wait(name, step)
            return None
        squares = float.fromhex(self._told[name]), float.fromhex(other)
        return clipped(gradient, layout, squares, optimizer.clip_norm)

    def _told_by(self, name: str) -> str | None:
        return _read(_file(self._beside)).get(name)

    @property
    def _beside(self) -> RunDir:
        return self._run.port.beside(self._other)

    def _passed(self, step: int) -> bool:
        """The other ring will not take this step any more."""
        own, other = incarnation_of(self._run), incarnation_of(self._beside)
        if other.number != own.number or self._beside.successor.exists():
            return other.number >= own.number
        if other.step is None or not self._beside.shard.exists():
            return False
        wanted = other.iteration_of(step, self._optimizer.synced_backwards)
        with Shard.open(self._beside.shard) as shard:
            lost = [shard.step(n) for n in range(GENERATIONS) if shard.state(n) == State.LOST]
        return any(iteration <= wanted for iteration in lost)

    def _wait(self, name: str, step: int) -> None:
        """Says so once it has stood, and of the first step of a life that is given up."""
        waits, since_s, said = self._since
        life = name.partition(":")[0]
        if self.gone:
            if self._over != life:
                self._over = life
                self._say(GIVEN_UP.format(step, self._other))
            return
        if waits != name:
            self._since = (name, self._clock(), False)
        elif not said and self._clock() - since_s >= STOOD_S:
            self._since = (name, since_s, True)
            self._say(WAITS.format(step, self._other))


def _file(run: RunDir) -> Path:
    return run.learned_folder / "squares.json"


def _read(path: Path) -> dict[str, str]:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    return {}
