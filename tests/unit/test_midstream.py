"""Captures that begin inside a message or a step of a running job: every sum that is whole in one
is told, and none that is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.netib import Options, generate
from support.netib.shapes import SMALL

from flowcheck.findings.catalog.collective_evidence import (
    AS_EACH_TIME,
    BEGINS_AFTER_PAUSE,
    END_BY_COPIES,
)
from flowcheck.plane.mirror_merge.capture_file_reader import CaptureContents, read_capture_files
from flowcheck.wire.learn import Reading, read_stream
from flowcheck.wire.learn.search import communicators

TWO = (3000, 16000)
"""Buckets of an iteration."""
CASES = {
    "two ranks, two channels": Options(shapes=SMALL, channels=2),
    "two ranks, LL, two buckets": Options(shapes=SMALL, channels=2, caps_bytes=TWO),
    "two ranks, LL ends in a line": Options(shapes=((64, 99), (64,), (11, 63), (11,))),
    "two ranks, bf16": Options(shapes=((64, 199), (63,)), dtype="bfloat16", version=(2, 23)),
    "three ranks": Options(ranks=3, protocol="Simple", shapes=SMALL, channels=2, caps_bytes=TWO),
    "two ranks, LL128": Options(protocol="LL128", shapes=SMALL, version=(2, 23)),
    "queue pairs by turns": Options(
        ranks=4, protocol="Simple", shapes=SMALL, channels=2, qps=4, version=(2, 30)
    ),
    "queue pairs that split": Options(
        ranks=3, protocol="LL", shapes=SMALL, qps=2, split=True, caps_bytes=TWO
    ),
    "four ranks, LL128": Options(ranks=4, protocol="LL128", shapes=SMALL, version=(2, 26)),
    "buffers and metrics": Options(
        ranks=5,
        protocol="LL128",
        mix=((1024, "LL"),),
        shapes=SMALL,
        version=(2, 23),
        buffers=64,
        counters=1,
        metric_every=2,
    ),
    "a number on one of five channels": Options(
        ranks=5,
        protocol="Simple",
        channels=5,
        shapes=((300, 311), (311,), (90, 311), (91,)),
        caps_bytes=(40000, 200000),
        metric_every=2,
    ),
}
"""All of them seen from inside the third step on."""


@cache
def captured(name: str) -> tuple[CaptureContents, set[str], set[str]]:
    """(what the mirror saw, sums that are whole, all results)."""
    options = CASES[name]
    options = Options(**{**vars(options), "steps": 7, "start_step": 2, "start_inside": True})
    with TemporaryDirectory() as folder:
        made = generate(options, Path(folder))
        tape = read_capture_files(made.files)
    gradients = made.truth.gradients
    whole = {each.sha256 for each in gradients if each.complete and each.visible == 1.0}
    assert whole
    return tape, whole, {each.sha256 for each in made.truth.collectives}


@cache
def amid(name: str) -> tuple[Reading, set[str], set[str]]:
    """(what is told, sums that are whole, all results)."""
    tape, whole, known = captured(name)
    return read_stream(tape.flows, tape.messages), whole, known


@pytest.mark.parametrize("name", CASES)
def test_every_sum_that_is_whole_is_told(name: str) -> None:
    reading, whole, known = amid(name)
    told = {each.sha256 for each in reading.collectives if each.sha256 is not None}
    assert whole <= told <= known


@pytest.mark.parametrize("name", CASES)
def test_sums_that_come_again_need_no_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tape, whole, _ = captured(name)

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the search was asked")

    monkeypatch.setattr(communicators, "cut_stream", asked)
    reading = read_stream(tape.flows, tape.messages)
    assert whole <= {each.sha256 for each in reading.collectives}


def test_what_came_before_is_what_came_there_each_time() -> None:
    reading, _, _ = amid("three ranks")
    first, *rest = reading.collectives
    assert AS_EACH_TIME() in first.assumed
    assert all(AS_EACH_TIME() not in each.assumed for each in rest)


def test_pauses_alone_are_assumed() -> None:
    """One of the two channels has chunks of one size, and nothing is forwarded."""
    reading, _, _ = amid("two ranks, two channels")
    assert any(BEGINS_AFTER_PAUSE() in each.assumed for each in reading.collectives)


def test_copies_tell_where_a_group_ends() -> None:
    reading, _, _ = amid("four ranks, LL128")
    assert all(END_BY_COPIES() in each.assumed for each in reading.collectives)
