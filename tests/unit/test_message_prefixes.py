"""A stream is read after fixed counts of messages: at any pace the same job is learned."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.netib import Options, generate
from support.staged import Chain, played

from flowcheck.stages.job_learning.message_prefixes import (
    GROWTH,
    MESSAGES_MIN,
    counts_up_to,
    next_count,
)

SHAPES = ((64, 100), (64,), (10, 64), (10,))
JOBS = {
    # More iterations tell that the metric is no part of each.
    "metric": Options(ranks=3, shapes=SHAPES, metric_every=2, steps=9),
    "buffers": Options(ranks=2, shapes=SHAPES, metric_every=2, steps=9, buffers=64),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_job_is_the_same_at_any_pace(name: str, tmp_path: Path, shm: Path) -> None:
    files = generate(JOBS[name], tmp_path).files
    learned = set()
    for frames in (4, 61, 100_000):
        folder = tmp_path / str(frames)
        folder.mkdir()
        chain = Chain(folder, shm / str(frames), files, 1 << 14)
        found = played(chain, frames)
        chain.close()
        assert found
        learned.add(chain.run.learned_job.read_bytes())
    assert len(learned) == 1


def test_counts_grow_and_none_is_passed_over() -> None:
    counts = counts_up_to(1000)
    assert counts[0] == MESSAGES_MIN and counts[-1] * GROWTH > 1000
    assert all(b > a and (b <= a * GROWTH or b == a + 1) for a, b in itertools.pairwise(counts))
    for read_at in (0, 3, 4, 77, 500):
        assert counts_up_to(1000, read_at)[0] == next_count(read_at) > read_at
    assert counts_up_to(3) == () == counts_up_to(10, 10)
