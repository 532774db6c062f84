"""Learning from made-up jobs: no size, rank, channel, type or rule of any capture is built in."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.learned import agrees, lacks_its_end, permuted, read
from support.loss import Restless

from flowcheck.findings.catalog.collective_evidence import WEIGHTS_IN_ONE_LINE
from flowcheck.findings.catalog.job_learning import ALL_ALIKE
from flowcheck.findings.catalog.nccl_transport import NO_WRITES
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic
from flowcheck.wire.learn import read_stream
from flowcheck.wire.training_job.gradient_buckets import BucketLayout


def seeds(by_day: int, all_of_them: int) -> list[Any]:
    night = range(by_day, all_of_them)
    return [*range(by_day), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in night)]


@pytest.mark.parametrize("seed", seeds(10, 24))
def test_both_directions_tell_everything_of_any_job(seed: int, tmp_path: Path) -> None:
    job, rank = permuted(seed)
    traffic = make_traffic(job)
    reading, _ = read(traffic, rank, "both", tmp_path)
    assert [(c.kind, c.bytes) for c in reading.collectives] == [
        (kind, len(result)) for kind, result in traffic.collectives
    ]
    for collective, (kind, result) in zip(reading.collectives, traffic.collectives, strict=True):
        assert agrees(collective, result)
        # A metric may be as large on the wire as a tensor, other shapes may end in the same line.
        nearly = kind == "all_reduce" and lacks_its_end(collective)
        assert collective.complete or kind == "all_gather" or nearly
    assert reading.weights is not None
    why = reading.weights.why_not
    small = why is not None and why.is_any_of(WEIGHTS_IN_ONE_LINE)
    assert reading.weights.complete or small or any(map(lacks_its_end, reading.collectives))
    assert reading.weights.shapes == job.shapes
    assert reading.weights.result.tobytes() == traffic.weights
    assert all(not flow.problems for flow in reading.flows)


@pytest.mark.parametrize("seed", seeds(6, 12))
def test_the_learned_job_rebuilds_every_gradient(seed: int, tmp_path: Path) -> None:
    job, rank = permuted(seed)
    traffic = make_traffic(job)
    reading, _ = read(traffic, rank, "both", tmp_path)
    learned = reading.job
    assert learned is not None, reading.why_not
    ring = learned.communicators[0]
    assert (ring.ranks, ring.extra_sends) == (job.ranks, int(job.extra_send))
    assert [p.sizes for p in learned.parameters] == list(job.shapes)
    assert learned.buckets == job.buckets
    reduced = [c for c in reading.collectives if c.kind == "all_reduce"]
    for step, gradient in enumerate(traffic.gradients):
        flat = np.zeros(learned.state_bytes, np.uint8)
        for bucket in learned.first_buckets if step == 0 else learned.buckets:
            result = reduced.pop(0).result
            for piece in BucketLayout(learned.parameters, bucket).pieces(0, len(result)):
                stop = piece.bucket_byte + piece.size_bytes
                flat[piece.state_byte : piece.state_byte + piece.size_bytes] = result[
                    piece.bucket_byte : stop
                ]
        assert flat.tobytes() == gradient


@pytest.mark.parametrize("seed", seeds(7, 16))
@pytest.mark.parametrize("direction", ["tx", "rx"])
def test_one_direction_is_right_in_what_it_shows_and_not_more_than_that(
    seed: int, direction: str, tmp_path: Path
) -> None:
    job, rank = permuted(seed)
    if (rank == job.ranks - 1) == (direction == "tx"):
        rank = 1 if job.ranks > 2 else int(direction == "rx")
    traffic = make_traffic(job)
    reading, _ = read(traffic, rank, direction, tmp_path)
    assert len(reading.collectives) == len(traffic.collectives)
    for collective, (kind, result) in zip(reading.collectives, traffic.collectives, strict=True):
        assert agrees(collective, result)
        # Beyond this no chunk is empty, so the one this edge never ends with is missing.
        full = len(result) > 4096 * job.ranks**2 * job.channels
        if kind == "all_reduce" and full and not job.extra_send:
            assert not collective.complete


def test_a_job_is_not_learned_before_an_iteration_of_its_plan_was_seen(tmp_path: Path) -> None:
    traffic = make_traffic(SyntheticJob(steps=4))
    _, tape = read(traffic, 0, "both", tmp_path)
    learned_at = [
        count
        for count in range(len(tape.messages) + 1)
        if read_stream(tape.flows, tape.messages[:count], ended=False).job is not None
    ]
    whole = read_stream(tape.flows, tape.messages, ended=False)
    assert learned_at and learned_at == list(range(learned_at[0], len(tape.messages) + 1))
    early = read_stream(tape.flows, tape.messages[: learned_at[0]], ended=False)
    assert early.job == whole.job


def test_metrics_between_steps_are_no_gradients(tmp_path: Path) -> None:
    traffic = make_traffic(SyntheticJob(steps=4, metric_every=1, channels=2))
    reading, _ = read(traffic, 1, "both", tmp_path)
    named = [c.meaning for c in reading.collectives if c.kind == "all_reduce"]
    assert named.count("gradient bucket") == 4
    assert reading.job is not None
    assert [op.role for op in reading.job.each] == ["bucket", "ignored"]


@pytest.mark.parametrize("lost", [0.02, 0.1, pytest.param(0.3, marks=pytest.mark.nightly)])
def test_loss_never_makes_a_byte_up(lost: float, tmp_path: Path) -> None:
    for seed in (0, 1, 2, 4, 5, 7):
        job, rank = permuted(seed)
        traffic = make_traffic(job)
        dice = random.Random(seed)
        traffic.frames = [f for f in traffic.frames if dice.random() > lost]
        reading, _ = read(traffic, rank, "both", tmp_path)
        results = {result for _, result in traffic.collectives}
        for collective in reading.collectives:
            if collective.kind == "all_reduce" and collective.complete:
                assert collective.result.tobytes() in results
        if reading.weights is not None and reading.weights.complete:
            assert reading.weights.result.tobytes() == traffic.weights


@pytest.mark.parametrize(
    "moved",
    [{0, 1}, {2}, *(pytest.param(own, marks=pytest.mark.nightly) for own in ({0}, {1}, {1, 3}))],
)
def test_channels_of_one_ring_may_use_two_ports_of_a_host(moved: set[int], tmp_path: Path) -> None:
    traffic = make_traffic(SyntheticJob(shapes=((61, 97), (33,)), channels=2, steps=3))
    reading, tape = read(traffic, 0, "both", tmp_path)
    ports = sorted({flow.udp_source_port for flow in tape.flows})
    peer = tape.flows[0].key.destination
    renamed = {
        flow.key: replace(
            flow.key,
            source="fe80::2d" if flow.key.source == peer else flow.key.source,
            destination="fe80::2d" if flow.key.destination == peer else flow.key.destination,
        )
        for flow in tape.flows
        if ports.index(flow.udp_source_port) in moved
    }
    two_ports = read_stream(
        [replace(flow, key=renamed.get(flow.key, flow.key)) for flow in tape.flows],
        [replace(m, flow=renamed.get(m.flow, m.flow)) for m in tape.messages],
    )
    assert [(c.kind, c.sha256) for c in two_ports.collectives] == [
        (c.kind, c.sha256) for c in reading.collectives
    ]
    assert two_ports.weights is not None and two_ports.weights.complete


def test_a_point_to_point_send_completes_one_direction_and_the_job_says_so(
    tmp_path: Path,
) -> None:
    traffic = make_traffic(SyntheticJob(shapes=((61, 97),), point_to_point=True, steps=3))
    reading, _ = read(traffic, 0, "tx", tmp_path)
    reduced = [c for c in reading.collectives if c.kind == "all_reduce"]
    truth = [result for kind, result in traffic.collectives if kind == "all_reduce"]
    assert [c.result.tobytes() for c in reduced] == truth
    assert all(c.complete and "p2p (inferred)" in c.sources for c in reduced)
    assert reading.job is not None and len(reading.job.communicators) == 2
    assert reading.job.assumed


def test_reading_is_the_same_twice(tmp_path: Path) -> None:
    traffic = make_traffic(permuted(5)[0])
    reading, tape = read(traffic, 0, "both", tmp_path)
    again = read_stream(tape.flows, tape.messages)
    assert [c.sha256 for c in again.collectives] == [c.sha256 for c in reading.collectives]
    assert again.job == reading.job


def test_nothing_is_read_from_nothing() -> None:
    reading = read_stream([], [])
    assert reading.collectives == () and reading.weights is None and reading.job is None
    assert reading.why_not == (NO_WRITES(),)


@pytest.mark.parametrize("direction", ["tx", "both"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_metric_now_and_then_is_no_part_of_an_iteration(
    every: int, direction: str, tmp_path: Path
) -> None:
    """The second bucket lacks nothing on the wire: its point-to-point send is empty."""
    buckets = ((0,), (1,))
    job = SyntheticJob(shapes=((61, 97), (20,)), buckets=buckets, steps=7, metric_every=every)
    traffic = make_traffic(replace(job, point_to_point=True))
    reading, _ = read(traffic, 0, direction, tmp_path)
    reduced = [c for c in reading.collectives if c.kind == "all_reduce"]
    truth = [result for kind, result in traffic.collectives if kind == "all_reduce"]
    assert [c.result.tobytes() for c in reduced if c.complete] == [t for t in truth if len(t) > 8]
    assert all(lacks_its_end(c) for c in reduced if not c.complete)
    assert reading.job is not None, reading.why_not
    ops = [(op.kind, op.role, op.work_bytes) for op in reading.job.each]
    expected = [
        ("all_reduce", "bucket", 61 * 97 * 4),
        (None, "bucket", 0),
        ("all_reduce", "bucket", 80),
        (None, "bucket", 0),
    ]
    assert ops == expected + [("all_reduce", "ignored", 4)] * (every == 1)


def test_tensors_too_small_for_a_second_chunk_need_no_parcel(tmp_path: Path) -> None:
    shapes = ((5, 9), (20,), (7,), (11, 3))
    job = SyntheticJob(shapes=shapes, buckets=((0, 2), (1, 3)), steps=6, metric_every=2)
    traffic = make_traffic(replace(job, point_to_point=True))
    reading, _ = read(traffic, 0, "tx", tmp_path)
    assert reading.job is not None
    assert [op.work_bytes for op in reading.job.each] == [208, 212]
    reduced = [c for c in reading.collectives if c.kind == "all_reduce"]
    assert all(c.complete or lacks_its_end(c) for c in reduced)


@pytest.mark.nightly
def test_heavy_loss_on_many_connections_ends_in_a_sentence(tmp_path: Path) -> None:
    """The purse is counted in guesses, so that the reading does not depend on the machine."""
    shapes = ((61, 97), (33,), (80, 50))
    traffic = make_traffic(
        SyntheticJob(shapes=shapes, ranks=2, channels=4, steps=6, extra_send=True)
    )
    dice = random.Random(1)
    results = {result for _, result in traffic.collectives}
    begun = [f for i, f in enumerate(traffic.frames) if i > 40 and dice.random() > 0.36]
    traffic.frames = begun
    started = time.process_time()
    reading, _ = read(traffic, 0, "both", tmp_path)
    assert time.process_time() - started < 10
    assert reading.why_not
    for found in reading.collectives:
        if found.kind == "all_reduce" and (found.complete or found.coverage == 1):
            assert found.result.tobytes() in results


def test_another_all_reduce_as_large_as_a_bucket_is_never_taken_in_silence(
    tmp_path: Path,
) -> None:
    job = SyntheticJob(shapes=((50, 40), (30, 20)), buckets=((0,), (1,)), steps=6)
    plain, _ = read(make_traffic(job), 0, "both", tmp_path)
    reading, _ = read(Restless(job, twice=2).generate(), 0, "both", tmp_path)
    for learned, told in ((plain, False), (reading, True)):
        assert learned.job is not None, learned.why_not
        assert bool(learned.job.assumed) is told
        assert any(c.assumed for c in learned.collectives if c.kind == "all_reduce") is told
    alone = SyntheticJob(shapes=((50, 40),), steps=6)
    reading, _ = read(Restless(alone, twice=2).generate(), 0, "both", tmp_path)
    assert reading.job is not None and ALL_ALIKE() in reading.job.assumed
