"""Exchange of squared gradient norms between rings of one job that clip by a common norm. Each
updater writes its own square to a file beside the learned job, and waits for those of the others.

A square is named by its step and the incarnation of the job. It is on file before the step is
taken, so a kill of either side costs nothing: no ring is more than a step ahead of another. If
another ring lost a step, or did not see all of it before its next incarnation, its square never
comes: this ring gives up its own copy of the step, and all replicas stay before it. The same
happens once one of them has waited too long; that is on file as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.atomic_write import write_atomically
from flowcheck.config import JobConfig
from flowcheck.findings.catalog.replica_update_notes import (
    NORM_AWAITED,
    NORM_NEVER_COMES,
    NORM_WAIT_OVER,
    NORM_WAIT_OVER_ELSEWHERE,
    NORMS_IN_JOB_ORDER,
)
from flowcheck.findings.finding import Finding
from flowcheck.replica.optimizer.gradient_clipping import (
    clip_by_shards,
    clip_by_total_norm,
    is_order_independent,
    squared_norm,
    squared_norms,
    sum_float32,
)
from flowcheck.replica.optimizer.state_section_names import GradientMask
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.assumptions import add_assumption
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of, read_record
from flowcheck.stages.replica_update.gradient_sources.source_registry import source_progress
from flowcheck.stages.run_directory.job_run_dirs import job_count
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

SQUARES_KEPT = 4
"""Steps whose squares are on file; the other ring asks for its next one alone, so that one would do
where no file is lost. A choice: more makes each writing longer."""
WAIT_NOTE_S = 10.0
"""Seconds of waiting for another ring's norm before it is told. A choice: shorter tells of each
slow step."""
OVER = "over"


class GradNormExchange:
    """The exchange as one of several rings sees it. Does nothing for a job that is not clipped over
    rings."""

    def __init__(
        self,
        run: RunDir,
        config: JobConfig,
        say: Callable[[Finding], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert config.optimizer is not None
        self._run, self._optimizer = run, config.optimizer
        self._say, self._clock = say, clock
        self._of_shards = config.all_shards
        self._own = run.reader + 1
        self._others = tuple(n for n in range(1, job_count(config) + 1) if n != self._own)
        self._published: dict[str, str] = _read(_file(run))
        self._since: tuple[str, float, bool] = ("", 0.0, False)
        self._over = ""
        self._assumed = False
        self.peer_gone = False
        """The step that was asked for last is never to be taken."""

    def clipped(
        self, layout: Layout, step: Step, gradient: np.ndarray, used: GradientMask
    ) -> np.ndarray | None:
        """The clipped gradient that the replica applies; None: the square of another ring is not
        there yet."""
        optimizer = self._optimizer
        if not optimizer.clip_together or optimizer.clip_norm is None:
            return gradient
        life = incarnation_of(self._run).number
        name = f"{life}:{step}"
        self.peer_gone = self._is_over(life, step)
        if self.peer_gone:
            return None
        if name not in self._published:
            told = self._squares_of(gradient, layout, used)
            newest = [*self._published.items(), (name, told)][-SQUARES_KEPT:]
            self._publish(dict(newest))
        squares = {self._own: _numbers(self._published[name])}
        for number in self._others:
            other = self._published_by(number, name)
            if other is None and self._passed(number, step):
                other = self._published_by(number, name)  # told before it passed on, if at all
                self.peer_gone = other is None
            if other is None:
                self._wait(number, name, step)
                return None
            squares[number] = _numbers(other)
        if self._of_shards:
            every = [squares[number] for number in self._order(squares)]
            return clip_by_shards(gradient, layout, every, optimizer.clip_norm)
        total = self._total({number: own for number, (own,) in squares.items()})
        return clip_by_total_norm(gradient, layout, total, optimizer.clip_norm)

    def _squares_of(self, gradient: np.ndarray, layout: Layout, used: GradientMask) -> str:
        """As they are published: of all gradients together, or of shards each parameter's."""
        threads = self._optimizer.torch_threads
        if self._of_shards:
            every = squared_norms(gradient, layout, used, threads=threads)
        else:
            every = [squared_norm(gradient, layout, used, threads=threads)]
        return " ".join(square.hex() for square in every)

    def _order(self, squares: Mapping[int, Sequence[float]]) -> tuple[int, ...]:
        """In which the shards' ranks are summed. Of two it makes no difference."""
        if self._optimizer.clip_order:
            return self._optimizer.clip_order
        if len(squares) > 2 and not self._assumed:
            self._assumed = True
            add_assumption(self._run, NORMS_IN_JOB_ORDER())
        return tuple(sorted(squares))

    def _total(self, squares: dict[int, float]) -> float:
        """The sum of the squares, in the order in which the trainers' ranks add them."""
        optimizer = self._optimizer
        assert optimizer.clip_norm is not None
        order = optimizer.clip_order or tuple(sorted(squares))
        every = [squares[number] for number in order]
        known = optimizer.clip_order or len(every) == 2 or self._assumed
        if not known and not is_order_independent(every, optimizer.clip_norm):
            self._assumed = True
            add_assumption(self._run, NORMS_IN_JOB_ORDER())
        return sum_float32(every)

    def _publish(self, told: dict[str, str]) -> None:
        self._published = told
        write_atomically(_file(self._run), msgspec.json.encode(told), durable=False)

    def _published_by(self, number: int, name: str) -> str | None:
        return _read(_file(self._other_run(number))).get(name)

    def _other_run(self, number: int) -> RunDir:
        return self._run.port.job_run_dir(number)

    def _is_over(self, life: int, step: Step) -> bool:
        """Whether a ring has given up this incarnation of the job."""
        name = f"{life}:{OVER}"
        if name in self._published:
            return True
        if all(self._published_by(number, name) is None for number in self._others):
            return False
        self._publish({name: ""})
        self._say(NORM_WAIT_OVER_ELSEWHERE(step))
        return True

    def _passed(self, number: int, step: Step) -> bool:
        """Whether that ring will never apply this step."""
        run = self._other_run(number)
        own, record = incarnation_of(self._run), read_record(run)
        other = record.incarnation
        if other.number != own.number or record.extract.offered is not None:
            return other.number >= own.number
        progress = source_progress(run)
        if other.step is None or progress is None or progress.lost_iteration is None:
            return False
        return progress.lost_iteration <= other.iteration_of(step, self._optimizer.synced_backwards)

    def _wait(self, number: int, name: str, step: Step) -> None:
        """Reports a wait that lasts longer than WAIT_NOTE_S, and the first step of an
        incarnation that is given up; gives it up once it has waited too long."""
        waits, since_s, said = self._since
        life = name.partition(":")[0]
        if self.peer_gone:
            if self._over != life:
                self._over = life
                self._say(NORM_NEVER_COMES(step=step, job=number))
            return
        if waits != name:
            self._since = (name, self._clock(), False)
            return
        stood_s, limit_s = self._clock() - since_s, self._optimizer.clip_wait_s
        if stood_s >= limit_s:
            self.peer_gone = True
            self._publish({f"{life}:{OVER}": ""})
            self._say(NORM_WAIT_OVER(step=step, seconds=round(limit_s), job=number))
        elif not said and stood_s >= WAIT_NOTE_S:
            self._since = (name, since_s, True)
            self._say(NORM_AWAITED(step=step, job=number))


def _numbers(told: str) -> list[float]:
    return [float.fromhex(one) for one in told.split()]


def _file(run: RunDir) -> Path:
    return run.learned_folder / "squares.json"


def _read(path: Path) -> dict[str, str]:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    return {}
