"""NICs that write each packet of a send by itself, and a last, empty one with its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.netib import Options, Truth, generate
from support.netib.manners import Manners

from flowcheck.findings.catalog.nccl_transport import PIECES_NOT_FOLLOWED, WRITES_IN_PIECES
from flowcheck.plane.mirror_merge.capture_file_reader import read_capture_files
from flowcheck.stages.job_learning.stream_reading import reading_outcome
from flowcheck.wire.learn import Reading, read_stream

PIECES = Options(adaptive=True, pieces=True, adaptive_over=2000, caps_bytes=(4000, 20_000), steps=3)


def read(options: Options, folder: Path) -> tuple[Truth, Reading]:
    made = generate(options, folder)
    seen = read_capture_files(made.files)
    return made.truth, read_stream(seen.flows, seen.messages)


def hashes(truth: Truth, reading: Reading) -> tuple[list[str | None], list[str]]:
    return [c.sha256 for c in reading.collectives], [c.sha256 for c in truth.collectives]


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("version", [(2, 19), (2, 30)])
@pytest.mark.parametrize("qps", [1, 2])
def test_sends_in_pieces_are_read_as_if_they_were_whole(
    protocol: str, version: tuple[int, int], qps: int, tmp_path: Path
) -> None:
    """Before 2.20 queue pairs have a part of each send, which states the size of all of it."""
    options = replace(PIECES, protocol=protocol, version=version, qps=qps, retransmits=3)
    truth, reading = read(options, tmp_path)
    told, true = hashes(truth, reading)
    assert told == true
    assert reading.weights is not None and reading.weights.result.tobytes() == truth.weights
    assert reading.job is not None, reading.why_not
    assert reading.job.buckets == tuple(map(tuple, truth.buckets))
    assert any(form.is_any_of(WRITES_IN_PIECES) for form in reading.formats)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lost_pieces_are_missing_where_they_were(protocol: str, seed: int, tmp_path: Path) -> None:
    truth, reading = read(replace(PIECES, protocol=protocol, lose=2, seed=seed), tmp_path)
    told, true = hashes(truth, reading)
    assert len(truth.dropped) == 2 and len(told) == len(true)
    assert {one for one in told if one} <= set(true)
    for collective, whole in zip(reading.collectives, truth.collectives, strict=True):
        seen = collective.result.copy()
        for start, stop in collective.missing:
            seen[start:stop] = bytearray(whole.result[start:stop])
        assert seen.tobytes() == whole.result


def test_a_send_that_the_capture_cuts_off_is_no_smaller_one(tmp_path: Path) -> None:
    for until in (0.5, 0.6, 0.7, 0.8, 0.9):
        truth, reading = read(replace(PIECES, manners=Manners(until=until)), tmp_path)
        told, true = hashes(truth, reading)
        assert {one for one in told if one} <= set(true)


def test_a_chain_says_that_it_does_not_follow_them(tmp_path: Path) -> None:
    """The extractor counts every write as a message of the connection."""
    _, reading = read(PIECES, tmp_path)
    assert reading.job is not None
    outcome = reading_outcome(reading)
    assert outcome.job is None and outcome.why_not == (PIECES_NOT_FOLLOWED(),)
    _, whole = read(replace(PIECES, pieces=False), tmp_path)
    assert whole.job is not None and not any(f.is_any_of(WRITES_IN_PIECES) for f in whole.formats)
    assert reading_outcome(whole).job is not None
