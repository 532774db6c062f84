"""Two rings clipped by one norm: what each leaves for the other, and waits for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from flowcheck.config import JobConfig, OptimizerConfig, SourceConfig
from flowcheck.plane.shard import Shard
from flowcheck.replica.layout import Layout
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.squares import Squares
from flowcheck.whole import write_whole

LAYOUT = Layout.of_shapes([(7, 5), (5,)])
CONFIG = JobConfig(
    source=(SourceConfig(file="0"),),
    optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.5, clip_together=True),
    jobs=2,
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir]:
    first = RunDir(tmp_path / "run")
    second = first.beside(2)
    for run in (first, second):
        run.learned_folder.mkdir(parents=True)
    (second.root / "port").symlink_to(first.root)
    return first, second


def gradient(seed: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(40)).astype(np.float32)


def squares_of(
    run: RunDir, said: list[str] | None = None, clock: list[float] | None = None
) -> Squares:
    told = said if said is not None else []
    times = clock if clock is not None else [0.0]
    return Squares(run, CONFIG, told.append, lambda: times[0])


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
        write_whole(run.incarnation, b'{"number": 2, "step": 6}')
    assert two.clipped(LAYOUT, 7, gradient(3), None) is None, "of the life before"


def test_what_the_other_ring_has_lost_is_given_up_and_no_earlier_step(
    runs: tuple[RunDir, RunDir],
) -> None:
    said: list[str] = []
    two = squares_of(runs[1], said)
    runs[0].memory.mkdir()
    with Shard.create(runs[0].shard, gradient_bytes=LAYOUT.size_bytes) as shard:
        shard.begin(0, 4)
        shard.lose(0)
    assert two.clipped(LAYOUT, 3, gradient(2), None) is None and not two.gone
    squares_of(runs[0]).clipped(LAYOUT, 3, gradient(1), None)
    assert two.clipped(LAYOUT, 3, gradient(2), None) is not None and not two.gone
    for step in (4, 5):
        assert two.clipped(LAYOUT, step, gradient(2), None) is None and two.gone
    [told] = said
    assert told.startswith("step 4 is whole, but not in job 1, and both rings are clipped by one")


@pytest.mark.parametrize("late", [False, True])
def test_what_was_in_flight_when_the_other_ring_came_back_is_given_up(
    runs: tuple[RunDir, RunDir], late: bool
) -> None:
    one, two = map(squares_of, runs)
    runs[0].successor.mkdir()
    if late:
        one.clipped(LAYOUT, 9, gradient(1), None)
    found = two.clipped(LAYOUT, 9, gradient(2), None)
    assert (found is not None, two.gone) == (late, not late)
    write_whole(runs[1].incarnation, b'{"number": 2, "step": 8}')
    assert two.clipped(LAYOUT, 9, gradient(2), None) is None and not two.gone, "its next life"


def test_a_ring_that_waits_says_so_once(runs: tuple[RunDir, RunDir]) -> None:
    said: list[str] = []
    clock = [0.0]
    two = squares_of(runs[1], said, clock)
    for now in (0.0, 9.0, 11.0, 30.0):
        clock[0] = now
        assert two.clipped(LAYOUT, 3, gradient(2), None) is None
    [told] = said
    assert told.startswith("step 3 waits for job 1: both rings are clipped by one norm")


def test_a_gradient_that_is_no_number_is_taken_as_it_is(runs: tuple[RunDir, RunDir]) -> None:
    one, two = map(squares_of, runs)
    bad = gradient(1)
    bad[3] = np.nan
    one.clipped(LAYOUT, 1, bad, None)
    found = two.clipped(LAYOUT, 1, gradient(2), None)
    assert found is not None and np.array_equal(found, gradient(2))
