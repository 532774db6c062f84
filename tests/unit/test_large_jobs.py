"""Jobs whose weights do not fit one broadcast, by messages of right sizes alone: what is learned of
them, and that it costs no more than the messages there are."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from math import prod
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.large_jobs import BROADCAST_BYTES, LargeJob, gpt_shapes, large_job
from support.netib import Options, generate

from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.collectives.nccl_parameters import CollectiveKind
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.cuts.place import Canvas
from flowcheck.wire.learn.search.evidence import adds_up
from flowcheck.wire.training_job.flow_plan import compile_flow_plans

LARGE = gpt_shapes(10, 800)
"""0.5 GB: weights come in two broadcasts."""


def read(made: LargeJob) -> Reading:
    return read_stream(made.flows, made.messages, results=False, ended=False)


@pytest.fixture(scope="module")
def large() -> LargeJob:
    return large_job(LARGE, ranks=4, channels=2)


def test_weights_in_several_broadcasts_are_learned(large: LargeJob) -> None:
    size = 4 * large.parameters
    assert size > BROADCAST_BYTES
    reading = read(large)
    job, weights = reading.job, reading.weights
    assert job is not None and weights is not None, reading.why_not
    assert tuple(parameter.sizes for parameter in job.parameters) == LARGE
    assert {parameter.element_bytes for parameter in job.parameters} == {4}
    assert [list(bucket) for bucket in job.buckets] == large.buckets
    assert (weights.shapes, weights.bytes, weights.complete) == (LARGE, size, True)
    sent = [c.bytes for c in reading.collectives if c.meaning == "initial weights"]
    assert len(sent) > 1 and sum(sent) == size and min(sent[:-1]) >= BROADCAST_BYTES


def test_the_plan_has_every_message_of_an_iteration_and_every_byte(large: LargeJob) -> None:
    job = read(large).job
    assert job is not None
    begin = next(m.order for m in reversed(large.messages) if m.first_ns == large.begun_ns[-2])
    end = next(m.order for m in reversed(large.messages) if m.first_ns == large.begun_ns[-1])
    for plan in compile_flow_plans(job):
        sent = [
            message.wire_bytes
            for message in large.messages
            if message.flow == plan.flow and begin <= message.order < end
        ]
        assert sent and plan.each.sends["wire_bytes"].tolist() == sent
    covered = np.zeros(large.parameters, np.bool_)
    for plan in compile_flow_plans(job):
        for segment in plan.each.segments:
            first = int(segment["dst_byte"]) // 4
            covered[first : first + int(segment["data_bytes"]) // 4] = True
    assert covered.all()


def test_nothing_as_large_as_the_weights_is_made(large: LargeJob) -> None:
    tracemalloc.start()
    reading = read(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading.job is not None
    assert peak < BROADCAST_BYTES // 4


def test_the_work_grows_with_messages_and_not_with_anything_else() -> None:
    """Calls of functions, Python's and C's, that a reading takes."""
    small, wide = (large_job(gpt_shapes(layers, 512), ranks=4) for layers in (4, 32))
    spent = [_calls(made) / len(made.messages) for made in (small, wide)]
    assert len(wide.messages) > 3 * len(small.messages)
    assert spent[1] < 1.5 * spent[0]


def _calls(made: LargeJob) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        assert read(made).job is not None
    finally:
        sys.setprofile(None)
    return count


def test_copies_of_weights_that_differ_deep_inside_a_message_are_not_sound(tmp_path: Path) -> None:
    """They are looked at as a whole only once they are asked for."""
    options = Options(
        ranks=4, protocol="Simple", version=(2, 26), shapes=((700, 400), (400,)), mirrored=(1,)
    )
    seen = read_capture_files(generate(options, tmp_path).files)
    sound = read_stream(seen.flows, seen.messages, results=False)
    assert sound.job is not None and sound.weights is not None and sound.weights.sound
    shown = next(c for c in sound.collectives if c.meaning == "initial weights")
    assert shown.bytes == 4 * sum(map(prod, options.shapes))
    place = next(p for p in shown.placements if p.data_bytes > 100_000)
    messages = [
        _changed(m) if (m.flow, m.first_psn) == (place.flow, place.first_psn) else m
        for m in seen.messages
    ]
    quick = read_stream(seen.flows, messages, results=False)
    whole = read_stream(seen.flows, messages)
    assert quick.weights is not None and whole.weights is not None
    assert not whole.weights.complete and not quick.weights.sound
    assert quick.weights.sha256 is whole.weights.sha256 is None


def test_what_is_not_looked_at_yet_tells_nothing_of_where_it_begins() -> None:
    """Of a large bucket on its way no byte is placed, whatever of its first sends was seen."""
    op = SimpleNamespace(kind=CollectiveKind.ALL_REDUCE, work_bytes=64)
    cut: Any = SimpleNamespace(op=op, sends=lambda _: ())
    ring: Any = SimpleNamespace(ranks=2, edges=(None, None))
    assert adds_up(cut, ring, Canvas(0)) is None


def _changed(message: Any) -> Any:
    payload = message.payload.copy()
    payload[50_000] ^= 1
    return replace(message, payload=payload)
