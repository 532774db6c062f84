"""Where parameters of one number may stand, judged by trying every place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.netib import Options, generate

from flowcheck.findings.catalog.job_learning import (
    SCALARS_FIRST,
    SCALARS_LIKELIEST,
    SCALARS_OPEN,
    SHAPES_CUT,
)
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_learning.stream_reading import reading_outcome
from flowcheck.wire.ddp_startup.parameter_shapes import parse_shapes, with_scalars_at
from flowcheck.wire.ddp_startup.scalar_parameters import places_in_buckets, places_in_runs
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.training_job.learned_job import Parameter
from flowcheck.wire.training_job.operator_statements import OperatorStatement

OPEN = (SCALARS_FIRST, SCALARS_LIKELIEST, SCALARS_OPEN)


def laid(counts: Sequence[int], places: Sequence[int]) -> list[int]:
    left = iter(counts)
    return [1 if i in places else next(left) for i in range(len(counts) + len(places))]


@given(st.data())
def test_places_in_buckets_are_those_that_trying_all_finds(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    scalars = data.draw(st.integers(0, 3))
    every = data.draw(st.permutations(range(len(counts) + scalars)))
    cut = data.draw(st.integers(1, len(every)))
    buckets = [bucket for bucket in (every[:cut], every[cut:]) if bucket]
    true = data.draw(st.sampled_from(list(combinations(range(len(every)), scalars))))
    slack = data.draw(st.integers(0, 1))
    sizes = [sum(laid(counts, true)[i] for i in bucket) for bucket in buckets]
    tried = [
        own
        for own in combinations(range(len(every)), scalars)
        if all(
            abs(sum(laid(counts, own)[i] for i in bucket) - size) <= slack
            for bucket, size in zip(buckets, sizes, strict=True)
        )
    ]
    found = places_in_buckets(
        counts, scalars, buckets, lambda n, elements: abs(elements - sizes[n]) <= slack, most=1000
    )
    assert found is not None
    assert sorted(found.found) == tried and found.ways == len(tried)


@given(st.data())
def test_the_first_place_is_the_likeliest_by_as_much_as_trying_all_finds(
    data: st.DataObject,
) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    scalars = data.draw(st.integers(1, 3))
    size = len(counts) + scalars
    drawn = st.lists(st.integers(-9, 9), min_size=scalars + 1, max_size=scalars + 1)
    speaks = [data.draw(drawn) for _ in counts]

    def score(places: Sequence[int]) -> int:
        dense = [i for i in range(size) if i not in places]
        return sum(speaks[n][i - n] for n, i in enumerate(dense))

    tried = sorted((score(own) for own in combinations(range(size), scalars)), reverse=True)
    found = places_in_buckets(
        counts, scalars, [range(size)], lambda *_: True, lambda n, before: speaks[n][before]
    )
    assert found is not None and score(found.found[0]) == tried[0]
    assert found.margin == tried[0] - tried[1]


@given(st.data())
def test_places_in_runs_are_those_that_trying_all_finds(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    scalars = data.draw(st.integers(0, 3))
    size = len(counts) + scalars
    true = data.draw(st.sampled_from(list(combinations(range(size), scalars))))
    ends = sorted({*data.draw(st.sets(st.integers(1, size))), size})
    own = laid(counts, true)
    sizes = [sum(own[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    bounds = {sum(sizes[: n + 1]) for n in range(len(sizes))}
    tried = [
        places
        for places in combinations(range(size), scalars)
        if bounds <= {sum(laid(counts, places)[:n]) for n in range(1, size + 1)}
    ]
    found = places_in_runs(counts, scalars, sizes, lambda n, total: total == sizes[n], most=1000)
    assert found is not None
    assert sorted(found.found) == tried and found.ways == len(tried)


def test_many_scalars_are_no_reason_not_to_read_the_shapes() -> None:
    tensors = [torch.empty(4, 3), torch.empty(4)] * 12
    values = [v for t in tensors for v in (*t.shape, *t.stride())]
    cuts = parse_shapes(values, len(tensors) + 12)
    assert cuts and cuts[0].scalars == 12
    assert with_scalars_at(cuts[0].dense, [0, 3])[3] == ((), ())


SHAPES = ((64, 100), (64,), (), (10, 64), (10,))
CAPS = (400, 2000)


def read(
    options: Options, folder: Path, stated: OperatorStatement | None = None
) -> tuple[Reading, list[str]]:
    """And the gradients that were reduced and not found."""
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages, stated=stated)
    found = {c.sha256 for c in reading.collectives}
    return reading, [g.sha256 for g in made.truth.gradients if g.sha256 not in found]


def model(shapes: Sequence[tuple[int, ...]]) -> OperatorStatement:
    tensors = [torch.empty(shape) for shape in shapes]
    told = (Parameter(sizes=tuple(t.shape), strides=t.stride(), dtype="float32") for t in tensors)
    return OperatorStatement(parameters=tuple(told))


@pytest.mark.parametrize(
    "options",
    [
        Options(shapes=SHAPES),
        Options(shapes=SHAPES, protocol="Simple", caps_bytes=CAPS),
        Options(shapes=SHAPES, protocol="LL128"),
        Options(shapes=SHAPES, caps_bytes=CAPS, find_unused=True),
        Options(shapes=SHAPES, caps_bytes=CAPS, static_graph=True),
        Options(shapes=SHAPES, caps_bytes=CAPS, compress="bfloat16"),
        Options(shapes=((), (64, 100), (64,), (), (), (10, 64), (10,), ()), caps_bytes=CAPS),
        Options(shapes=((64, 1), (64,), (), (10, 64), (10,))),
    ],
    ids=["LL", "Simple", "LL128", "unused", "static", "hook", "several", "one-column"],
)
def test_job_with_scalars_is_learned_and_its_places_are_told_or_assumed(
    options: Options, tmp_path: Path
) -> None:
    reading, missed = read(options, tmp_path)
    assert reading.job is not None and not missed, reading.why_not
    told = tuple(p.sizes for p in reading.job.parameters)
    rests = [one for one in reading.job.assumed if one.is_any_of(*OPEN, SHAPES_CUT)]
    assert told == options.shapes or rests
    # All weights are drawn alike here, so that none of several places is much likelier.
    began = reading_outcome(reading)
    if any(one.is_any_of(*OPEN) for one in rests):
        assert began.job is None and began.why_not[0].is_any_of(SCALARS_OPEN)
    else:
        assert began.job is not None
    stated, missed = read(options, tmp_path, model(options.shapes))
    assert stated.job is not None and not missed, stated.why_not
    assert tuple(p.sizes for p in stated.job.parameters) == options.shapes
    assert not [one for one in stated.job.assumed if one.is_any_of(*OPEN, SHAPES_CUT)]


def test_buckets_and_types_that_leave_one_place_tell_it(tmp_path: Path) -> None:
    kinds = ("float32", "bfloat16", "float32", "bfloat16", "float32", "float32")
    shapes = ((64, 100), (64, 20), (), (10, 64), (10,), (7,))
    reading, missed = read(Options(shapes=shapes, dtypes=kinds, caps_bytes=CAPS), tmp_path)
    assert reading.job is not None and not missed
    assert tuple(p.sizes for p in reading.job.parameters) == shapes
    assert not [one for one in reading.job.assumed if one.is_any_of(*OPEN)]
