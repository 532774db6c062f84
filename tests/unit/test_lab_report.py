"""What a run of the lab says of steps no trainer lived to tell of."""

from __future__ import annotations

import re

import pytest

from flowcheck.lab.job_run.digest_comparison import DigestComparison
from flowcheck.lab.restore_drill.drill_report import DrillOutcome, statements


@pytest.mark.parametrize(
    ("equal", "untold", "missing", "said"),
    [
        (10, (), (), "10 of 10 steps: parameters and optimizer state bit-equal to the trainer's"),
        (9, (9,), (), "9 of 10 steps: .* step 9 was in flight at the kill, and no trainer tells"),
        (8, (), (4, 7), "8 of 10 steps: .* 2 not followed, first 4"),
    ],
)
def test_steps_are_counted_of_all_and_those_left_out_are_named(
    equal: int, untold: tuple[int, ...], missing: tuple[int, ...], said: str
) -> None:
    outcome = DrillOutcome(10, killed_at=8, restored_step=9, untold=untold)
    outcome.comparison = DigestComparison(equal, 3, (), missing)
    (holds, told), *_ = statements(outcome)
    assert holds == (not missing)
    assert re.fullmatch(f"{said}.*", told)
    assert ("in flight" in told) == bool(untold)
