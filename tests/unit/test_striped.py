"""Connections of several queue pairs: where their order is open, nothing is put together."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netib import Options, generate

from flowcheck.plane.tape import read_tape
from flowcheck.wire.learn import Reading, read_stream


def read(folder: Path, **options: object) -> tuple[Reading, list[str]]:
    made = generate(Options(qps=2, steps=3, **options), folder)
    tape = read_tape(made.files)
    told = [each.sha256 for each in made.truth.gradients if each.complete]
    return read_stream(tape.flows, tape.messages), told


@pytest.mark.parametrize("split", [False, True], ids=["turns", "split"])
def test_every_queue_pair_is_told_and_the_job_names_them(tmp_path: Path, split: bool) -> None:
    reading, _ = read(tmp_path, split=split, version=(2, 23))
    assert reading.job is not None
    data = [flow for flow in reading.flows if flow.role == "data"]
    assert len(data) == 4
    assert {flow.problems for flow in data} == {()}
    named = [flow for edge in reading.job.edges for flow in edge.every_flow]
    assert sorted(named, key=str) == sorted((flow.seen.key for flow in data), key=str)
    assert {edge.split for edge in reading.job.edges} == {split}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("split", [False, True], ids=["turns", "split"])
def test_with_losses_no_wrong_tensor_is_complete(tmp_path: Path, seed: int, split: bool) -> None:
    reading, told = read(tmp_path, split=split, version=(2, 23), lose=6, seed=seed)
    whole = [c for c in reading.collectives if c.kind == "all_reduce" and not c.missing]
    assert {c.sha256 for c in whole if c.sha256} <= set(told)
