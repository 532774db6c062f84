"""Where a tensor of one LL128 group ends: told by its place in the plan, or by nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.netib import Options, generate

from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream
from flowcheck.wire.learn.search.exponents import is_one_of as looks_alike

TINY_LAST = Options(
    shapes=((98,), (96, 100), (64,)),
    ranks=4,
    protocol="LL128",
    caps_bytes=(1000, 3000),
    steps=3,
)
"""Its second bucket holds 98 numbers, where a group has room for 480."""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_bucket_within_one_group_is_told_by_its_place(tmp_path: Path, dtype: str) -> None:
    made = generate(replace(TINY_LAST, dtype=dtype), tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    told = {c.sha256 for c in reading.collectives if not c.assumed}
    assert len(made.truth.buckets) == 2
    assert {each.sha256 for each in made.truth.gradients} <= told


def test_a_metric_as_large_leaves_it_open_which_one_is_the_bucket(tmp_path: Path) -> None:
    made = generate(replace(TINY_LAST, metric_every=2, steps=6), tmp_path)
    tape = read_capture_files(made.files)
    reduces = [c for c in read_stream(tape.flows, tape.messages).collectives
               if c.kind == "all_reduce"]  # fmt: skip
    assert any(c.missing and any(one.is_any_of(END_OPEN) for one in c.assumed) for c in reduces)
    right = {each.sha256 for each in made.truth.collectives}
    assert {c.sha256 for c in reduces if c.sha256} <= right


FEW_BYTES = Options(
    shapes=((3,), (64, 100), (64,), (10, 64), (2,)), caps_bytes=(4, 20_000), steps=5
)
"""Its plan has a bucket of 8 bytes or of 12, which fills one line or group."""


def gradients_of(options: Options, folder: Path) -> list[tuple[bool, set[str]]]:
    """(it was told, what is assumed of it) of each gradient; nothing else is told of any."""
    made = generate(options, folder)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    found = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert len(found) == len(made.truth.gradients)
    told = {c.sha256 for c in reading.collectives if c.sha256}
    assert told <= {each.sha256 for each in made.truth.collectives}
    pairs = zip(found, made.truth.gradients, strict=True)
    return [(a.sha256 == b.sha256, {one.code for one in a.assumed}) for a, b in pairs]


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("version", [(2, 19), (2, 30)])
def test_a_bucket_of_a_few_bytes_ends_where_the_plan_has_it(
    protocol: str, ranks: int, version: tuple[int, int], tmp_path: Path
) -> None:
    """A metric as large comes behind step 4: before, order tells which one is the bucket."""
    options = replace(FEW_BYTES, protocol=protocol, ranks=ranks, version=version, metric_every=4)
    assert gradients_of(options, tmp_path)[:7] == [(True, set())] * 7


def test_buckets_of_find_unused_parameters_end_where_the_plan_has_them(tmp_path: Path) -> None:
    found = gradients_of(replace(FEW_BYTES, protocol="LL128", find_unused=True), tmp_path)
    assert found == [(True, set())] * len(found)


@pytest.mark.parametrize("protocol", ["LL", "LL128"])
def test_a_model_of_one_line_tells_no_size_of_an_element(protocol: str, tmp_path: Path) -> None:
    """Elements of eight bytes would fill the same line."""
    found = gradients_of(replace(FEW_BYTES, protocol=protocol, shapes=((1,),)), tmp_path)
    assert not any(told for told, _ in found)


def test_a_metric_as_large_as_a_bucket_is_not_taken_for_one_out_of_turn(tmp_path: Path) -> None:
    """It came where the plan has another bucket, and was read as that of its size."""
    options = replace(FEW_BYTES, protocol="LL128", version=(2, 30), metric_every=2)
    gradients_of(options, tmp_path)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_what_fills_a_line_up_does_not_pass_for_its_end(kind: type) -> None:
    draw = np.random.default_rng(5)
    passed = 0
    for _ in range(200):
        values = (draw.standard_normal(400) * 1e-3).astype(kind)
        assert is_one_of(values[-1:] if kind is np.float32 else values[-2:], values)
        filler = np.frombuffer(draw.bytes(4), np.uint8)
        passed += is_one_of(filler, values)
    assert passed < 60


def is_one_of(last: NDArray[Any], values: NDArray[Any]) -> bool:
    return looks_alike(last.view(np.uint8), values.view(np.uint8).reshape(-1, 4)[:-1])
