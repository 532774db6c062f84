"""The extract stage on a real capture with its job stated by hand, against the truth tensors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flowcheck.config import JobConfig, OptimizerConfig, RingConfig, SourceConfig
from flowcheck.messages import Drained, Message, ShardReady, StepLost
from flowcheck.plane.flows import FlowTable
from flowcheck.plane.parser import Parser
from flowcheck.plane.pcap import PcapSource
from flowcheck.plane.ring import Ring
from flowcheck.plane.shard import Shard
from flowcheck.stages import learner
from flowcheck.stages.extract import ExtractService
from flowcheck.stages.rundir import RunDir
from flowcheck.wire.job import Communicator, Edge, Job, Op, Parameter, PointToPoint, Role
from flowcheck.wire.learn import Reading, Weights
from flowcheck.wire.seen import FlowKey, FlowSeen, MessageSeen
from flowcheck.wire.terms import Kind, Protocol, Rule

CAPTURE = "iter_40000_p2p_iter10.pcapng"
ELEMENTS, STEPS = 5000, 20
CHUNK_BYTES = 3072 * 4
SLOTS = 64


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


def job_of(ring: FlowKey, p2p: FlowKey) -> Job:
    """What facts/captures.md says of this capture: AR after three start-up sends, then p2p."""
    total = ELEMENTS * 4
    reduce = Op(communicator=0, protocol=Protocol.LL, role=Role.BUCKET, work_bytes=total)
    told = Op(
        communicator=0,
        protocol=Protocol.LL,
        role=Role.IGNORED,
        kind=Kind.BROADCAST,
        work_bytes=8,
        element_bytes=1,
    )
    rest = Op(
        communicator=1,
        protocol=Protocol.SIMPLE,
        role=Role.BUCKET,
        kind=None,
        messages=(PointToPoint(channel=0, start_byte=CHUNK_BYTES, data_bytes=total - CHUNK_BYTES),),
    )
    return Job(
        rule=Rule.V2_19,
        communicators=(Communicator(ranks=2, channels=1), Communicator(ranks=2, channels=1)),
        edges=(
            Edge(communicator=0, sender=0, flows=(ring,), first_numbers=(3,)),
            Edge(communicator=1, sender=0, flows=(p2p,), first_numbers=(0,)),
        ),
        parameters=(Parameter(sizes=(1, ELEMENTS), strides=(ELEMENTS, 1)),),
        first_buckets=((0,),),
        buckets=((0,),),
        first=(reduce, rest, told, told),
        each=(reduce, rest),
    )


def reading(flows: list[FlowSeen], messages: list[MessageSeen], *, ended: bool) -> Reading:
    """Proves the job once the first all-reduce is there."""
    sizes = {key: [m for m in messages if m.flow == key] for key in {m.flow for m in messages}}
    rings = [key for key, seen in sizes.items() if any(m.wire_bytes == 40000 for m in seen)]
    parts = [key for key, seen in sizes.items() if any(m.wire_bytes == 7712 for m in seen)]
    if not (rings and parts):
        return Reading(flows=(), collectives=(), weights=None, job=None, why_not=("too early",))
    weights = Weights(
        shapes=((1, ELEMENTS),), result=np.zeros(ELEMENTS * 4, np.uint8), missing=(), complete=True
    )
    job = job_of(rings[0], parts[0])
    return Reading(flows=(), collectives=(), weights=weights, job=job, why_not=())


@pytest.fixture
def run(shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(learner, "read_stream", reading)
    made = RunDir.create(tmp_path / "run", shm / "memory")
    Ring.create(made.ring(0), slots=SLOTS).close()
    FlowTable.create(made.flows(0), messages=2 * SLOTS).close()
    return made


def config() -> JobConfig:
    return JobConfig(
        source=(SourceConfig(file="x"),),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        ring=RingConfig(slots=SLOTS),
    )


class Chain:
    """Capture and parser beside the stage, in this process."""

    def __init__(self, run: RunDir, capture: Path, keep: Callable[[int], bool]) -> None:
        self.run, self.heard = run, Heard()
        self.gradients: dict[int, bytes] = {}
        self.ring = Ring.open(run.ring(0))
        self.flows = FlowTable.open(run.flows(0), writable=True)
        self.parser = Parser(self.ring, self.flows)
        self.source = PcapSource(capture)
        self.keep = keep
        self.commit = self.ring.capture_commit()
        self.seen = 0

    def feed(self) -> None:
        """One frame at a time, so that tests can leave some out."""
        from flowcheck._core import ffi, lib

        frame = ffi.new("struct fc_pcap_frame *")
        while self.ring.head - self.ring.tail < SLOTS:
            if not lib.fc_pcap_next(self.source.handle, frame):
                if self.ring.source_end is None:
                    self.ring.end_source()
                break
            self.seen += 1
            if self.keep(self.seen - 1):
                size = frame.frame_bytes
                lib.fc_ring_put(self.ring.handle, 0, frame.bytes, size, size, self.seen, 0)
                lib.fc_ring_publish(self.ring.handle, 1, self.commit)
        self.parser.parse(SLOTS)

    def apply(self) -> None:
        """The updater: takes whole steps in order."""
        if not self.run.shard.exists():
            return
        with Shard.open(self.run.shard) as shard:
            step = shard.applied_step + 1
            generation = shard.generation_of(step)
            if generation is not None and shard.state(generation).name == "COMPLETE":
                self.gradients[step] = shard.gradient(generation).tobytes()
                shard.apply(step)

    def drive(self, service: ExtractService, turns: int = 100000) -> None:
        for _ in range(turns):
            self.feed()
            service.work()
            self.apply()
            if service.drained():
                return

    def close(self) -> None:
        self.source.close()
        self.parser.close()
        self.flows.close()
        self.ring.close()


def started(run: RunDir, chain: Chain) -> ExtractService:
    service = ExtractService(run, config())
    service.start(chain.heard)  # type: ignore[arg-type]
    return service


def right(truth: Path) -> dict[int, bytes]:
    stem = CAPTURE.removesuffix(".pcapng")
    return {
        step + 1: (truth / "tensors" / f"{stem}.ar{step:02}.f32.bin").read_bytes()
        for step in range(STEPS)
    }


def test_twenty_steps_come_out_as_the_truth_says_through_a_ring_of_64_slots(
    run: RunDir, captures: Path, truth: Path
) -> None:
    chain = Chain(run, captures / CAPTURE, lambda n: True)
    service = started(run, chain)
    try:
        chain.drive(service)
        assert chain.gradients == right(truth)
        assert [m.steps for m in chain.heard.of(Drained)] == [STEPS]
        assert {m.step for m in chain.heard.of(ShardReady)} == set(range(1, STEPS + 1))
        assert chain.heard.of(StepLost) == []
        assert run.weights.stat().st_size == ELEMENTS * 4
        counters = chain.ring.counters()
        assert counters["extract"]["placed_bytes"] == STEPS * ELEMENTS * 4
        assert counters["extract"]["seen_frames"] == 1417
    finally:
        service.stop()
        chain.close()


def test_one_lost_packet_loses_its_step_with_exact_ranges_and_counting_goes_on(
    run: RunDir, captures: Path, truth: Path
) -> None:
    # A Middle packet of a p2p message: found by size of a frame and distance.
    chain = Chain(run, captures / CAPTURE, lambda n: n != 700)
    service = started(run, chain)
    try:
        chain.drive(service)
        [lost, *_] = chain.heard.of(StepLost)
        whole = right(truth)
        assert chain.gradients == {s: whole[s] for s in range(1, lost.step)}
        assert 0 < sum(b - a for a, b in lost.missing) <= 1024
        assert [m.steps for m in chain.heard.of(Drained)] == [lost.step - 1]
        assert chain.ring.counters()["extract"]["seen_frames"] == 1416
        assert chain.ring.drained
    finally:
        service.stop()
        chain.close()


def test_stage_killed_at_fifty_instants_goes_on_where_it_was(
    run: RunDir, captures: Path, truth: Path
) -> None:
    chain = Chain(run, captures / CAPTURE, lambda n: True)
    rng = np.random.default_rng(11)
    try:
        for _ in range(50):
            child = os.fork()
            if child == 0:
                try:
                    service = started(run, chain)
                    for _ in range(int(rng.integers(1, 6))):
                        service.work()
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            rng.random()
            chain.feed()
            chain.apply()
        service = started(run, chain)
        chain.drive(service)
        service.stop()
        assert chain.gradients == right(truth)
        assert chain.ring.counters()["extract"]["placed_bytes"] == STEPS * ELEMENTS * 4
    finally:
        chain.close()
