"""Extra collectives between steps: every gradient of synthetic jobs, against their own truth."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.disturbed import Buffered, Disturbed, evaluation, metric
from support.staged import STOPS, Chain, played

from flowcheck.findings.catalog.collective_evidence import BUCKET_BY_ORDER
from flowcheck.findings.catalog.lost_steps import COPIES_DIFFER, PLACE_OF_STEP, STEP_UNEXPLAINED
from flowcheck.lab.synthetic_traffic.roce_frames import crc_invariant
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticTraffic,
    make_traffic,
    write_pcap,
)
from flowcheck.messages import Drained, Note, StepLost
from flowcheck.plane.extraction.payload_extractor import Extractor
from flowcheck.plane.extraction.psn_alignment import JoinedFlow, align_flows
from flowcheck.plane.mirror_merge import mirror_point_merge
from flowcheck.stages.extraction.plan_deviation_resolver import DeviationResolver, read_decisions
from flowcheck.stages.job_learning import stream_reading
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_state.assumptions import assumptions_of
from flowcheck.wire.traffic.observed_messages import FlowKey
from flowcheck.wire.training_job.learned_job import decode_job

SLOTS = 256
LONG_S = 30.0
"""What is waited for comes long before; what would never come does not."""
JOB = SyntheticJob(
    shapes=((64, 32), (64,), (10, 64), (10,)), buckets=((3, 2), (1, 0)), steps=6, channels=2
)


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[[SyntheticTraffic, str], Chain]]:
    chains: list[Chain] = []

    def make_chain(traffic: SyntheticTraffic, *sides: str) -> Chain:
        number = len(chains)
        (tmp_path / str(number)).mkdir()
        captures = []
        for nth, side in enumerate(sides or ("both",)):
            captures.append(tmp_path / str(number) / f"{nth}.pcap")
            write_pcap(captures[-1], traffic.frames_at_port(0, side))
        chains.append(Chain(tmp_path / str(number), shm / str(number), captures, SLOTS))
        return chains[-1]

    yield make_chain  # type: ignore[misc]
    for chain in chains:
        chain.close()


def wanted(traffic: SyntheticTraffic) -> dict[int, bytes]:
    return dict(enumerate(traffic.gradients, 1))


@pytest.mark.parametrize("metric_every", [1, 2, 3])
@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (2, 3), (3, 2), (4, 1)])
def test_metric_between_steps_moves_no_step(
    play: Callable[..., Chain], metric_every: int, ranks: int, channels: int
) -> None:
    job = replace(JOB, metric_every=metric_every, ranks=ranks, channels=channels)
    traffic = make_traffic(job)
    chain = play(traffic)
    assert played(chain) == wanted(traffic)
    assert chain.heard.of(StepLost) == []
    assert [m.why for m in chain.heard.of(Drained)] == [None]


@pytest.mark.parametrize("sides", [("both",), ("rx", "tx"), ("both", "both")])
def test_metrics_barriers_and_evaluations_anywhere_move_no_step(
    play: Callable[..., Chain], sides: tuple[str, ...]
) -> None:
    job = replace(JOB, steps=9, channels=1)
    run = Disturbed(
        job,
        before={3: metric, 5: evaluation, 7: lambda run: run.metric(1, times=30)},
        between={4: metric, 6: lambda run: run.metric(700)},
    )
    traffic = run.generate()
    chain = play(traffic, *sides)
    assert played(chain) == wanted(traffic)
    assert chain.heard.of(Note) == chain.heard.of(StepLost) == []


@pytest.mark.parametrize("at_step", [None, 4])
def test_extra_collective_of_as_many_messages_as_buffers_moves_no_step(
    play: Callable[..., Chain], at_step: int | None
) -> None:
    """A barrier at the end, or anywhere, sends twice, just as the broadcasts that it precedes."""
    before = {} if at_step is None else {at_step: metric}
    traffic = Buffered(replace(JOB, channels=1, buckets=None), before, {}).generate()
    chain = play(traffic)
    assert played(chain) == wanted(traffic)
    assert chain.heard.of(StepLost) == []
    assert [m.why for m in chain.heard.of(Drained)] == [None]


def test_one_direction_with_point_to_point_sends_moves_no_step(play: Callable[..., Chain]) -> None:
    job = replace(JOB, steps=8, channels=1, point_to_point=True)
    traffic = Disturbed(job, {3: metric, 5: metric}, {4: metric}).generate()
    chain = play(traffic, "tx")
    assert played(chain) == wanted(traffic)
    assert chain.heard.of(StepLost) == []


def test_what_is_no_collective_stops_before_its_step_and_says_that_nothing_was_lost(
    play: Callable[..., Chain],
) -> None:
    def noise(run: Disturbed) -> None:
        for size in (24, 8, 4000, 40, 8, 16, 56, 8, 24, 8, 8000, 16) * 40:
            run.fabric.send(run.rings[0, 0], bytes(2 * size))

    traffic = Disturbed(replace(JOB, channels=1), {4: noise}, {}).generate()
    chain = play(traffic)
    right = wanted(traffic)
    assert played(chain) == {step: right[step] for step in range(1, 5)}
    [lost, *_] = chain.heard.of(StepLost)
    assert lost.step == 5
    assert lost.why == STEP_UNEXPLAINED(5)


def test_reading_told_by_order_alone_is_said_to_be_assumed(play: Callable[..., Chain]) -> None:
    job = replace(JOB, shapes=((64, 32), (64,), (10, 64), (16,)), buckets=((3,), (2, 1, 0)))
    run = Disturbed(replace(job, channels=1), {4: lambda run: run.metric(16)}, {})
    chain = play(run.generate())
    played(chain)
    assert [n for n in chain.heard.of(Note) if n.finding.arguments["reason"] == BUCKET_BY_ORDER()]
    assert PLACE_OF_STEP(BUCKET_BY_ORDER()) in assumptions_of(chain.run)


@pytest.mark.parametrize("at_step", [3, 5])
def test_decisions_on_file_tell_in_which_iterations_something_was_left_out(
    play: Callable[..., Chain], at_step: int
) -> None:
    """A later life of the stage must know it: what is behind a gap there may be of that."""
    job = replace(JOB, steps=9, channels=1)
    chain = play(Disturbed(job, before={at_step: evaluation}, between={}).generate())
    played(chain)
    made = read_decisions(chain.run.learned_folder / "recuts")
    told = {one for decision in made for one in decision.left_out}
    assert told and told <= {at_step, at_step + 1}  # iterations count from 1, steps here from 0
    resolver = DeviationResolver(chain.run, decode_job(chain.run.learned_job.read_bytes()), {}, 100)
    assert resolver.left_out == {100 + one for one in told}


def die_after(calls: int) -> None:
    """Kills this process in the middle of a decision: before its `calls`-th cut is made."""
    left = iter(range(calls))
    cut = Extractor.skip_messages

    def fatal(extractor: Extractor, *more: object) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        cut(extractor, *more)  # type: ignore[arg-type]

    Extractor.skip_messages = fatal  # type: ignore[method-assign]


@pytest.mark.parametrize("kills", [8, pytest.param(80, marks=pytest.mark.nightly)])
def test_stage_killed_while_it_recuts_changes_no_byte(
    play: Callable[..., Chain], kills: int
) -> None:
    traffic = make_traffic(replace(JOB, metric_every=2, steps=12, ranks=3))
    chain = play(traffic)
    rng = np.random.default_rng(7)
    service = chain.service()
    while not chain.run.learned_job.exists():
        chain.feed(24)
        service.work()
    service.stop()
    decided = chain.run.learned_folder / "recuts"
    inside = 0
    for kill in range(kills):
        before = decided.stat().st_ino if decided.exists() else 0
        prepare = partial(die_after, kill % 3)
        # Every fourth life ends at a decision alone: on a busy machine time ends them all before.
        limit_s = float(rng.uniform(5e-3, 6e-2)) if kill % 4 else 0.0
        chain.life(40, limit_s=limit_s, prepare=prepare)
        inside += decided.exists() and decided.stat().st_ino != before
        chain.feed(24)
        chain.apply()
    assert inside
    assert played(chain) == wanted(traffic)
    placed = sum(ring.counters()["extract"]["placed_bytes"] for ring, *_ in chain.parts)
    assert placed == 12 * len(traffic.gradients[0])


def test_names_of_the_join_hold_for_every_later_life_of_the_stage(
    play: Callable[..., Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_names(*views: Any) -> list[dict[FlowKey, JoinedFlow]]:
        return [
            {key: JoinedFlow(replace(n.flow, incarnation=3), 5 << 24) for key, n in own.items()}
            for own in align_flows(*views)
        ]

    monkeypatch.setattr(mirror_point_merge, "align_flows", other_names)
    real = (
        JobLearner.learn
    )  # a life ends soon: each reading is waited for, however busy the machine
    monkeypatch.setattr(JobLearner, "learn", lambda *a, **b: real(*a, **(b | {"wait_s": LONG_S})))
    traffic = make_traffic(replace(JOB, metric_every=2))
    chain = play(traffic, "rx", "tx")
    for _ in range(60):
        service = chain.service()
        for _ in range(3):
            chain.feed(16)
            service.work()
            chain.apply()
        service.stop()
    learned = decode_job(chain.run.learned_job.read_bytes())
    assert {flow.incarnation for edge in learned.edges for flow in edge.flows if flow} == {3}
    assert played(chain) == wanted(traffic)


def test_reading_that_takes_long_neither_stops_the_stage_nor_its_end(
    play: Callable[..., Chain], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = np.frombuffer(mmap(-1, 4), np.int32)

    def endless(*_: object, **_named: object) -> None:
        begun[0] += 1
        signal.pause()

    monkeypatch.setattr(stream_reading, "read_stream", endless)
    chain = play(make_traffic(JOB))
    service = chain.service()
    slowest_s = 0.0
    for _ in range(20):
        chain.feed()
        began = time.monotonic()
        service.work()
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert not service.drained()
    service.stop()
    assert begun[0] == 1
    assert slowest_s < LONG_S


def test_step_of_which_two_copies_differ_is_lost_and_says_so(play: Callable[..., Chain]) -> None:
    traffic = make_traffic(JOB)
    at, wire = max(
        (n, wire)
        for n, wire in enumerate(traffic.frames)
        if wire.kind == "data" and len(wire.frame) > 1000 and 0 in (wire.sender, wire.receiver)
    )
    ip, udp, transport = wire.frame[14:54], wire.frame[54:62], bytearray(wire.frame[62:-4])
    transport[-7] ^= 1  # in the second data word of the last LL line
    again = wire.frame[:62] + transport + crc_invariant(ip, udp, bytes(transport))
    traffic.frames.insert(at + 1, replace(wire, frame=again))
    chain = play(traffic)
    chain.optimizer = STOPS  # else it costs these bytes alone
    right = wanted(traffic)
    assert played(chain) == {step: right[step] for step in range(1, JOB.steps)}
    [lost, *_] = chain.heard.of(StepLost)
    [(start, stop)] = lost.missing  # the element of that word
    assert (lost.step, stop - start) == (JOB.steps, 4)
    assert lost.why.is_any_of(COPIES_DIFFER)
