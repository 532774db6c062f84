"""Messages that no mirror saw lie where a collective outside the plan may have lain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.staged import STOPS, Chain, dealt, played, rest

from flowcheck.findings.catalog.lost_steps import MESSAGES_LOST
from flowcheck.lab.synthetic_traffic.queue_pair_frames import WireFrame
from flowcheck.lab.synthetic_traffic.synthetic_job import (
    SyntheticJob,
    SyntheticRun,
    SyntheticTraffic,
    write_pcap,
)
from flowcheck.messages import Drained, Note, StepLost, StepShort

EVEN = SyntheticJob(shapes=((32, 16), (512,)), steps=8)
"""Every message of a step is as large as every other: none of them tells where it belongs."""
UNEVEN = SyntheticJob(
    shapes=((64, 32), (64,), (10, 64), (10,)), buckets=((3, 2), (1, 0)), steps=8, channels=2
)


class Evaluating(SyntheticRun):
    """A trainer that broadcasts a result of its evaluation before a step."""

    before = 5
    evaluation: tuple[int, int] = (0, 0)
    """Of its frames, [first, stop) in `fabric.frames`."""

    def _step(self, buckets: tuple[tuple[int, ...], ...]) -> None:
        if len(self.truth.gradients) == self.before - 1:
            first = len(self.fabric.frames)
            self._broadcast(bytes(range(256)) * 16)
            self.evaluation = (first, len(self.fabric.frames))
        super()._step(buckets)


def made(job: SyntheticJob, before: int = 5) -> tuple[SyntheticTraffic, set[int]]:
    """The traffic, and which of its frames are the evaluation's. before: which step."""
    run = Evaluating(job)
    run.before = before
    traffic = run.generate()
    return traffic, set(range(*run.evaluation))


@pytest.fixture
def play(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Chain]]:
    chains: list[Chain] = []

    def make_chain(
        frames: list[WireFrame],
        deal: Callable[[int, bytes], int | None],
        rings: int,
        slots: int = 256,
    ) -> Chain:
        write_pcap(tmp_path / "whole.pcap", frames)
        paths = dealt(tmp_path / "whole.pcap", tmp_path / "dealt", rings, deal)
        chains.append(Chain(tmp_path, shm / "memory", paths, slots))
        return chains[-1]

    yield make_chain
    for chain in chains:
        chain.close()


def test_lost_broadcast_that_shifts_every_later_message_completes_no_step_wrongly(
    play: Callable[..., Chain],
) -> None:
    traffic, evaluation = made(EVEN)
    chain = play(traffic.frames, lambda n, _: None if n in evaluation else 0, 1)
    gradients = played(chain)
    wanted = dict(enumerate(traffic.gradients, 1))
    assert gradients == {step: wanted[step] for step in range(1, 5)}
    [lost, *_] = chain.heard.of(StepLost)
    assert lost.step == 5


@pytest.mark.parametrize("job", [EVEN, UNEVEN])
@pytest.mark.parametrize(
    "frames", [pytest.param((256, 1), marks=pytest.mark.nightly), (30, 10), (1, 256)]
)
def test_ring_that_lags_with_what_is_in_no_plan_is_waited_for(
    play: Callable[..., Chain], job: SyntheticJob, frames: tuple[int, int]
) -> None:
    traffic, evaluation = made(job)
    start = min(evaluation)
    chain = play(traffic.frames, lambda n, _: int(n in evaluation or (n < start and n % 2 == 0)), 2)
    assert played(chain, *frames) == dict(enumerate(traffic.gradients, 1))
    assert chain.heard.of(StepLost) == []
    assert [m.steps for m in chain.heard.of(Drained)] == [job.steps]


@pytest.mark.parametrize(("message", "steps"), [(20, 4), (21, 8), (23, 8), (24, 5)])
def test_lost_message_costs_its_step_only_if_it_held_a_result(
    play: Callable[..., Chain], message: int, steps: int
) -> None:
    """A partial sum is needed nowhere, and what follows here fits no other place.

    Rank 0 sends three messages at start-up, two in step 1, two bucket lists, four in each later
    step: of each bucket a partial sum, then a result. Messages 19 to 22 are step 5's.
    """
    job = SyntheticJob(shapes=((60, 30), (7,)), buckets=((1,), (0,)), steps=8)
    traffic = SyntheticRun(job).generate()
    gone = {
        n
        for n, wire in enumerate(traffic.frames)
        if wire.kind == "data" and wire.sender == 0 and wire.message == message
    }
    chain = play(traffic.frames, lambda n, _: None if n in gone else 0, 1)
    assert gone
    chain.optimizer = STOPS
    assert played(chain) == dict(enumerate(traffic.gradients[:steps], 1))
    if steps == job.steps:
        assert any(m.finding.is_any_of(MESSAGES_LOST) for m in chain.heard.of(Note))


def test_whole_step_behind_one_that_stays_short_is_not_waited_for(
    play: Callable[..., Chain],
) -> None:
    """The last step is whole, the one before it lacks a result: the end comes, and says so."""
    traffic = SyntheticRun(UNEVEN).generate()
    gone = {
        n
        for n, wire in enumerate(traffic.frames)
        if wire.kind == "data" and wire.sender == 0 and wire.message == 28
    }
    chain = play(traffic.frames, lambda n, _: None if n in gone else 0, 1)
    chain.optimizer = STOPS
    assert played(chain) == dict(enumerate(traffic.gradients[:6], 1))
    assert {m.step for m in chain.heard.of(StepLost)} == {7}


def test_a_step_that_lacks_a_result_is_handed_on_without_it(play: Callable[..., Chain]) -> None:
    """A rule that steps each element by itself takes all else of it, and the steps behind."""
    traffic = SyntheticRun(UNEVEN).generate()
    gone = [
        n
        for n, wire in enumerate(traffic.frames)
        if wire.kind == "data" and wire.sender == 0 and wire.message == 28
    ]
    chain = play(traffic.frames, lambda n, _: None if n == gone[0] else 0, 1)
    whole = dict(enumerate(traffic.gradients, 1))
    assert played(chain) == {step: own for step, own in whole.items() if step != 7}
    [(step, (gradient, missing))] = chain.partial.items()
    assert step == 7 and chain.heard.of(StepLost) == []
    kept = np.ones(len(gradient), np.bool_)
    for start, stop in missing:
        kept[start:stop] = False
        assert not any(gradient[start:stop])
    own, truth = (np.frombuffer(data, np.uint8)[kept] for data in (gradient, whole[7]))
    assert np.array_equal(own, truth)
    assert 0 < sum(stop - start for start, stop in missing) < len(gradient)
    [short] = chain.heard.of(StepShort)
    assert (short.step, short.missing_bytes) == (7, np.count_nonzero(~kept))


@pytest.mark.parametrize("lost", [(14,), (14, 26)])
def test_what_a_flow_leaves_out_or_loses_later_moves_nothing_before_it(
    play: Callable[..., Chain], lost: tuple[int, ...]
) -> None:
    """A job that was learned late: when its first steps are placed, one of which lacks a result,
    its flows have left their plan already for an evaluation behind that step, and one has lost the
    first packet of a later message, so that those behind it have no number yet."""
    traffic, evaluation = made(UNEVEN, before=8)
    gone = [
        min(
            n
            for n, wire in enumerate(traffic.frames)
            if wire.kind == "data" and wire.sender == 0 and wire.message == message
        )
        for message in lost
    ]
    chain = play(traffic.frames, lambda n, _: None if n in gone else 0, 1, 4096)
    service = chain.service()
    try:
        # The capture goes on, so that nothing is decided because it ended.
        chain.feed(len(traffic.frames) - 10 - len(gone))
        for _ in range(400):
            chain.feed(0)
            done = service.work()
            chain.apply()
            if not done:
                rest(service)
            if len(chain.partial) == len(gone) or chain.heard.of(StepLost):
                break
        chain.drive(service, 4096)
    finally:
        service.stop()
    assert max(gone) < min(evaluation) and chain.heard.of(StepLost) == []
    assert [*chain.partial] == [3, 6][: len(lost)]
    assert all(missing for _, missing in chain.partial.values())
    whole = dict(enumerate(traffic.gradients, 1))
    assert chain.gradients == {
        step: own for step, own in whole.items() if step not in chain.partial
    }
