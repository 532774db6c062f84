"""Sharded training from a generator that shares nothing with the reader: the job and its base."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import generate
from support.netib.shapes import CASES

from flowcheck.plane.tape import read_tape
from flowcheck.wire.job import Follows
from flowcheck.wire.learn import read_stream


@pytest.mark.parametrize(
    "name",
    ["r2-ll-230-sharded", pytest.param("r4-simple-226-sharded-bf16", marks=pytest.mark.nightly)],
)
def test_units_are_those_that_were_gathered_first(name: str, tmp_path: Path) -> None:
    made = generate(CASES[name], tmp_path)
    tape = read_tape(made.files)
    reading = read_stream(tape.flows, tape.messages)
    assert reading.job is not None and reading.gathered is not None
    assert reading.job.kind is Follows.PARAMETERS
    own = [c for c in made.truth.collectives if c.kind == "all_gather" and c.step == 0]
    units = list(dict.fromkeys(c.result for c in own))
    assert [p.nbytes for p in reading.job.parameters] == [len(unit) for unit in units]
    assert reading.gathered.result.tobytes() == b"".join(units)
