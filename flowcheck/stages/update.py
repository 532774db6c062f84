"""Stage: applies finished steps to the replica, in order, each exactly once.

The order that makes a kill harmless: the replica commits the step; its line is written to
steps.jsonl while the gradient is still in the shard; only then is the generation given back.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.messages import Message, Note, StepApplied
from flowcheck.plane.shard import Shard, State
from flowcheck.replica import optimizers
from flowcheck.replica.digest import sha256
from flowcheck.replica.layout import Layout
from flowcheck.replica.replica import Replica
from flowcheck.replica.trace import Trace
from flowcheck.replica.warm import load_torch
from flowcheck.stages.judge import Judge
from flowcheck.stages.links import Links
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Job, decode_job

DTYPES = {2: None, 4: "float32", 8: "float64"}
"""What an element size means where the wire leaves no choice for a gradient; 2 bytes: two fit."""


class StepLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of steps.jsonl."""

    step: int
    digest: str
    """xxh3 of parameters and optimizer state (replica.digest)."""
    seconds: float
    gradient_sha256: str | None = None
    """Of the mean gradient, flat in registration order."""
    parameters_sha256: str | None = None
    """Of the parameters after the step, flat in registration order."""
    states_sha256: dict[str, str] = {}
    """Of each optimizer state after the step, likewise, by torch's name."""


def layout_of(job: Job, config: JobConfig) -> Layout:
    """The replica's layout. Raises StateError where the dtype must be stated."""
    sizes = {parameter.element_bytes for parameter in job.parameters}
    told = {parameter.dtype for parameter in job.parameters} - {None}
    if len(sizes) != 1 or len(told) > 1:
        raise StateError("parameters of several dtypes: one dtype per replica is supported")
    dtype = config.model.dtype or (told.pop() if told else DTYPES.get(sizes.pop()))
    if dtype is None:
        raise StateError(
            "elements of 2 bytes may be bfloat16 or float16 and the wire does not tell: "
            'state [model] dtype = "bfloat16" (or "float16")'
        )
    shapes = [(parameter.sizes, parameter.strides) for parameter in job.parameters]
    return Layout.of(shapes, names=list(config.model.names) or None, dtype=dtype)


class UpdateService:
    """The only writer of the replica and of the shard's applied step."""

    name = "update"

    def __init__(self, run: RunDir, config: JobConfig) -> None:
        self._run, self._config = run, config
        self._replica: Replica | None = None
        self._shard: Shard | None = None
        self._trace: Trace | None = None
        self._judge = Judge(run, config, layout_of)

    def start(self, links: Links) -> None:
        self._links = links
        load_torch()
        self._open()

    def _open(self) -> bool:
        """Opens or creates the replica once the job is learned; False until then."""
        if self._replica is not None:
            return True
        run = self._run
        if not run.learned_job.exists() or not run.shard.exists():
            return False
        job = decode_job(run.learned_job.read_bytes())
        assert self._config.optimizer is not None, "checked when the configuration was read"
        if run.replica.exists():
            self._replica = Replica.open(run.replica, self._config.optimizer)
        else:
            layout = layout_of(job, self._config)
            weights = layout.memory_order(np.fromfile(run.weights, layout.stored_as))
            keep_bytes = self._config.replica.keep_bytes
            self._replica = Replica.create(
                run.replica, layout, self._config.optimizer, weights, keep_bytes=keep_bytes
            )
        self._shard = Shard.open(run.shard)
        count = len(optimizers.named_tensors(self._replica.sections(), self._replica.layout))
        self._trace = Trace(run.trace, count)
        if self._replica.step * self._iterations > self._shard.applied_step:
            self._finish_interrupted(self._replica.step)
        return True

    @property
    def _iterations(self) -> int:
        """All-reduced backward passes per step of the trainer."""
        assert self._config.optimizer is not None
        return self._config.optimizer.synced_backwards

    def _finish_interrupted(self, step: int) -> None:
        """A kill after the commit: the line and the release of the generation are still owed."""
        text = self._run.steps.read_text() if self._run.steps.exists() else ""
        whole = [line for line in text.split("\n") if line.endswith("}")]
        kept = "".join(f"{line}\n" for line in whole)
        if kept != text:
            _replace(self._run.steps, kept)
        last = msgspec.json.decode(whole[-1], type=StepLine).step if whole else 0
        if last < step:
            self._write(step, 0.0)
        self._release(step, 0.0)

    def work(self) -> int:
        if not self._open():
            return 0
        assert self._replica is not None and self._shard is not None
        iteration = self._shard.applied_step + 1
        generation = _complete(self._shard, iteration)
        if generation is None:
            return self._look_at_successor()
        if iteration % self._iterations:
            # The trainer only accumulates: the next all-reduce holds this gradient as well.
            self._shard.apply(iteration)
            return 1
        step = iteration // self._iterations
        began = time.perf_counter()
        self._replica.apply(step, self._shard.gradient(generation))
        seconds = time.perf_counter() - began
        self._write(step, seconds)
        self._release(step, seconds)
        return 1

    def _look_at_successor(self) -> int:
        """Every whole step of the job is taken: a later incarnation of it may wait."""
        if not self._judge.due:
            return 0
        assert self._replica is not None and self._shard is not None
        sentence = self._judge.judge(self._replica, self._shard, self._iterations)
        self._links.report(Note(stage=self.name, sentence=sentence))
        return 1

    def _write(self, step: int, seconds: float) -> None:
        """The records of a step: what its tensors were, and its line."""
        assert self._replica is not None and self._trace is not None
        if self._replica.tensor_digests:
            self._trace.append(step, self._replica.tensor_digests)
        with self._run.steps.open("ab") as file:
            file.write(msgspec.json.encode(self._line(step, seconds)) + b"\n")

    def _release(self, step: int, seconds: float) -> None:
        assert self._replica is not None and self._shard is not None
        self._shard.apply(step * self._iterations)
        message = StepApplied(step=step, seconds=seconds, digest=self._replica.digest)
        self._links.send("extract", message)
        self._links.report(message)

    def _line(self, step: int, seconds: float) -> StepLine:
        assert self._replica is not None and self._shard is not None
        gradient = parameters = None
        states: dict[str, str] = {}
        generation = _complete(self._shard, step * self._iterations)
        if self._config.digests and generation is not None:
            gradient = sha256(self._shard.gradient(generation))
            parameters = sha256(self._replica.parameters())
            sections = self._replica.sections()
            states = {k: sha256(v) for k, v in sections.items() if k != optimizers.PARAMETERS}
        return StepLine(
            step=step,
            digest=self._replica.digest,
            seconds=round(seconds, 6),
            gradient_sha256=gradient,
            parameters_sha256=parameters,
            states_sha256=states,
        )

    def on_message(self, message: Message) -> None:
        """Every message is a nudge: `work` looks at the shard itself."""

    def drained(self) -> bool:
        """No finished step waits."""
        if self._replica is None or self._shard is None:
            return True
        if self._judge.due:
            return False
        return _complete(self._shard, self._shard.applied_step + 1) is None

    def stop(self) -> None:
        if self._shard is not None:
            self._shard.close()
        if self._trace is not None:
            self._trace.close()
        if self._replica is not None:
            self._replica.close()


def _complete(shard: Shard, step: int) -> int | None:
    """The generation that holds all of `step`."""
    generation = shard.generation_of(step)
    return (
        generation if generation is not None and shard.state(generation) == State.COMPLETE else None
    )


def _replace(path: Path, text: str) -> None:
    staging = path.with_suffix(".tmp")
    staging.write_text(text)
    staging.replace(path)
