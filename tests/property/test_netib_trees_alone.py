"""Sums of a few numbers in a second communicator of a trainer's ranks, which go by its trees: they
are told as that, never as sums round a ring of other ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from property.test_netib_followed import follow
from support.netib import Options, generate

from flowcheck.findings.catalog.collective_evidence import END_OPEN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import read_stream

TREES = Options(
    version=(2, 28), metrics_group=True, metric_trees=3, tree_below=100, metric_every=1, steps=3
)
JOBS = {
    "three": replace(TREES, ranks=3),
    "root": replace(TREES, ranks=4),
    "inner": replace(TREES, ranks=4, mirrored=(2,), metric_trees=5, protocol="Simple"),
    "leaf": replace(TREES, ranks=4, mirrored=(1,), version=(2, 23), protocol="Simple"),
    "several-chunks": replace(TREES, ranks=5, mirrored=(3,), metric_trees=700),
    "beside-pairs": replace(TREES, ranks=4, pipeline_bytes=200_000, pairs=((0, 2), (2, 0))),
}
BY_NIGHT = ("leaf", "several-chunks")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n in BY_NIGHT)) for n in JOBS]
)
def test_trees_of_a_second_communicator_are_told_as_that(name: str, tmp_path: Path) -> None:
    options = JOBS[name]
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    second = [c for c in made.truth.collectives if c.communicator == "metrics"]
    own = [c for c in reading.collectives if c.communicator and c.kind != "send_recv"]
    assert [(c.kind, c.tree, c.ranks) for c in own] == [("all_reduce", True, options.ranks)] * 3
    assert reading.why_not == () and reading.job is not None
    for told, truth in zip(own, second, strict=True):
        ends = [one.arguments for one in told.assumed if one.is_any_of(END_OPEN)]
        least, most = (ends[0]["least"], ends[0]["most"]) if ends else (told.bytes, told.bytes)
        assert isinstance(least, int) and isinstance(most, int)
        assert least <= len(truth.result) <= most < least + 16
        sure = min([told.bytes, *(start for start, _ in told.missing)])
        assert sure >= least - 8 and told.result[:sure].tobytes() == truth.result[:sure]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name != "root")) for name in JOBS],
)
def test_the_job_beside_them_is_followed(name: str, tmp_path: Path, shm: Path) -> None:
    follow(JOBS[name], tmp_path, shm)


def test_a_ring_of_the_first_ranks_alone_is_no_tree(tmp_path: Path) -> None:
    """Ranks 0 and 1 of four share a communicator: its connections lead from each to the next."""
    options = Options(ranks=4, version=(2, 28), tensor_layers=2, tensor_near=True, steps=3)
    made = generate(options, tmp_path)
    tape = read_capture_files(made.files)
    reading = read_stream(tape.flows, tape.messages)
    shared = [c.sha256 for c in made.truth.collectives if c.communicator == "tp"]
    told = [c for c in reading.collectives if c.communicator]
    assert [c.sha256 for c in told] == shared and not any(c.tree for c in told)
