"""One job's frames dealt over several rings: every gradient, against truth from outside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.staged import STOPS, Chain, dealt, played, steps_of

from flowcheck.findings.catalog.lost_steps import FLOWS_WENT_ON, SILENT_MIRROR_POINTS
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob, make_traffic, write_pcap
from flowcheck.messages import Drained, StepLost
from flowcheck.stages.extraction import installed_flow_plans
from flowcheck.stages.staged_messages.silent_mirror_points import SILENT_S

CAPTURE = "iter_40000_p2p_iter10.pcapng"
STEPS = 20
JOB = SyntheticJob(
    shapes=((64, 32), (64,), (10, 64), (10,)), buckets=((3, 2), (1, 0)), steps=8, channels=2
)
Deal = Callable[[int, bytes], int | None]


def alternating(number: int, frame: bytes) -> int:
    return number & 1


def scattered(number: int, frame: bytes) -> int:
    return (number * 7919 >> 3) & 1


def random(number: int, frame: bytes) -> int:
    return hashlib.sha256(b"%d" % number).digest()[0] & 1


def in_runs(number: int, frame: bytes) -> int:
    return number // 100 & 1


def in_long_runs(number: int, frame: bytes) -> int:
    return number // 300 & 1


def by_flow(number: int, frame: bytes) -> int:
    return hashlib.sha256(frame[26:34] + frame[46:50]).digest()[0] & 1


DEALS = [alternating, scattered, random, in_runs, in_long_runs, by_flow]
QUICK = [random, by_flow]


def right(truth: Path) -> dict[int, bytes]:
    return steps_of(truth, CAPTURE, STEPS)


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Chain]]:
    chains: list[Chain] = []

    def make_chain(capture: Path, deal: Deal, slots: int = 256) -> Chain:
        folder = tmp_path / str(len(chains))
        paths = dealt(capture, folder, 2, deal)
        chains.append(Chain(folder, shm / str(len(chains)), paths, slots))
        return chains[-1]

    yield make_chain
    for chain in chains:
        chain.close()


@pytest.mark.parametrize(
    ("deal", "frames"),
    [
        *((deal, (256, 256)) for deal in DEALS),
        *((deal, (40, 8)) for deal in QUICK),
        *(pytest.param(d, (40, 8), marks=pytest.mark.nightly) for d in DEALS if d not in QUICK),
        *(pytest.param(deal, (3, 50), marks=pytest.mark.nightly) for deal in DEALS),
    ],
)
def test_capture_dealt_over_two_rings_gives_every_step_of_the_truth(
    play: Callable[..., Chain],
    captures: Path,
    truth: Path,
    deal: Deal,
    frames: tuple[int, int],
) -> None:
    chain = play(captures / CAPTURE, deal)
    assert played(chain, *frames) == right(truth)
    assert chain.heard.of(StepLost) == []
    assert [m.steps for m in chain.heard.of(Drained)] == [STEPS]


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("metric_every", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_made_up_job_dealt_over_two_rings_gives_every_gradient(
    play: Callable[..., Chain], tmp_path: Path, deal: Deal, metric_every: int
) -> None:
    traffic = make_traffic(replace(JOB, metric_every=metric_every))
    write_pcap(tmp_path / "whole.pcap", traffic.frames_at_port(0, "both"))
    chain = play(tmp_path / "whole.pcap", deal)
    wanted = dict(enumerate(traffic.gradients, 1))
    assert played(chain, 16, 48) == wanted
    assert chain.heard.of(StepLost) == []


def test_packets_held_by_one_ring_are_delivered_by_the_one_that_knows_their_message(
    play: Callable[..., Chain], captures: Path, truth: Path
) -> None:
    chain = play(captures / CAPTURE, alternating)
    service = chain.service()
    try:
        chain.drive(service)
        assert sum(r.counters()["extract"]["held_packets"] for r, *_ in chain.parts) > 100
        assert sum(x.staging.orphan_count for x in service._extractors) == 0
    finally:
        service.stop()
    assert chain.gradients == right(truth)


def test_frame_that_no_ring_brings_loses_its_step_and_no_earlier_one(
    play: Callable[..., Chain], captures: Path, truth: Path
) -> None:
    chain = play(captures / CAPTURE, lambda n, _: None if n == 700 else n & 1)
    whole = right(truth)
    chain.optimizer = STOPS
    gradients = played(chain)
    [lost, *_] = chain.heard.of(StepLost)
    assert 1 < lost.step < STEPS
    assert gradients == {step: whole[step] for step in range(1, lost.step)}
    assert 0 < sum(stop - start for start, stop in lost.missing) <= 1024


def test_ring_that_falls_silent_is_waited_for_only_so_long_and_that_is_said(
    shm: Path, tmp_path: Path, captures: Path, truth: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(
        installed_flow_plans.InstalledPlans.__init__, "__defaults__", (lambda: now[0],)
    )
    torn = dealt(captures / CAPTURE, tmp_path / "torn", 1, lambda n, _: None if n == 700 else 0)
    chain = Chain(tmp_path, shm / "memory", [*torn, captures / CAPTURE], 256)
    chain.optimizer = STOPS
    service = chain.service()
    try:
        while len(chain.gradients) < 2:
            if not service._learner.busy:  # else the captures end before the job is learned
                chain.feed(16)
            service.work()
            chain.apply()
        for _ in range(400):
            chain.feed(16, 0)
            service.work()
            chain.apply()
        assert chain.parts[0][0].drained
        assert chain.heard.of(StepLost) == []
        now[0] += SILENT_S + 1
        for _ in range(2 * 16):
            service.work()
        [lost, *_] = chain.heard.of(StepLost)
        assert lost.why == SILENT_MIRROR_POINTS(reason=FLOWS_WENT_ON(), silent=1, all=2, seconds=10)
    finally:
        service.stop()
        chain.close()
    whole = right(truth)
    assert chain.gradients == {step: whole[step] for step in range(1, lost.step)}


@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=pytest.mark.nightly)])
def test_stage_killed_at_any_instant_carries_from_ring_to_ring_as_before(
    play: Callable[..., Chain], captures: Path, truth: Path, kills: int
) -> None:
    chain = play(captures / CAPTURE, scattered)
    rng = np.random.default_rng(5)
    service = chain.service()
    while not chain.run.learned_job.exists():
        chain.feed(24)
        service.work()
    service.stop()
    for _ in range(kills):
        chain.life(20, limit_s=float(rng.uniform(1e-4, 2e-2)))
        chain.feed(20)
        chain.apply()
    assert played(chain) == right(truth)
