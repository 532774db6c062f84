"""Starts the stages, consumers first; restarts what dies; stops in the order data flows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from flowcheck.config import JobConfig
from flowcheck.errors import StateError
from flowcheck.messages import (
    Drained,
    Fault,
    Hello,
    Message,
    Note,
    SourceEnded,
    StepApplied,
    StepLost,
)
from flowcheck.plane.shard import Shard
from flowcheck.stages.links import Links
from flowcheck.stages.rundir import RunDir

HELLO_LIMIT_S = 60.0
"""Loading torch on a busy machine takes seconds."""
GRACE_S = 4.0
"""Between the request to leave and SIGKILL; the whole end takes at most 5 s."""
RESTARTS_MAX, RESTARTS_WITHIN_S = 8, 10.0
"""A stage that dies faster than this is not restarted: the chain stops with its sentence."""
OPERATOR_ERROR = 2
"""Exit code of a stage whose Fault the operator can mend; restarting would not."""


@dataclass
class Child:
    """One stage's process."""

    stage: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    greeted: bool = False
    started_s: float = 0.0
    restarts: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RESTARTS_MAX))


@dataclass
class Progress:
    """What the chain has done so far, as its events told."""

    steps: int = 0
    digest: str = ""
    lost: StepLost | None = None
    ended: set[str] = field(default_factory=set)
    """Capture stages whose source has ended."""
    complete_steps: int | None = None
    """Steps the whole stream held, once it is extracted to its end."""
    why: str = ""
    """What kept the extractor from more."""
    notes: list[str] = field(default_factory=list)
    restarts: int = 0


class Supervisor:
    """A service like the others: its inbox is where every stage reports."""

    name = Links.EVENTS

    def __init__(
        self,
        run: RunDir,
        config: JobConfig,
        *,
        watch: Callable[[Progress], None] | None = None,
    ) -> None:
        self.run, self.config = run, config
        self.progress = Progress()
        self.fault: Fault | None = None
        self._watch = watch
        self._children = [
            Child(name, arguments) for name, arguments in stage_arguments(config).items()
        ]
        self._ended = False
        self._failure = ""

    def start(self, links: Links) -> None:
        self._links = links
        for child in self._consumers():
            self._spawn(child)

    def _consumers(self) -> list[Child]:
        return [child for child in self._children if not child.stage.startswith("capture")]

    def _spawn(self, child: Child) -> None:
        command = [sys.executable, "-m", "flowcheck", "stage", *child.arguments]
        command += ["--run", str(self.run.root), "--parent", str(os.getpid())]
        with self.run.log(child.stage).open("ab") as log:
            child.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        child.greeted, child.started_s = False, time.monotonic()
        self.run.pid_file(child.stage).write_text(str(child.process.pid))

    def work(self) -> int:
        try:
            for child in self._children:
                self._look_after(child)
        except StateError as error:
            self._failure = str(error)
            raise
        if all(child.greeted for child in self._consumers()):
            for child in self._children:
                if child.process is None:
                    self._spawn(child)
        if self._watch is not None:
            self._watch(self.progress)
        return 0

    def _look_after(self, child: Child) -> None:
        if child.process is None:
            return
        code = child.process.poll()
        waited_s = time.monotonic() - child.started_s
        if code is None and not child.greeted and waited_s > HELLO_LIMIT_S:
            raise StateError(
                f"stage {child.stage} did not come up within {HELLO_LIMIT_S:.0f} s; "
                f"its log: {self.run.log(child.stage)}"
            )
        if code is None or (code == 0 and self._finished(child)):
            return
        if code == OPERATOR_ERROR:
            raise StateError(self._sentence_of(child))
        self._restart(child, code)

    def _finished(self, child: Child) -> bool:
        return child.stage.startswith("capture") and child.stage in self.progress.ended

    @property
    def sentence(self) -> str:
        """What ended the chain, for the operator; empty if nothing did."""
        return self._failure

    def _sentence_of(self, child: Child) -> str:
        for message in self._links.inbox.drain(limit=64, wait_ms=200):
            self.on_message(message)
        if self.fault is not None and self.fault.stage == child.stage:
            return f"{child.stage}: {self.fault.sentence}"
        return f"stage {child.stage} gave up; its log: {self.run.log(child.stage)}"

    def _restart(self, child: Child, code: int) -> None:
        now = time.monotonic()
        if len(child.recent) == RESTARTS_MAX and now - child.recent[0] < RESTARTS_WITHIN_S:
            raise StateError(
                f"stage {child.stage} died {RESTARTS_MAX} times within {RESTARTS_WITHIN_S:.0f} s "
                f"(last exit code {code}); its log: {self.run.log(child.stage)}"
            )
        child.recent.append(now)
        child.restarts += 1
        self.progress.restarts += 1
        self._record({"event": "restart", "stage": child.stage, "exit_code": code})
        self._spawn(child)

    def on_message(self, message: Message) -> None:
        assert self._links.broadcast is not None
        self._links.broadcast.send(message)
        self._record(msgspec.to_builtins(message))
        progress = self.progress
        match message:
            case Hello(stage=stage):
                for child in self._children:
                    child.greeted |= child.stage == stage
            case StepApplied(step=step, digest=digest):
                progress.steps, progress.digest = max(progress.steps, step), digest
            case StepLost():
                progress.lost = progress.lost or message
            case SourceEnded(ring=ring):
                source = self.config.rings[ring][0]
                progress.ended.add(f"capture-{source}")
            case Drained(stage="extract", steps=steps, why=why):
                progress.complete_steps, progress.why = steps, why
            case Note(stage=stage, sentence=sentence):
                progress.notes.append(f"{stage}: {sentence}")
            case Fault():
                self.fault = message
            case _:
                pass

    def _record(self, event: object) -> None:
        line = {"time": round(time.time(), 3)} | dict(event)  # type: ignore[call-overload]
        with self.run.events.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def drained(self) -> bool:
        """The stream was extracted to its end and the replica took every whole step of it.

        The shard tells, not a message: an updater may be killed before it could send one.
        """
        whole = self.progress.complete_steps
        if whole is None or whole == 0:
            return whole == 0
        with Shard.open(self.run.shard) as shard:
            return shard.applied_step >= whole

    def stop(self) -> None:
        """Capture first, so that nothing new comes; then along the flow of data."""
        if self._ended:
            return
        self._ended = True
        for child in self._in_flow_order():
            if child.process is not None and child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + GRACE_S
        for child in self._in_flow_order():
            if child.process is None:
                continue
            try:
                child.process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _in_flow_order(self) -> list[Child]:
        return list(reversed(self._children))


def stage_arguments(config: JobConfig) -> dict[str, tuple[str, ...]]:
    """{stage name: words after `flowcheck stage`}, in the order they are started."""
    stages: dict[str, tuple[str, ...]] = {"update": ("update",), "extract": ("extract",)}
    for ring in range(len(config.rings)):
        stages[f"parse-{ring}"] = ("parse", "--number", str(ring))
    for source in range(len(config.source)):
        stages[f"capture-{source}"] = ("capture", "--number", str(source))
    return stages
