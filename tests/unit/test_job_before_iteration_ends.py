"""A job is learned at the latest with the last message of its first iteration under the plan.

What the generator calls gradients, and when it sent them, is the measure.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.findings.catalog.job_learning import NO_BUCKET_PLAN, NO_WHOLE_ITERATION
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.mirror_merge.mirror_point_merge import MergedView
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.training_job.learned_job import LearnedJob

SHAPES = ((300, 200), (200,), (200, 250), (250,), (10, 200), (10,))
CAPS = (1 << 17, 1 << 18)
JOBS = {
    "ll": Options(ranks=3, shapes=SHAPES, caps_bytes=CAPS),
    "ll128 and buffers": Options(
        ranks=3,
        shapes=SHAPES,
        caps_bytes=CAPS,
        protocol="LL128",
        version=(2, 23),
        buffers=64,
        counters=2,
        channels=2,
    ),
    "simple": Options(ranks=4, shapes=SHAPES, caps_bytes=CAPS, protocol="Simple", version=(2, 26)),
    "one bucket": Options(ranks=2, shapes=SHAPES),
}


def _captured(options: Options, folder: Path) -> tuple[MergedView, list[tuple[int, int]]]:
    """What was captured; and when the first and the last message of each gradient bucket was first
    seen, in nanoseconds."""
    seen = read_capture_files(generate(options, folder).files)
    at = {(message.flow, message.first_psn): message.first_ns for message in seen.messages}
    whole = read_stream(seen.flows, seen.messages)
    return seen, [
        (c.first_ns, max(at[p.flow, p.first_psn] for p in c.placements if p.first_psn is not None))
        for c in whole.collectives
        if c.meaning == "gradient bucket"
    ]


def _until(seen: MergedView, last_ns: int) -> LearnedJob | None:
    """The job by all messages that began until then; more is to come."""
    messages = [message for message in seen.messages if message.first_ns <= last_ns]
    return read_stream(seen.flows, messages, ended=False, hasty=True, results=False).job


@pytest.mark.parametrize("name", JOBS)
def test_it_is_learned_when_the_first_iteration_of_the_plan_is_there(
    name: str, tmp_path: Path
) -> None:
    seen, buckets = _captured(JOBS[name], tmp_path)
    whole = read_stream(seen.flows, seen.messages, ended=False, results=False).job
    assert whole is not None
    planned = buckets[len(whole.first_buckets)]
    _, last = buckets[len(whole.first_buckets) + len(whole.buckets) - 1]
    assert _until(seen, last) == whole
    # What the plan and some of its buckets told before is the same job (test_rest_of_iteration.py).
    early = _until(seen, last - 1)
    assert early is None or early.each == whole.each
    assert _until(seen, planned[1] - 1) is None


def test_where_a_step_holds_more_than_gradients_the_next_one_is_awaited(tmp_path: Path) -> None:
    options = Options(ranks=3, shapes=SHAPES, caps_bytes=CAPS, metric_every=1, steps=4)
    seen, buckets = _captured(options, tmp_path)
    whole = read_stream(seen.flows, seen.messages, ended=False, results=False).job
    assert whole is not None
    first, each = len(whole.first_buckets), len(whole.buckets)
    assert _until(seen, buckets[first + each - 1][1]) is None
    assert _until(seen, buckets[first + each][0]) == whole


@pytest.mark.parametrize("name", ["ll", "simple"])
def test_a_reading_names_the_messages_with_which_the_next_one_tells_more(
    name: str, tmp_path: Path
) -> None:
    seen, buckets = _captured(JOBS[name], tmp_path)
    messages = sorted(seen.messages, key=lambda message: message.time)

    def reading(stop: int) -> Reading:
        return read_stream(seen.flows, messages[:stop], ended=False, hasty=True, results=False)

    def come(awaited: Awaited | None) -> int:
        """Messages of all flows until those have begun, the last one included."""
        assert awaited is not None
        stops = []
        for flow, due in awaited.flows:
            own = [n for n, message in enumerate(messages) if message.flow == flow]
            stops.append(own[due - 1] + 1)
        return max(stops)

    weights = sum(message.first_ns < buckets[0][0] for message in messages)
    plan = come(reading(weights).awaited)
    assert reading(plan - 1).why_not[0].is_any_of(NO_BUCKET_PLAN)
    planned = reading(plan)
    assert planned.why_not[0].is_any_of(NO_WHOLE_ITERATION)
    last = come(planned.awaited)
    assert reading(last - 1).job is None
    assert reading(last).job is not None
    assert reading(last).awaited is None
