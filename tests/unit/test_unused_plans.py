"""Buckets of find_unused_parameters in LL128, whose sizes on the wire allow several of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.findings.catalog.job_learning import BUCKETS_BY_CAPS, BUCKETS_BY_NUMBERS
from flowcheck.findings.catalog.refused_trainers import UNUSED_CUTS_OPEN
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.wire.learn import Reading, read_stream

SMALL = Options(protocol="LL128", find_unused=True, steps=3, caps_bytes=(8 << 10, 16 << 10))
USUAL = replace(
    SMALL,
    caps_bytes=(1 << 20, 25 << 20),
    shapes=((512, 600), (600,), (300, 600), (300,), (10, 300), (10,)),
)
EITHER = ((512, 601), (13,), (300, 600), (300,), (10, 300), (10,))


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    seen = read_capture_files(made.files)
    return made.truth, read_stream(seen.flows, seen.messages)


def told(truth: Truth, reading: Reading) -> set[str]:
    """What is assumed of a job that was learned as it was."""
    assert reading.job is not None, reading.why_not
    parameters = len(truth.options.shapes)
    assert reading.job.buckets == (*map(tuple, truth.buckets), (parameters,))
    sums = [c for c in reading.collectives if c.meaning == "gradient bucket"]
    assert [c.sha256 for c in sums] == [c.sha256 for c in truth.gradients]
    return {one.code for one in reading.job.assumed}


def test_buckets_that_ddp_closes_by_itself_are_believed_before_others(tmp_path: Path) -> None:
    """Of two ranks no chunk is seen twice, and the second parameter fits into either bucket."""
    assert BUCKETS_BY_CAPS.code in told(*read(replace(USUAL, shapes=EITHER), tmp_path))


def test_copies_tell_large_buckets_apart(tmp_path: Path) -> None:
    """Of three ranks a bucket is as large on the wire without its first parameter."""
    assert BUCKETS_BY_CAPS.code not in told(
        *read(replace(USUAL, ranks=3, version=(2, 30)), tmp_path)
    )


@pytest.mark.parametrize("version", [(2, 21), (2, 30)])
def test_copies_of_chunks_tell_small_buckets_apart(
    version: tuple[int, int], tmp_path: Path
) -> None:
    assert not told(*read(replace(SMALL, ranks=4, version=version), tmp_path)) & {
        BUCKETS_BY_NUMBERS.code,
        BUCKETS_BY_CAPS.code,
    }


@pytest.mark.parametrize("version", [(2, 19), (2, 30)])
def test_numbers_tell_small_buckets_of_two_ranks_apart(
    version: tuple[int, int], tmp_path: Path
) -> None:
    assert BUCKETS_BY_NUMBERS.code in told(*read(replace(SMALL, version=version), tmp_path))


def test_where_nothing_tells_the_refusal_says_what_is_open(tmp_path: Path) -> None:
    """What fills a group up looks like the numbers before it."""
    stale = replace(SMALL, version=(2, 19), manners=Manners(filler="stale"))
    _, reading = read(stale, tmp_path)
    assert reading.job is None
    assert reading.why_not[0].is_any_of(UNUSED_CUTS_OPEN)
    assert reading.why_not[0].arguments == {"ways": 2, "parameters": 4}
