"""A reading that is no longer wanted: forgotten at once, and told as long as it looks at memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from support.chain import wait_until

from flowcheck.config import job_from
from flowcheck.plane.merge import Joined
from flowcheck.stages import learner, readings, unlearned
from flowcheck.stages.extract import ExtractService
from flowcheck.stages.learner import Learner
from flowcheck.stages.rundir import RunDir
from flowcheck.stages.unlearned import Unlearned, reasons
from flowcheck.wire.learn import Reading
from flowcheck.wire.terms import Rule

LIMIT_S = 10.0


class Slow:
    """`read_stream` that takes as long as the test lets it."""

    def __init__(self) -> None:
        self.began, self.may_end = Event(), Event()
        self.ended = 0

    def __call__(self, *_: object, **named: object) -> Reading:
        self.named = named
        self.began.set()
        assert self.may_end.wait(LIMIT_S)
        self.ended += 1
        return Reading(flows=(), collectives=(), weights=None, job=None, why_not=("too early",))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    nothing = Joined(flows=[], messages=[], conflicts=0, homeless=0, names=[])
    monkeypatch.setattr(readings, "read_stream", made)
    monkeypatch.setattr(learner, "view_of", lambda extractor, copy: None)
    monkeypatch.setattr(learner, "join", lambda views: nothing)
    yield made
    made.may_end.set()


def staged(messages: int) -> list[Any]:
    """An extractor that has staged so many messages."""
    return [SimpleNamespace(staging=SimpleNamespace(completions=messages))]


def test_a_forgotten_reading_is_not_waited_for_and_not_denied(slow: Slow, tmp_path: Path) -> None:
    mine = Learner(RunDir(tmp_path))
    assert mine.learn(staged(8), at_once=False) is None
    assert slow.began.wait(LIMIT_S)
    assert (mine.busy, mine.reading) == (True, True)
    mine.forget()
    assert mine.busy is False, "its outcome is not waited for"
    assert mine.reading is True, "and still it looks at what is staged"
    assert slow.ended == 0
    slow.may_end.set()
    wait_until(lambda: not mine.reading, LIMIT_S, "the end of the reading")
    assert slow.ended == 1


def test_the_release_the_job_file_states_reaches_the_reading(slow: Slow, tmp_path: Path) -> None:
    settings = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "nccl": "2.21.5"}
    stage = ExtractService(RunDir(tmp_path), job_from({"source": [{"file": "x"}], **settings}))
    slow.may_end.set()
    stage._learner.learn(staged(8), at_once=False, wait_s=LIMIT_S)
    assert slow.named["release"] is Rule.V2_20


def test_why_no_job_is_learned_is_told_once_it_stood_and_no_oftener(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    said: list[str] = []
    now_s = [100.0]
    mine = Unlearned(run, said.append, lambda: now_s[0])

    def look(seconds: int, reason: Callable[[int], str]) -> int:
        before = len(said)
        for _ in range(seconds * 10):
            now_s[0] += 0.1
            mine.look((reason(int(now_s[0])),))
        return len(said) - before

    assert look(9, lambda _: "too early") == 0 and reasons(run) == []
    assert look(60, lambda _: "too early") == 1
    assert (said, reasons(run)) == (["no job is learned so far: too early"], ["too early"])
    assert look(100, lambda second: f"{second} seen") in (3, 4), "what changes all the time"
    assert look(5, lambda _: "for good") + look(60, lambda _: "for good") == 1
    assert reasons(run) == ["for good"]
    mine.over()
    assert reasons(run) == []


def test_the_extractor_tells_why_no_job_is_learned_of_frames_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    stage = ExtractService(RunDir(tmp_path), job_from({"source": [{"file": "x"}], **settings}))
    heard: list[Any] = []
    stage._links = SimpleNamespace(report=heard.append)  # type: ignore[assignment]
    ring = SimpleNamespace(drained=False, tail=0)
    stage._extractors = [
        SimpleNamespace(ring=ring, stalled=False, staging=SimpleNamespace(completions=0))  # type: ignore[list-item]
    ]
    monkeypatch.setattr(unlearned, "STOOD_S", 0.0)
    stage._learn(wait_s=0.0)
    assert heard == [], "nothing came: the operator is told of that otherwise"
    ring.tail = 9
    stage._learn(wait_s=0.0)
    stage._learn(wait_s=0.0)
    assert [note.sentence for note in heard] == ["no job is learned so far: no RDMA write was seen"]


def test_what_a_forgotten_reading_found_is_of_no_reading_after_it(
    slow: Slow, tmp_path: Path
) -> None:
    mine = Learner(RunDir(tmp_path))
    mine.learn(staged(8), at_once=False)
    mine.forget()
    slow.began.clear()
    assert mine.learn(staged(8), at_once=False) is None, "a reading of its own, of as many messages"
    assert slow.began.wait(LIMIT_S) and mine.busy
    slow.may_end.set()
    assert mine.learn(staged(8), at_once=False, wait_s=LIMIT_S) is None
    assert (mine.busy, mine.why_not) == (False, ("too early",))
    wait_until(lambda: not mine.reading, LIMIT_S, "the end of both")
    assert slow.ended == 2
