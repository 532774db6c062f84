"""A supervisor over processes that are only said to live and die, and a clock that is told."""

from __future__ import annotations

import signal
from typing import cast

from flowcheck._core import lib
from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.messages import Hello, Message
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.supervisor.supervisor import Supervisor
from flowcheck.stages.zmq_sockets import StageSockets

CONFIG = JobConfig(
    source=(SourceConfig(file="a"), SourceConfig(vdev="net_null0", queues=2)),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
)
STAGES = ["update", "extract", "parse-0", "parse-1", "parse-2", "capture-0", "capture-1"]


class FakeProcess:
    """What subprocess.Popen gives, without a process."""

    started: list[FakeProcess]
    said: list[tuple[str, str]]
    pid = 1  # lives, and is none of ours

    def __init__(self, command: list[str], *, env: dict[str, str], **_: object) -> None:
        words = command[command.index("stage") + 1 :]
        number = f"-{words[2]}" if words[1] == "--number" else ""
        self.stage, self.command, self.environment = words[0] + number, command, env
        self.code: int | None = None
        self.obeys = True
        FakeProcess.started.append(self)

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        if self.code is None:
            FakeProcess.said.append(("terminate", self.stage))
            self.code = 0 if self.obeys else None

    def kill(self) -> None:
        if self.code is None:
            FakeProcess.said.append(("kill", self.stage))
            self.code = -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None, "would wait for ever"
        return self.code


class FakeInbox:
    def __init__(self) -> None:
        self.waiting: list[Message] = []

    def drain(self, *, limit: int, wait_ms: int) -> list[Message]:
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken


class FakeLinks:
    def __init__(self) -> None:
        self.inbox = FakeInbox()
        self.broadcast = self
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Clock:
    """Seconds that pass when told to, and a little with every look."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def time(self) -> float:
        return self.now_s


class Bench:
    """A supervisor whose world is fake but for its run directory."""

    def __init__(self, run: RunDir, clock: Clock) -> None:
        self.run, self.clock, self.hurry = run, clock, False
        self.links = FakeLinks()
        self.rings = [FrameRing.create(run.ring(n), slots=64, slot_bytes=128) for n in range(3)]
        self.supervisor = Supervisor(run, CONFIG, hurried=lambda: self.hurry)
        self.supervisor.start(cast(StageSockets, self.links))

    def hello(self, *stages: str, version: int = lib.FC_LAYOUT_VERSION) -> None:
        for stage in stages:
            self.supervisor.on_message(Hello(stage=stage, pid=1, layout_version=version))

    def up(self) -> None:
        self.hello(*STAGES[:5])
        self.supervisor.work()
        self.hello(*STAGES[5:])
        self.supervisor.work()

    def process(self, stage: str) -> FakeProcess:
        return [p for p in FakeProcess.started if p.stage == stage][-1]

    def die(self, stage: str, code: int) -> None:
        self.process(stage).code = code
        self.supervisor.work()

    def frame(self, number: int) -> None:
        """Capture publishes one frame into a ring."""
        handle, commit = self.rings[number].handle, self.rings[number].capture_commit()
        assert lib.fc_ring_put(handle, 0, b"x" * 60, 60, 60, 0, 0) == 0
        lib.fc_ring_publish(handle, 1, commit)
