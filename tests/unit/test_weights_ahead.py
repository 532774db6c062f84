"""Initial weights are told, and put together, as soon as all of them is there: before the job."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.findings.catalog.job_learning import NO_WHOLE_ITERATION
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.plane.mirror_merge.mirror_point_merge import MergedView
from flowcheck.wire.learn import Reading, read, read_stream
from flowcheck.wire.learn.jobs import awaited
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.traffic.observed_messages import FlowKey, ObservedMessage

SHAPES = ((1500, 800), (800,), (800, 600), (600,), (10, 600), (10,))
JOBS = {
    "simple": Options(
        ranks=3, shapes=SHAPES, protocol="Simple", version=(2, 23), channels=2, steps=2
    ),
    "ll128": Options(
        ranks=4, shapes=SHAPES, protocol="LL128", version=(2, 23), channels=4, mtu=4096, steps=2
    ),
}


def _read(seen: MergedView, messages: list[ObservedMessage]) -> Reading:
    return read_stream(seen.flows, messages, ended=False, hasty=True, results=False)


def _until_weights_are_awaited(seen: MergedView) -> tuple[Reading, int]:
    """A reading that awaits the rest of the weights, and how many messages it had."""
    for count in range(6, 60):
        reading = _read(seen, seen.messages[:count])
        if reading.awaited is not None:
            return reading, count
    raise AssertionError("no reading awaits weights")


def _with_counts(seen: MergedView, due: dict[FlowKey, int]) -> list[ObservedMessage]:
    """The first messages of the stream until so many of each flow are among them."""
    came: Counter[FlowKey] = Counter()
    for index, message in enumerate(seen.messages):
        came[message.flow] += 1
        if all(came[flow] >= count for flow, count in due.items()):
            return list(seen.messages[: index + 1])
    raise AssertionError("they never come")


def test_they_are_awaited_by_themselves_and_are_the_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "WEIGHTS_AWAITED_BYTES", 1)
    capture = generate(JOBS["simple"], tmp_path)
    seen = read_capture_files(capture.files)
    reading, count = _until_weights_are_awaited(seen)
    assert reading.awaited is not None and not (reading.weights and reading.weights.complete)
    messages = _with_counts(seen, dict(reading.awaited.flows))
    assert len(messages) > count
    before = _read(seen, messages[:-1]).weights
    assert before is None or not before.complete, "not later than needed"
    told = _read(seen, messages)
    assert told.job is None and told.weights is not None and told.weights.complete
    assert told.weights.data.tobytes() == capture.truth.weights
    assert told.awaited is not None, "then the plan is awaited"
    assert _due(told.awaited) > _due(reading.awaited)


def test_small_ones_are_awaited_with_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading more costs more than what they take behind the job."""
    seen = read_capture_files(generate(JOBS["simple"], tmp_path).files)
    small, _ = _until_weights_are_awaited(seen)
    monkeypatch.setattr(awaited, "WEIGHTS_AWAITED_BYTES", 1)
    large, _ = _until_weights_are_awaited(seen)
    assert small.awaited is not None and large.awaited is not None
    assert _due(small.awaited) > _due(large.awaited)


def _due(told: Awaited) -> int:
    return sum(count for _, count in told.flows)


@pytest.mark.parametrize("name", JOBS)
def test_another_reading_knows_them_by_their_source(name: str, tmp_path: Path) -> None:
    """Another source is another result: by LL128 the release tells where bytes lie, and what may
    be another release while the first all-reduce is on its way puts them elsewhere."""
    capture = generate(JOBS[name], tmp_path)
    seen = read_capture_files(capture.files)
    whole = _read(seen, list(seen.messages))
    assert whole.job is not None and whole.weights is not None
    equal = []
    for count in range(30, 300, 10):
        early = _read(seen, seen.messages[:count])
        if early.job is not None:
            break
        if early.weights is None or early.weights.sources is None:
            continue
        assert early.weights.deferred is not None
        with (tmp_path / "weights").open("wb") as file:
            assert early.weights.deferred.write(file.fileno())
        right = (tmp_path / "weights").read_bytes() == capture.truth.weights
        equal.append(early.weights.sources == whole.weights.sources)
        assert right == equal[-1], count
    assert equal[-1], "before the job is told"


def test_a_copy_that_differs_is_another_source(tmp_path: Path) -> None:
    seen = read_capture_files(generate(JOBS["simple"], tmp_path).files)
    sources = _sources(seen, list(seen.messages))
    largest = max(range(40), key=lambda index: len(seen.messages[index].payload))
    spoilt = dataclasses.replace(seen.messages[largest], conflicts=((0, 8),))
    changed = [*seen.messages[:largest], spoilt, *seen.messages[largest + 1 :]]
    assert sources is not None and _sources(seen, changed) != sources


def _sources(seen: MergedView, messages: list[ObservedMessage]) -> bytes | None:
    weights = _read(seen, messages).weights
    return None if weights is None else weights.sources


def test_what_ends_amid_an_iteration_is_not_searched_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that explains all of it and waits for more says why there is no job."""

    def search(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    seen = read_capture_files(generate(JOBS["simple"], tmp_path).files)
    monkeypatch.setattr(read, "find_communicators", search)
    told = read_stream(seen.flows, seen.messages[:120], ended=False)
    assert told.job is None and [one.code for one in told.why_not] == [NO_WHOLE_ITERATION.code]
