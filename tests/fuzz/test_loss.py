"""No loss makes a wrong tensor look complete: made-up jobs, damaged frames, what is learned.

FLOWCHECK_LOSS_SEED and FLOWCHECK_LOSS_CASES move the long run to other cases.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.loss import Case, made_up, read, traffic_of, wrong

SEED = int(os.environ.get("FLOWCHECK_LOSS_SEED", "100000"))
CASES = int(os.environ.get("FLOWCHECK_LOSS_CASES", "20000"))
SECONDS = 15.0
"""Most CPU time a reading may take; measured at most 4, on two cores."""
ONCE_WRONG = (
    (58, "a metric of one number taken for a bucket of one line"),
    (150, "a broadcast taken for an all-reduce whose empty send was lost"),
    (230, "another cut of the shapes, of elements of another size, ending in the same line"),
    (312, "another cut of the shapes, of more elements, ending in the same line"),
    (641, "a cut of the shapes with buffers behind it, and buckets to match"),
    (3176, "two buckets that end in the same line, out of phase"),
    (3212, "a bucket behind a lost plan taken for all parameters"),
    (
        500007,
        "what one connection carried of an all-reduce joined with the next one's of the other",
    ),
    (3258, "the same broadcast, where all-reduces of its size are known"),
    (10562, "an all-reduce of one direction taken for broadcasts of buffers"),
)


def problems(case: Case, folder: Path) -> tuple[list[str], int]:
    """(what is wrong with the reading of `case`, all-reduces that came out complete)."""
    traffic = traffic_of(case)
    started = time.process_time()
    reading = read(case, traffic, folder)
    spent = time.process_time() - started
    name = f"seed {case.seed}, {case.mirrors}, {case.damages}"
    found = [f"{name}: {what}" for what in wrong(reading, traffic)]
    if spent > SECONDS:
        found.append(f"{name}: {spent:.0f} s")
    whole = sum(c.kind == "all_reduce" and c.sha256 is not None for c in reading.collectives)
    return found, whole


@pytest.mark.parametrize(("seed", "what"), ONCE_WRONG)
def test_what_was_once_complete_and_wrong_is_neither_now(
    seed: int, what: str, tmp_path: Path
) -> None:
    assert problems(made_up(seed), tmp_path)[0] == [], what


def run(seeds: range, folder: Path) -> None:
    found: list[str] = []
    whole = 0
    for seed in seeds:
        wrongs, complete = problems(made_up(seed), folder)
        found += wrongs
        whole += complete
    assert found == []
    # Nothing is proved by a reader that believes nothing.
    assert whole > len(seeds)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "part", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 2, 3))]
)
def test_no_loss_makes_a_wrong_tensor_complete(part: int, tmp_path: Path) -> None:
    run(range(1000 + 30 * part, 1030 + 30 * part), tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_no_loss_makes_a_wrong_tensor_complete_all_night(tmp_path: Path) -> None:
    run(range(SEED, SEED + CASES), tmp_path)
