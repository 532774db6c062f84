"""Stage: applies finished steps to the replica, in order, each exactly once.

The order that makes a kill harmless: the replica commits the step; its line is written to
steps.jsonl while the gradient is still in the shard or the log; only then is that given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.messages import Message, Note, StepApplied
from flowcheck.plane.shard import Shard
from flowcheck.replica.rules.checked import check_rule
from flowcheck.replica.warm import load_torch
from flowcheck.stages.links import Links
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.updating.ahead import Ahead
from flowcheck.stages.updating.anchoring import Anchors
from flowcheck.stages.updating.base import Waiting
from flowcheck.stages.updating.buffers import Buffers
from flowcheck.stages.updating.incarnation import Incarnation, await_first_base, incarnation_of
from flowcheck.stages.updating.judge import Judge
from flowcheck.stages.updating.model import optimizer_of
from flowcheck.stages.updating.opened import Opened
from flowcheck.stages.updating.records import Records
from flowcheck.stages.updating.replicas import open_replica
from flowcheck.stages.updating.scales import Scales
from flowcheck.stages.updating.squares import Squares
from flowcheck.stages.updating.used import Map, Used, note_left_out
from flowcheck.step_numbers import Iteration, Step
from flowcheck.whole import write_whole
from flowcheck.wire.job_file import decode_job


class UpdateService:
    """The only writer of the replica and of the shard's applied step."""

    name = "update"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        assert config.optimizer is not None, "checked when the configuration was read"
        self._run, self._config = run, config
        self._each = config.optimizer.synced_backwards
        """All-reduced backward passes per step of the trainer."""
        self._open: Opened | None = None
        self._judge = Judge(run, config)
        self._squares = Squares(run, config, self._say)
        self._scales = Scales(run, config, self._say)

    def start(self, links: Links) -> None:
        self._links = links
        load_torch()
        assert self._config.optimizer is not None
        check_rule(self._config.optimizer)  # refused now, not in a step
        if self._config.replica.awaits_base:
            await_first_base(self._run)
        self._opened()

    def _opened(self) -> Opened | None:
        """Opens or creates the replica once the job is learned; None until then."""
        run = self._run
        if self._open is not None or not run.learned_job.exists() or not run.shard.exists():
            return self._open
        job = decode_job(run.learned_job.read_bytes())
        self._each = optimizer_of(job, self._config).synced_backwards
        known = Map(job, self._each)
        replica, placing = open_replica(
            run, self._config, job, leaves_out=known.leaves_out, say=self._say
        )
        if placing is not None and incarnation_of(run).step is None:
            write_whole(run.incarnation, msgspec.json.encode(Incarnation()))  # needs no base
        shard = Shard.open(run.shard)
        records = Records(run, self._config, replica)
        waiting = Waiting(run, self._config, shard.gradient_bytes)
        alone, behind = placing is None and not known.leaves_out, int(bool(self._config.together))
        ahead = Ahead(replica, shard, alone=alone, earlier_steps=behind)
        anchors = Anchors(run, self._config, shard, self._each)
        buffers = Buffers(run, job, replica, shard, self._each)
        given = waiting, known, placing, ahead, anchors, buffers
        self._open = Opened(replica, shard, records, *given)
        self._finish_interrupted(self._open)
        return self._open

    def _finish_interrupted(self, o: Opened) -> None:
        """A kill after the commit: the line and the release of the generation are still owed."""
        iteration, last = o.iteration(incarnation_of(self._run), self._each), o.records.last_step()
        if iteration is None:
            return
        generation = o.holds(iteration)  # it was committed: what differs since is told as that
        own = o.taken(generation)[0] if generation is not None else None
        if own is None:
            logged = o.waiting.of(iteration)
            logged = o.anchors.of(iteration) if logged is None else logged
            own = None if logged is None else o.map.split(logged)[0]
        if last < o.replica.step:
            o.records.write(o.replica, 0.0, own)
        if iteration > o.shard.applied_iteration:
            if generation is not None:
                o.anchors.keep(o.replica, iteration, o.shard.gradient(generation))
            o.shard.apply(iteration)
            self._tell(o, 0.0)

    def work(self) -> int:
        o = self._opened()
        if o is None:
            return 0
        if self._run.base.exists():
            return self._take_base(o)
        if self._run.anchor.exists():
            return self._take_anchor(o)
        followed = incarnation_of(self._run)
        o.buffers.look(followed)
        iteration = o.next_iteration
        generation = self._whole(o, iteration)
        if followed.step is None or o.waiting.used:
            return self._wait(o, followed, iteration, generation)
        if (again := o.anchors.next(o.replica, followed)) is not None:
            return self._take_again(o, *again)
        step = followed.step_of(iteration, self._each)
        if generation is None:
            return self._look_at_successor(o) or o.ahead.look(step, iteration)
        took: float | None = 0.0
        if step is not None:
            took = self._step(o, step, *o.taken(generation), partial(o.certain, generation))
            if o.shard.doubted(generation) or (took is None and not self._squares.gone):
                return 0
            o.anchors.keep(o.replica, iteration, o.shard.gradient(generation))
        # Else the trainer only accumulates: the next all-reduce holds this gradient as well.
        o.shard.apply(iteration)
        if step is not None and took is not None:
            self._tell(o, took)
        return 1

    def _whole(self, o: Opened, iteration: Iteration) -> int | None:
        """The generation to be taken. Once a later life is on file all whole steps of this one were
        taken: what an extractor that starts finds of it since is behind what was handed over."""
        return None if self._run.successor.exists() else o.whole(iteration)

    def _step(
        self,
        o: Opened,
        step: Step,
        gradient: np.ndarray,
        used: Used,
        certain: Callable[[], bool] = lambda: True,
    ) -> float | None:
        """Takes it and writes it down; the seconds it took. None: it waits for another's, or
        `certain` said at the very end that the gradient is not to be believed."""
        began = time.perf_counter()
        own = self._squares.clipped(o.replica.layout, step, gradient, used)
        if own is None:
            return None
        left_out = used if o.placing is None else None
        if left_out is not None and bool((o.replica.have_state() & ~left_out).any()):
            note_left_out(self._run.left_out, step)
        self._scales.before(o.replica)
        if not o.ahead.finish(step, own, used, certain):
            return None
        self._scales.behind(o.replica, own)
        seconds = time.perf_counter() - began
        o.records.write(o.replica, seconds, gradient)
        return seconds

    def _wait(
        self, o: Opened, followed: Incarnation, iteration: Iteration, generation: int | None
    ) -> int:
        """Logs what is whole; with a base, takes what was logged, before more than finds room."""
        at = o.iteration(incarnation_of(self._run), self._each)
        if generation is not None and (at is None or o.waiting.closed or not o.waiting.full):
            if (iteration - followed.iterations) % self._each == 0:
                own, any_base = o.shard.gradient(generation), followed.step is None and o.map.joined
                self._say(o.waiting.keep(iteration, own, any_base=any_base))
            o.shard.apply(iteration)
        logged = o.waiting.after(at) if at is not None else None
        if logged is not None:
            step = followed.step_of(logged[0], self._each)
            assert step is not None
            took = self._step(o, step, *o.map.split(logged[1]))
            if took is None:
                return 0
            o.anchors.keep(o.replica, *logged)
            self._tell(o, took)
        elif at is not None and not o.waiting.closed:
            o.waiting.forget()
        elif generation is None:
            return self._look_at_successor(o)
        return 1

    def _take_base(self, o: Opened) -> int:
        """The wait is over. Done again after a kill before the base is gone."""
        if incarnation_of(self._run).step is not None:
            self._run.base.unlink()  # a kill came before this
            return 1
        self._say(o.waiting.settle(o.replica, o.records, joined=o.map.joined))
        return 1

    def _take_anchor(self, o: Opened) -> int:
        waits = incarnation_of(self._run).step is None or o.waiting.used
        gathered = o.placing is not None
        step, sentence = o.anchors.take(o.replica, o.records, gathered=gathered, waits=waits)
        self._say(sentence)
        if o.replica.step == step:
            self._tell(o, 0.0)
        return 1

    def _take_again(self, o: Opened, step: Step, gradient: np.ndarray) -> int:
        """A step behind one that the trainer's file took the place of; new ones are kept until it
        is their turn, so that no generation waits for it."""
        iteration = o.next_iteration
        generation = self._whole(o, iteration)
        if generation is not None and o.anchors.keep(
            o.replica, iteration, o.shard.gradient(generation)
        ):
            o.shard.apply(iteration)
        if self._step(o, step, *o.map.split(gradient)) is not None:
            self._tell(o, 0.0)
        return 1

    def _look_at_successor(self, o: Opened) -> int:
        """Every whole step of the job is taken: a later incarnation of it may wait."""
        if not self._judge.due:
            return 0
        o.waiting.forget()
        self._say(self._judge.judge(o.replica, o.shard, o.records, o.anchors, self._each))
        return 1

    def _tell(self, o: Opened, seconds: float) -> None:
        message = StepApplied(step=o.replica.step, seconds=seconds, digest=o.replica.digest)
        self._links.send("extract", message)
        self._links.report(message)
        if (lack := o.records.lack()) is not None:
            self._links.report(lack)

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
        at = o.iteration(incarnation_of(self._run), self._each)
        replaying = at is not None and (
            o.waiting.after(at) is not None or (o.waiting.used and not o.waiting.closed)
        )
        if at is not None and not replaying:
            replaying = o.anchors.next(o.replica, incarnation_of(self._run)) is not None
        given = self._run.base.exists() or self._run.anchor.exists()
        if self._judge.due or replaying or given:
            return False
        return self._whole(o, o.next_iteration) is None

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
