"""The extract stage driven in one process: capture, parser and updater beside it."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flowcheck._core import ffi, lib
from flowcheck.config import (
    JobConfig,
    OptimizerConfig,
    ReplicaConfig,
    RingConfig,
    SourceConfig,
    StagingConfig,
)
from flowcheck.messages import Message
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.gradient_double_buffer import TO_APPLY, GradientShard
from flowcheck.stages.extraction.extract_stage import ExtractService
from flowcheck.stages.run_directory.run_dir import RunDir

REST_S, NAP_S = 0.05, 0.0005
STAGING_BYTES = 1 << 25
"""Each start of the stage makes all its pages, and each reading is a fork of them."""
"""Longest rest: of a stage whose reading is under way, and of one that has none to wait for."""


def dealt(
    capture: Path, folder: Path, files: int, deal: Callable[[int, bytes], int | None]
) -> list[Path]:
    """A capture's frames over several files; deal: frame number and bytes to file, None drops."""
    folder.mkdir(exist_ok=True)
    bodies = [bytearray(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))]
    bodies += [bytearray(bodies[0]) for _ in range(files - 1)]
    frame, number = ffi.new("struct fc_pcap_frame *"), 0
    with PcapSource(capture) as source:
        while lib.fc_pcap_next(source.handle, frame) == 1:
            data = bytes(ffi.buffer(frame.bytes, frame.frame_bytes))
            to = deal(number, data)
            number += 1
            if to is None:
                continue
            seconds, nanoseconds = divmod(int(frame.timestamp_ns), 10**9)
            head = struct.pack("<IIII", seconds, nanoseconds, len(data), frame.wire_bytes)
            bodies[to] += head + data
    paths = [folder / f"dealt{n}.pcap" for n in range(files)]
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(body)
    return paths


def steps_of(truth: Path, capture: str, steps: int) -> dict[int, bytes]:
    """{step: gradient} of a real capture whose every all-reduce is a step, by its truth."""
    stem = capture.removesuffix(".pcapng")
    return {
        step + 1: (truth / "tensors" / f"{stem}.ar{step:02}.f32.bin").read_bytes()
        for step in range(steps)
    }


GOES_ON = OptimizerConfig(name="sgd", learning_rate=0.1)
"""A rule that steps each element by itself: a missing byte costs its element."""
STOPS = OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=1.0)
"""A missing byte may matter everywhere: the replica stays before its step."""


class Heard:
    """Links that only remember."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def send(self, to: str, message: Message) -> None:
        self.messages.append(message)

    def report(self, message: Message) -> None:
        self.messages.append(message)

    def of(self, kind: type) -> list[Message]:
        return [message for message in self.messages if isinstance(message, kind)]


class Chain:
    """Capture, parser and updater beside the stage; one ring per capture file."""

    def __init__(
        self,
        folder: Path,
        memory: Path,
        captures: Sequence[Path],
        slots: int,
        *,
        joins: bool = False,
        readers: int = 1,
    ) -> None:
        self.joins, self.optimizer = joins, GOES_ON
        self.run = RunDir.create(folder / "run", memory)
        self.heard = Heard()
        self.slots = slots
        self.gradients: dict[int, bytes] = {}
        self.partial: dict[int, tuple[bytes, tuple[tuple[int, int], ...]]] = {}
        """{step: gradient, and which bytes of it never came}, of those that lack some."""
        self.parts = []
        for number, path in enumerate(captures):
            FrameRing.create(self.run.ring(number), slots=slots, readers=readers).close()
            FlowTable.create(self.run.flows(number), messages=4 * slots).close()
            ring = FrameRing.open(self.run.ring(number))
            flows = FlowTable.open(self.run.flows(number), writable=True)
            self.parts.append((ring, flows, Parser(ring, flows), PcapSource(path)))
        self.commits = [ring.capture_commit() for ring, *_ in self.parts]

    def service(self) -> ExtractService:
        config = JobConfig(
            source=tuple(SourceConfig(file=f"{n}") for n in range(len(self.parts))),
            optimizer=self.optimizer,
            ring=RingConfig(slots=self.slots),
            staging=StagingConfig(size_bytes=STAGING_BYTES),
            replica=ReplicaConfig(joins=self.joins),
        )
        service = ExtractService(self.run, config)
        service.start(self.heard)  # type: ignore[arg-type]
        return service

    def feed(self, *frames: int) -> None:
        """At most so many frames into each ring; one number is for all, none: a ring full."""
        limits = frames if len(frames) > 1 else (frames or (self.slots,)) * len(self.parts)
        for part, commit, limit in zip(self.parts, self.commits, limits, strict=True):
            ring, _, parser, source = part
            if not source.ended and limit:
                source.read_into(ring, limit, commit)
                if source.ended:
                    ring.end_source()
            parser.parse(self.slots)

    def apply(self) -> None:
        """The updater: takes whole steps in order."""
        if not self.run.shard.exists():
            return
        with GradientShard.open(self.run.shard) as shard:
            step = shard.applied_iteration + 1
            generation = shard.generation_of(step)
            if generation is not None and shard.generation_state(generation) in TO_APPLY:
                gradient = shard.gradient(generation).tobytes()
                missing = shard.missing(generation)
                if missing:
                    self.partial[step] = gradient, missing
                else:
                    self.gradients[step] = gradient
                shard.apply(step)

    def drive(self, service: ExtractService, *frames: int, turns: int = 100000) -> None:
        for _ in range(turns):
            self.feed(*frames)
            done = service.work()
            self.apply()
            if service.drained():
                return
            if not done:
                rest(service)
        raise AssertionError("the stage never came to an end")

    def life(
        self, turns: int, *, limit_s: float = 0, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """The stage in a process of its own, killed after so many turns, or so many seconds of its
        own processor time if not 0: how busy the machine is moves no kill. prepare: called there
        once the stage has started."""
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGPROF, signal.SIG_DFL)
                service = self.service()
                prepare()
                signal.setitimer(signal.ITIMER_PROF, limit_s)
                for _ in range(turns):
                    service.work()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)

    def close(self) -> None:
        for ring, flows, parser, source in self.parts:
            source.close()
            parser.close()
            flows.close()
            ring.close()


def rest(service: ExtractService) -> None:
    """Between two turns with nothing to do: the reading under way has the processor."""
    if service._learner._reading is not None:
        service._learner._reading.wait(REST_S)
    else:
        time.sleep(NAP_S)


def played(chain: Chain, *frames: int) -> dict[int, bytes]:
    """Drives a service of the chain to its end; the gradients by step."""
    service = chain.service()
    try:
        chain.drive(service, *frames)
    finally:
        service.stop()
    return chain.gradients
