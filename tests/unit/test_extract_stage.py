"""The extract stage on a real capture with its job stated by hand, against the truth tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.staged import STOPS, Chain, dealt, played, steps_of

from flowcheck.findings.catalog.job_selection_reasons import NO_READING_YET
from flowcheck.messages import Drained, ShardReady, StepLost
from flowcheck.stages.job_learning import stream_reading
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind, NcclEra, Protocol
from flowcheck.wire.learn import Reading, Weights
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedFlow, ObservedMessage
from flowcheck.wire.training_job.learned_job import (
    CollectiveOp,
    Communicator,
    Edge,
    LearnedJob,
    Parameter,
    PointToPoint,
    Role,
)

CAPTURE = "iter_40000_p2p_iter10.pcapng"
ELEMENTS, STEPS = 5000, 20
CHUNK_BYTES = 3072 * 4
SLOTS = 64


def job_of(ring: FlowKey, p2p: FlowKey) -> LearnedJob:
    """What facts/captures.md says of this capture: AR after three start-up sends, then p2p."""
    total = ELEMENTS * 4
    reduce = CollectiveOp(communicator=0, protocol=Protocol.LL, role=Role.BUCKET, work_bytes=total)
    told = CollectiveOp(
        communicator=0,
        protocol=Protocol.LL,
        role=Role.IGNORED,
        kind=CollectiveKind.BROADCAST,
        work_bytes=8,
        element_bytes=1,
    )
    rest = CollectiveOp(
        communicator=1,
        protocol=Protocol.SIMPLE,
        role=Role.BUCKET,
        kind=None,
        messages=(PointToPoint(channel=0, start_byte=CHUNK_BYTES, data_bytes=total - CHUNK_BYTES),),
    )
    return LearnedJob(
        era=NcclEra.V2_19,
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


def reading(flows: list[ObservedFlow], messages: list[ObservedMessage], **named: object) -> Reading:
    """Proves the job once the first all-reduce is there."""
    sizes = {key: [m for m in messages if m.flow == key] for key in {m.flow for m in messages}}
    rings = [key for key, seen in sizes.items() if any(m.wire_bytes == 40000 for m in seen)]
    parts = [key for key, seen in sizes.items() if any(m.wire_bytes == 7712 for m in seen)]
    if not (rings and parts):
        return Reading(
            flows=(), collectives=(), weights=None, job=None, why_not=(NO_READING_YET(),)
        )
    weights = Weights(
        shapes=((1, ELEMENTS),), result=np.zeros(ELEMENTS * 4, np.uint8), missing=(), complete=True
    )
    job = job_of(rings[0], parts[0])
    return Reading(flows=(), collectives=(), weights=weights, job=job, why_not=())


@pytest.fixture
def play(
    shm: Path, tmp_path: Path, captures: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[int], bool]], Chain]]:
    """A chain that is fed the frames that a predicate on their number keeps."""
    monkeypatch.setattr(stream_reading, "read_stream", reading)
    chains: list[Chain] = []

    def make_chain(keep: Callable[[int], bool]) -> Chain:
        paths = dealt(captures / CAPTURE, tmp_path, 1, lambda n, _: 0 if keep(n) else None)
        chains.append(Chain(tmp_path, shm / "memory", paths, SLOTS))
        return chains[-1]

    yield make_chain
    for chain in chains:
        chain.close()


def test_twenty_steps_come_out_as_the_truth_says_through_a_ring_of_64_slots(
    play: Callable[..., Chain], truth: Path
) -> None:
    chain = play(lambda n: True)
    service = chain.service()
    try:
        chain.drive(service)
        assert chain.gradients == steps_of(truth, CAPTURE, STEPS)
        assert [m.steps for m in chain.heard.of(Drained)] == [STEPS]
        assert {m.iteration for m in chain.heard.of(ShardReady)} == set(range(1, STEPS + 1))
        assert chain.heard.of(StepLost) == []
        assert chain.run.weights.stat().st_size == ELEMENTS * 4
        counters = chain.parts[0][0].counters()
        assert counters["extract"]["placed_bytes"] == STEPS * ELEMENTS * 4
        assert counters["extract"]["seen_frames"] == 1417
    finally:
        service.stop()


def test_one_lost_packet_loses_its_step_with_exact_ranges_and_counting_goes_on(
    play: Callable[..., Chain], truth: Path
) -> None:
    # A Middle packet of a p2p message: found by size of a frame and distance.
    chain = play(lambda n: n != 700)
    chain.optimizer = STOPS
    service = chain.service()
    try:
        chain.drive(service)
        [lost, *_] = chain.heard.of(StepLost)
        whole = steps_of(truth, CAPTURE, STEPS)
        assert chain.gradients == {s: whole[s] for s in range(1, lost.step)}
        assert 0 < sum(b - a for a, b in lost.missing) <= 1024
        assert [m.steps for m in chain.heard.of(Drained)] == [lost.step - 1]
        assert chain.parts[0][0].counters()["extract"]["seen_frames"] == 1416
        assert chain.parts[0][0].drained
    finally:
        service.stop()


@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=pytest.mark.nightly)])
def test_stage_killed_at_any_instant_goes_on_where_it_was(
    play: Callable[..., Chain], truth: Path, kills: int
) -> None:
    chain = play(lambda n: True)
    rng = np.random.default_rng(11)
    for _ in range(kills):
        chain.life(int(rng.integers(1, 6)))
        chain.feed()
        chain.apply()
    assert played(chain) == steps_of(truth, CAPTURE, STEPS)
    assert chain.parts[0][0].counters()["extract"]["placed_bytes"] == STEPS * ELEMENTS * 4
