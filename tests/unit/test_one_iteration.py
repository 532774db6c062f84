"""A capture that ends behind iteration 0: parameters, weights and gradients are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.findings.catalog.job_learning import (
    NO_BUCKET_PLAN,
    ONE_ITERATION,
    ONE_ITERATION_SEEN,
)
from flowcheck.ops.analysis.analysis_report import as_dicts
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream


def read(options: Options, folder: Path, *, ended: bool = True) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    seen = read_capture_files(made.files)
    return made.truth, read_stream(seen.flows, seen.messages, ended=ended)


def told_gradients(truth: Truth, reading: Reading) -> bool:
    buckets = [c.sha256 for c in reading.collectives if c.meaning == "gradient bucket"]
    return buckets == [c.sha256 for c in truth.gradients]


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("steps", [1, 2])
def test_one_iteration_is_told_and_what_is_missing(
    protocol: str, steps: int, tmp_path: Path
) -> None:
    """A static graph has two iterations before its plan."""
    options = Options(protocol=protocol, steps=steps, static_graph=steps == 2, version=(2, 23))
    truth, reading = read(options, tmp_path)
    assert reading.job is None and told_gradients(truth, reading)
    assert reading.weights is not None and reading.weights.complete
    assert reading.weights.result.tobytes() == truth.weights
    elements = len(truth.weights) // 4
    assert reading.why_not == (ONE_ITERATION(parameters=4, elements=elements),)
    [told] = as_dicts(reading)
    assert not told["learned"] and (told["ranks"], told["parameters"]) == (2, 4)
    assert told["addresses"] == ["10.0.0.1", "10.0.0.2"]


def test_a_chain_that_goes_on_waits_for_the_plan(tmp_path: Path) -> None:
    _, reading = read(Options(steps=1), tmp_path, ended=False)
    assert reading.why_not == (NO_BUCKET_PLAN(),)


def test_a_capture_that_ends_amid_iteration_0_tells_no_gradient(tmp_path: Path) -> None:
    _, reading = read(Options(steps=1, manners=Manners(until=0.85)), tmp_path)
    assert reading.job is None and reading.why_not[0].is_any_of(ONE_ITERATION)
    assert [c.complete for c in reading.collectives if c.meaning == "gradient bucket"] == [False]


def test_a_map_behind_the_only_iteration_tells_its_buckets(tmp_path: Path) -> None:
    options = Options(steps=1, find_unused=True, caps_bytes=(1000, 3000), version=(2, 23))
    truth, reading = read(options, tmp_path)
    assert reading.job is not None and told_gradients(truth, reading)
    assert reading.job.buckets == (*map(tuple, truth.buckets), (4,))
    assert ONE_ITERATION_SEEN() in reading.job.assumed
    truth, longer = read(replace(options, steps=3), tmp_path)
    assert longer.job is not None and ONE_ITERATION_SEEN() not in longer.job.assumed
    assert [op.role for op in longer.job.each] == [op.role for op in reading.job.each]
    assert longer.job.first == reading.job.first


def test_buffers_before_the_only_iteration_leave_open_what_each_sends(tmp_path: Path) -> None:
    """They look like more of the weights, and come again in every forward."""
    _, reading = read(Options(steps=1, find_unused=True, buffers=40), tmp_path)
    assert reading.job is None
