"""Stage: applies finished steps to the replica, in order, each exactly once.

The order that makes a kill harmless: the replica commits the step; its line is written to
steps.jsonl while the gradient is still in the shard or the log; only then is that given back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from flowcheck.config import JobConfig, OptimizerConfig
from flowcheck.errors import StateError
from flowcheck.messages import Message, Note, StepApplied
from flowcheck.plane.shard import Shard, State
from flowcheck.replica.replica import Replica
from flowcheck.replica.schedule import rate_of
from flowcheck.replica.warm import load_torch
from flowcheck.stages.base import Waiting
from flowcheck.stages.incarnation import Incarnation, await_first_base, incarnation_of
from flowcheck.stages.judge import Judge
from flowcheck.stages.links import Links
from flowcheck.stages.model import layout_of, names_fit
from flowcheck.stages.records import Records
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.used import Map, note_left_out
from flowcheck.wire.job import Job, decode_job


@dataclass(frozen=True, slots=True)
class _Open:
    """What there is once a job is learned."""

    replica: Replica
    shard: Shard
    records: Records
    waiting: Waiting
    map: Map

    def close(self) -> None:
        self.waiting.close()
        self.shard.close()
        self.records.close()
        self.replica.close()


class UpdateService:
    """The only writer of the replica and of the shard's applied step."""

    name = "update"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.optimizer is not None, "checked when the configuration was read"
        self._run, self._config = run, config
        self._each = config.optimizer.synced_backwards
        """All-reduced backward passes per step of the trainer."""
        self._open: _Open | None = None
        self._judge = Judge(run, config)

    def start(self, links: Links) -> None:
        self._links = links
        load_torch()
        assert self._config.optimizer is not None
        rate_of(self._config.optimizer)  # refused before a frame is captured, not at the first step
        if self._config.replica.awaits_base:
            await_first_base(self._run)
        self._opened()

    def _opened(self) -> _Open | None:
        """Opens or creates the replica once the job is learned; None until then."""
        run, optimizer = self._run, self._config.optimizer
        if self._open is not None or not run.learned_job.exists() or not run.shard.exists():
            return self._open
        assert optimizer is not None
        job = decode_job(run.learned_job.read_bytes())
        known = Map(job, self._each)
        replica = self._replica(optimizer, job, leaves_out=known.leaves_out)
        shard = Shard.open(run.shard)
        records = Records(run, self._config, replica)
        waiting = Waiting(run, self._config, shard.gradient_bytes)
        self._open = _Open(replica, shard, records, waiting, known)
        self._finish_interrupted(self._open)
        return self._open

    def _replica(self, optimizer: OptimizerConfig, job: Job, *, leaves_out: bool) -> Replica:
        run = self._run
        if run.replica.exists():
            return Replica.open(run.replica, optimizer)
        layout = layout_of(job, self._config)
        if self._config.model.names and not names_fit(job, self._config):
            sentence = (
                f"[model] names has {len(self._config.model.names)} names for "
                f"{len(job.parameters)} parameters: they are called param.0, param.1, ... instead"
            )
            self._links.report(Note(stage=self.name, sentence=sentence))
        known = not job.joined  # else they are nobody's, and the base takes their place
        raw = np.fromfile(run.weights, np.uint8) if known else np.zeros(job.state_bytes, np.uint8)
        weights = layout.memory_order(raw.view(layout.stored_as))
        return Replica.create(
            run.replica,
            layout,
            optimizer,
            weights,
            keep_bytes=self._config.replica.keep_bytes,
            leaves_out=leaves_out,
        )

    def _iteration(self, o: _Open) -> int | None:
        """The shard's number of the iteration that ended the replica's step; None: it waits."""
        followed = incarnation_of(self._run)
        if followed.step is None:
            return None
        return followed.iteration_of(o.replica.step, self._each)

    def _finish_interrupted(self, o: _Open) -> None:
        """A kill after the commit: the line and the release of the generation are still owed."""
        iteration, last = self._iteration(o), o.records.last_step()
        if iteration is None:
            return
        generation = _complete(o.shard, iteration)
        gradient = o.shard.gradient(generation) if generation is not None else None
        if gradient is None:
            gradient = o.waiting.of(iteration)
        if last < o.replica.step:
            own = None if gradient is None else o.map.split(gradient)[0]
            o.records.write(o.replica, 0.0, own)
        if iteration > o.shard.applied_step:
            o.shard.apply(iteration)
            self._tell(o, 0.0)

    def work(self) -> int:
        o = self._opened()
        if o is None:
            return 0
        if self._run.base.exists():
            return self._take_base(o)
        followed = incarnation_of(self._run)
        iteration = o.shard.applied_step + 1
        generation = _complete(o.shard, iteration)
        if followed.step is None or o.waiting.used:
            return self._wait(o, followed, iteration, generation)
        if generation is None:
            return self._look_at_successor(o)
        step = followed.step_of(iteration, self._each)
        seconds = 0.0
        if step is not None:
            seconds = self._step(o, step, o.shard.gradient(generation))
        # Else the trainer only accumulates: the next all-reduce holds this gradient as well.
        o.shard.apply(iteration)
        if step is not None:
            self._tell(o, seconds)
        return 1

    def _step(self, o: _Open, step: int, whole: np.ndarray) -> float:
        """Takes it and writes it down; the seconds it took. whole: as the shard has it."""
        began = time.perf_counter()
        gradient, used = o.map.split(whole)
        if used is not None and bool((o.replica.have_state() & ~used).any()):
            note_left_out(self._run.left_out, step)
        o.replica.apply(step, gradient, used)
        seconds = time.perf_counter() - began
        o.records.write(o.replica, seconds, gradient)
        return seconds

    def _wait(self, o: _Open, followed: Incarnation, iteration: int, generation: int | None) -> int:
        """Logs what is whole; with a base, takes what was logged."""
        if generation is not None:
            if (iteration - followed.iterations) % self._each == 0:
                self._say(o.waiting.keep(iteration, o.shard.gradient(generation)))
            o.shard.apply(iteration)
        at = self._iteration(o)
        logged = o.waiting.after(at) if at is not None else None
        if logged is not None:
            step = followed.step_of(logged[0], self._each)
            assert step is not None
            seconds = self._step(o, step, logged[1])
            self._tell(o, seconds)
        elif at is not None and not o.waiting.closed:
            o.waiting.forget()
        elif generation is None:
            return self._look_at_successor(o)
        return 1

    def _take_base(self, o: _Open) -> int:
        """The wait is over. Done again after a kill before the base is gone."""
        if incarnation_of(self._run).step is not None:
            self._run.base.unlink()  # a kill came before this
            return 1
        try:
            followed, sentence = o.waiting.take(o.replica)
        except StateError as error:
            self._run.base.unlink()
            self._say(str(error))
            return 1
        o.records.forget_after(o.replica.step - 1, followed.number)
        if not o.map.joined:
            o.records.audited(o.replica.step, followed.number)
        o.records.write(o.replica, 0.0, None)
        o.waiting.commit(followed)
        self._say(sentence)
        return 1

    def _look_at_successor(self, o: _Open) -> int:
        """Every whole step of the job is taken: a later incarnation of it may wait."""
        if not self._judge.due:
            return 0
        o.waiting.forget()
        self._say(self._judge.judge(o.replica, o.shard, o.records, self._each))
        return 1

    def _tell(self, o: _Open, seconds: float) -> None:
        message = StepApplied(step=o.replica.step, seconds=seconds, digest=o.replica.digest)
        self._links.send("extract", message)
        self._links.report(message)

    def _say(self, sentence: str | None) -> None:
        if sentence is not None:
            self._links.report(Note(stage=self.name, sentence=sentence))

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at the shard itself."""

    def drained(self) -> bool:
        """No finished step waits, in the shard or, where its base is there, in the log."""
        o = self._open
        if o is None:
            return True
        at = self._iteration(o)
        replaying = at is not None and (
            o.waiting.after(at) is not None or (o.waiting.used and not o.waiting.closed)
        )
        if self._judge.due or replaying or self._run.base.exists():
            return False
        return _complete(o.shard, o.shard.applied_step + 1) is None

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _complete(shard: Shard, step: int) -> int | None:
    """The generation that holds all of `step`."""
    generation = shard.generation_of(step)
    return (
        generation if generation is not None and shard.state(generation) == State.COMPLETE else None
    )
