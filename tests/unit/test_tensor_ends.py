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
    assert any(END_OPEN() in c.assumed and c.missing for c in reduces)
    right = {each.sha256 for each in made.truth.collectives}
    assert {c.sha256 for c in reduces if c.sha256} <= right


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
