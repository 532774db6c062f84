"""Two rings clipped by one norm: what each leaves for the other, and waits for."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lifecycle import follow, offer

from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.findings.catalog.replica_update_notes import (
    NORM_AWAITED,
    NORM_NEVER_COMES,
    NORM_WAIT_OVER,
    NORM_WAIT_OVER_ELSEWHERE,
)
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.gradient_double_buffer import GradientShard
from flowcheck.replica.optimizer.gradient_clipping import float32_sum_bounds, is_order_independent
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.job_state.lifecycle_record_reader import Incarnation
from flowcheck.stages.replica_update.grad_norm_exchange import GradNormExchange
from flowcheck.stages.run_directory.run_dir import RunDir

LAYOUT = Layout.of_shapes([(7, 5), (5,)])
CONFIG = JobConfig(
    source=(SourceConfig(file="0"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.5, clip_together=True),
    jobs=2,
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir]:
    first = RunDir(tmp_path / "run")
    second = first.job_run_dir(2)
    for run in (first, second):
        run.learned_folder.mkdir(parents=True)
    (second.root / "port").symlink_to(first.root)
    return first, second


def gradient(seed: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(40)).astype(np.float32)


def squares_of(
    run: RunDir, said: list[Finding] | None = None, clock: list[float] | None = None
) -> GradNormExchange:
    told = said if said is not None else []
    times = clock if clock is not None else [0.0]
    return GradNormExchange(run, CONFIG, told.append, lambda: times[0])


def by_torch(own: np.ndarray, other: np.ndarray, most: float) -> np.ndarray:
    """One module of both rings' parameters would have this norm, but for its last bits."""
    both = [torch.tensor(g, requires_grad=True) for g in (own, other)]
    for tensor in both:
        tensor.grad = tensor.detach().clone()
    torch.nn.utils.clip_grad_norm_(both, most)
    found: np.ndarray = both[0].grad.numpy()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_each_ring_waits_for_the_other_and_both_are_scaled_alike(
    runs: tuple[RunDir, RunDir], scale: float
) -> None:
    one, two = map(squares_of, runs)
    a, b = gradient(1, scale), gradient(2, scale)
    assert one.clipped(LAYOUT, 1, a, None) is None
    second = two.clipped(LAYOUT, 1, b, None)
    first = one.clipped(LAYOUT, 1, a, None)
    assert first is not None and second is not None
    np.testing.assert_allclose(first, by_torch(a, b, 0.5), rtol=1e-6)
    np.testing.assert_allclose(second, by_torch(b, a, 0.5), rtol=1e-6)
    assert np.array_equal(a, gradient(1, scale)), "what was reduced stays as it is"
    if scale < 1:
        assert first is a, "below the norm nothing is multiplied"
    whole = math.sqrt(float((a.astype(float) ** 2).sum() + (b.astype(float) ** 2).sum()))
    assert (whole > 0.5) == (scale == 1.0)


def test_parameters_without_a_gradient_are_no_part_of_the_norm(
    runs: tuple[RunDir, RunDir],
) -> None:
    one, two = map(squares_of, runs)
    a, b = gradient(1), gradient(2)
    one.clipped(LAYOUT, 1, a, np.array([True, False]))
    found = two.clipped(LAYOUT, 1, b, None)
    assert found is not None
    np.testing.assert_allclose(found, by_torch(b, a[:35], 0.5), rtol=1e-6)


def test_a_square_outlives_its_process_and_is_of_one_life_of_the_job(
    runs: tuple[RunDir, RunDir],
) -> None:
    squares_of(runs[0]).clipped(LAYOUT, 7, gradient(1), None)
    two = squares_of(runs[1])
    assert two.clipped(LAYOUT, 7, gradient(2), None) is not None
    assert squares_of(runs[0]).clipped(LAYOUT, 7, gradient(1), None) is not None
    for run in runs:
        follow(run, Incarnation(number=2, step=6))
    assert two.clipped(LAYOUT, 7, gradient(3), None) is None, "of the life before"


def test_what_the_other_ring_has_lost_is_given_up_and_no_earlier_step(
    runs: tuple[RunDir, RunDir],
) -> None:
    said: list[Finding] = []
    two = squares_of(runs[1], said)
    runs[0].memory.mkdir()
    with GradientShard.create(runs[0].shard, gradient_bytes=LAYOUT.size_bytes) as shard:
        shard.begin(0, 4)
        shard.mark_lost(0)
    assert two.clipped(LAYOUT, 3, gradient(2), None) is None and not two.peer_gone
    squares_of(runs[0]).clipped(LAYOUT, 3, gradient(1), None)
    assert two.clipped(LAYOUT, 3, gradient(2), None) is not None and not two.peer_gone
    for step in (4, 5):
        assert two.clipped(LAYOUT, step, gradient(2), None) is None and two.peer_gone
    [told] = said
    assert told == NORM_NEVER_COMES(step=4, job=1)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_in_flight_when_the_other_ring_came_back_is_given_up(
    runs: tuple[RunDir, RunDir], late: bool
) -> None:
    one, two = map(squares_of, runs)
    offer(runs[0])
    if late:
        one.clipped(LAYOUT, 9, gradient(1), None)
    found = two.clipped(LAYOUT, 9, gradient(2), None)
    assert (found is not None, two.peer_gone) == (late, not late)
    follow(runs[1], Incarnation(number=2, step=8))
    assert two.clipped(LAYOUT, 9, gradient(2), None) is None and not two.peer_gone, "its next life"


def test_a_ring_that_waits_says_so_once(runs: tuple[RunDir, RunDir]) -> None:
    said: list[Finding] = []
    clock = [0.0]
    two = squares_of(runs[1], said, clock)
    for now in (0.0, 9.0, 11.0, 30.0):
        clock[0] = now
        assert two.clipped(LAYOUT, 3, gradient(2), None) is None
    [told] = said
    assert told == NORM_AWAITED(step=3, job=1)


def orders(squares: list[np.float32]) -> set[np.float32]:
    """Every sum of theirs by whatever tree, one by one."""
    if len(squares) == 1:
        return {squares[0]}
    found = set()
    for chosen in range(1, 2 ** (len(squares) - 1)):
        parts: tuple[list[np.float32], list[np.float32]] = ([], [squares[-1]])
        for place, own in enumerate(squares[:-1]):
            parts[not chosen >> place & 1].append(own)
        found |= {a + b for a in orders(parts[0]) for b in orders(parts[1])}
    return found


@given(st.lists(st.floats(2.0**-40, 2.0**40, width=32), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_bounds_are_those_of_every_order_that_is_tried(squares: list[float]) -> None:
    every = orders([np.float32(own) for own in squares])
    assert float32_sum_bounds(squares) == (float(min(every)), float(max(every)))
    most = 0.7 * float(max(every)) ** 0.5
    factors = {np.float32(most / (float(total) ** 0.5 + 1e-6)) for total in every}
    assert is_order_independent(squares, most) == (len(factors) == 1)


UNLIKE = [4096.0, 1.0, 1.0, 1.0]
"""Lengths whose squares have other sums in other orders."""


@pytest.mark.parametrize("order", [(), (3, 1, 2, 4), (4, 3, 2, 1)])
def test_four_rings_are_scaled_by_the_sum_in_the_stated_order(
    runs: tuple[RunDir, RunDir], order: tuple[int, ...]
) -> None:
    first = runs[0]
    every = [first, *(first.job_run_dir(number) for number in (2, 3, 4))]
    for run in every[2:]:
        run.learned_folder.mkdir(parents=True)
        (run.root / "port").symlink_to(first.root)
    optimizer = msgspec.structs.replace(CONFIG.optimizer, clip_order=order)
    config = msgspec.structs.replace(CONFIG, jobs=4, optimizer=optimizer)
    made = [GradNormExchange(run, config, [].append) for run in every]
    own = [np.zeros(40, np.float32) for _ in every]
    for gradient_of_one, length in zip(own, UNLIKE, strict=True):
        gradient_of_one[7] = length
    assert [one.clipped(LAYOUT, 1, g, None) for one, g in zip(made, own, strict=True)][:3] == [
        None
    ] * 3
    total = torch.zeros((), dtype=torch.float32)
    for number in order or (1, 2, 3, 4):
        total += torch.tensor(own[number - 1]).norm() ** 2.0
    factor = 0.5 / (total.item() ** 0.5 + 1e-6)
    for one, run, g in zip(made, every, own, strict=True):
        found = one.clipped(LAYOUT, 1, g, None)
        assert found is not None
        assert np.array_equal(found, torch.tensor(g).mul_(factor).numpy())
        assert run.assumed.exists() == (not order)


def test_a_ring_that_waits_too_long_ends_the_steps_of_all(runs: tuple[RunDir, RunDir]) -> None:
    said: list[list[Finding]] = [[], []]
    clock = [0.0]
    one, two = (squares_of(run, own, clock) for run, own in zip(runs, said, strict=True))
    assert two.clipped(LAYOUT, 3, gradient(2), None) is None and not two.peer_gone
    clock[0] = 601.0
    assert two.clipped(LAYOUT, 3, gradient(2), None) is None and two.peer_gone
    assert said[1][-1] == NORM_WAIT_OVER(step=3, seconds=600, job=1)
    assert one.clipped(LAYOUT, 3, gradient(1), None) is None and one.peer_gone, "it would be alone"
    assert said[0] == [NORM_WAIT_OVER_ELSEWHERE(3)]
    again = squares_of(runs[1], said[1], clock)
    assert again.clipped(LAYOUT, 4, gradient(2), None) is None and again.peer_gone, (
        "a kill forgets none"
    )
    for run in runs:
        follow(run, Incarnation(number=2, step=2))
    assert one.clipped(LAYOUT, 3, gradient(1), None) is None and not one.peer_gone, "its next life"
    assert two.clipped(LAYOUT, 3, gradient(2), None) is not None


def test_a_gradient_that_is_no_number_is_taken_as_it_is(runs: tuple[RunDir, RunDir]) -> None:
    one, two = map(squares_of, runs)
    bad = gradient(1)
    bad[3] = np.nan
    one.clipped(LAYOUT, 1, bad, None)
    found = two.clipped(LAYOUT, 1, gradient(2), None)
    assert found is not None and np.array_equal(found, gradient(2))
