"""A job is told before the first iteration under its bucket plan is whole, and stays what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.netib import Options, generate
from support.netib.options import LL, LL128, SIMPLE

from flowcheck.findings.catalog.job_learning import REST_BY_PLAN
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.training_job.learned_job import LearnedJob, Role

MANY = Options(
    seed=5,
    ranks=3,
    version=(2, 21),
    protocol=LL128,
    shapes=((30, 40), (64, 100), (64,)) * 5 + ((40, 41), (10,)),
    caps_bytes=(5 << 10, 30 << 10),
    steps=3,
)
"""Five buckets, the first of which is the smallest."""
SHAPED = {
    "LL128": MANY,
    "LL": replace(MANY, protocol=LL, ranks=2, channels=2),
    "Simple": replace(MANY, protocol=SIMPLE, channels=2),
    "buffers": replace(MANY, buffers=70),
    "a hook": replace(MANY, compress="bfloat16"),
    "protocols by size": replace(MANY, mix=((9 << 10, LL),)),
    "another for iteration 0": replace(MANY, mix=((60 << 10, LL128),), protocol=SIMPLE),
    "a metric": replace(MANY, metric_every=2),
    "a metric each step": replace(MANY, metric_every=1),
    "maps": replace(MANY, find_unused=True),
    "static graph": replace(MANY, static_graph=True),
    "two dtypes": replace(MANY, dtypes=("float32", "bfloat16", "float32") * 5 + ("float32",) * 2),
}
LATE = {"a metric each step", "maps", "two dtypes", "protocols by size"}
"""Of which the end of an iteration alone tells what it holds, or in which protocol."""
POINTS, MORE_POINTS = 10, 40
"""Of a capture at which it is read, by day and by night."""


BY_NIGHT = {
    "LL128", "LL", "a hook", "another for iteration 0", "a metric", "a metric each step",
}  # fmt: skip
"""Of which each branch is reached by day with one of the others."""


@pytest.fixture(
    params=[pytest.param(n, marks=[pytest.mark.nightly] * (n in BY_NIGHT)) for n in SHAPED]
)
def shaped(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, CaptureContents, Any]:
    made = generate(SHAPED[request.param], tmp_path)
    return request.param, read_capture_files(made.files), made.truth


def readings(seen: CaptureContents, points: int) -> list[Reading]:
    """Of ever more of the messages, as a chain reads them that goes on."""
    messages = sorted(seen.messages, key=lambda one: one.first_ns)
    cuts = [len(messages) * n // points for n in range(1, points)]
    return [read_stream(seen.flows, messages[:k], ended=False, hasty=True) for k in cuts]


def without_reasons(job: LearnedJob) -> dict[str, Any]:
    """What is placed and how. Metrics, which are not placed, may come in any iteration."""
    found: dict[str, Any] = msgspec.to_builtins(job)
    found["each"] = [one for one in found["each"] if one["role"] == Role.BUCKET]
    return {name: value for name, value in found.items() if name not in ("evidence", "assumed")}


@pytest.mark.parametrize("points", [POINTS, pytest.param(MORE_POINTS, marks=pytest.mark.nightly)])
def test_a_job_told_early_is_the_one_told_at_the_end(
    shaped: tuple[str, CaptureContents, Any], points: int
) -> None:
    name, seen, truth = shaped
    last = read_stream(seen.flows, seen.messages)
    assert last.job is not None, last.why_not
    jobs = [reading.job for reading in readings(seen, points) if reading.job is not None]
    assert jobs
    for job in jobs:
        assert without_reasons(job) == without_reasons(last.job)
    first = [one for one in jobs[0].each if one.role is Role.BUCKET]
    assert len(first) == len(jobs[0].buckets)
    if not SHAPED[name].find_unused:
        assert [list(bucket) for bucket in jobs[0].buckets] == truth.buckets
    early = any(REST_BY_PLAN.code == one.code for one in jobs[0].evidence)
    assert early == (name not in LATE), jobs[0].evidence
    assert not any(REST_BY_PLAN.code == one.code for one in last.job.evidence)


def test_what_is_awaited_is_the_bucket_that_tells_the_rest(tmp_path: Path) -> None:
    """A chain reads again as soon as that is there, and has the job."""
    seen = read_capture_files(generate(MANY, tmp_path).files)
    messages = sorted(seen.messages, key=lambda one: one.first_ns)
    at, reading = len(messages) // MORE_POINTS, None
    while at < len(messages):
        reading = read_stream(seen.flows, messages[:at], ended=False, hasty=True)
        if reading.job is not None:
            break
        at = next_look(reading.awaited, seen, at)
    assert reading is not None and reading.job is not None
    (told,) = [one for one in reading.job.evidence if one.code == REST_BY_PLAN.code]
    assert told.arguments["came"] in (1, 2) and told.arguments["buckets"] == 5


def next_look(awaited: Awaited | None, seen: CaptureContents, at: int) -> int:
    """How many messages are there when what is awaited has come."""
    messages = sorted(seen.messages, key=lambda one: one.first_ns)
    for k in range(at + 1, len(messages)):
        if awaited is None:
            return k
        count = [one.flow for one in messages[:k]]
        if all(count.count(key) >= due for key, due in awaited.flows):
            return k
    return len(messages)
