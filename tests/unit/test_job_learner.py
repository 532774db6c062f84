"""Readings in processes of their own: awaited, forgotten, killed, and what they say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.chain import wait_until

from flowcheck._core import ffi
from flowcheck.config import job_from
from flowcheck.findings.catalog.earlier_files import EARLIER_SENTENCE
from flowcheck.findings.catalog.job_learning import SENDS_UNREAD
from flowcheck.findings.catalog.job_selection_reasons import NO_JOB_SO_FAR, READING_KILLED
from flowcheck.findings.catalog.nccl_transport import NO_WHOLE_WRITES, NO_WRITES
from flowcheck.findings.finding import Finding
from flowcheck.plane.mirror_merge.mirror_point_merge import MergedView
from flowcheck.stages.extraction.extract_stage import ExtractService
from flowcheck.stages.job_learning import (
    job_learner,
    learning_status,
    reading_process,
    stream_reading,
)
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.learning_status import LearningStatus, unlearned_reasons
from flowcheck.stages.run_directory.process_liveness import process_identity
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.collectives.nccl_parameters import NcclEra
from flowcheck.wire.learn import Reading
from flowcheck.wire.learn.reading import Awaited
from flowcheck.wire.traffic.observed_messages import FlowKey

LIMIT_S = 60.0


class Slow:
    """`read_stream` that takes as long as the test lets it, in whatever process.

    It looks again and again: what killed processes wait for together would stay taken.
    """

    def __init__(self) -> None:
        self.shared = np.frombuffer(mmap(-1, 4 * 3), np.int32)
        """[pid of the reading that began last, whether it may end, whether one ended]"""

    @property
    def pid(self) -> int:
        return int(self.shared[0])

    def began(self) -> int:
        wait_until(lambda: self.pid != 0, 60.0, "a reading")
        return self.pid

    def let_end(self) -> None:
        self.shared[1] = 1

    @property
    def ended(self) -> bool:
        return bool(self.shared[2])

    def __call__(self, *_: object, **named: object) -> Reading:
        self.shared[0] = os.getpid()
        wait_until(lambda: bool(self.shared[1]), 60.0, "the leave to end")
        self.shared[2] = 1
        why_not = (EARLY, EARLIER_SENTENCE(str(named["release"])))
        return Reading(flows=(), collectives=(), weights=None, job=None, why_not=why_not)


NOTHING_STAGED = SimpleNamespace(keys=(), only=None)
EARLY, LAST = EARLIER_SENTENCE("too early"), EARLIER_SENTENCE("for good")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    nothing = MergedView(flows=[], messages=[], conflicts=0, unmatched_packets=0, names=[{}])
    monkeypatch.setattr(stream_reading, "read_stream", made)
    monkeypatch.setattr(job_learner, "staged_snapshot_of", lambda extractor, only: NOTHING_STAGED)
    monkeypatch.setattr(stream_reading, "mirror_view", lambda staged: None)
    monkeypatch.setattr(stream_reading, "merge_mirror_points", lambda views: nothing)
    yield made
    made.let_end()


def staged(messages: int) -> list[Any]:
    """An extractor that has staged so many messages."""
    return [SimpleNamespace(staging=SimpleNamespace(completions=messages))]


def gone(pid: int) -> bool:
    """No such process, and nobody has to be told of its end."""
    return process_identity(pid) == "0 0" and not Path(f"/proc/{pid}").exists()


def test_a_forgotten_reading_is_ended(slow: Slow, tmp_path: Path) -> None:
    mine = JobLearner(RunDir(tmp_path))
    assert mine.learn(staged(8), at_once=False) is None
    pid = slow.began()
    assert mine.busy is True
    mine.forget()
    assert mine.busy is False
    assert gone(pid)
    assert not slow.ended


def test_a_reading_that_is_killed_says_so_and_is_done_again(slow: Slow, tmp_path: Path) -> None:
    mine = JobLearner(RunDir(tmp_path))
    mine.learn(staged(8), at_once=False)
    os.kill(slow.began(), signal.SIGKILL)
    assert mine.learn(staged(8), at_once=False, wait_s=LIMIT_S) is None
    assert mine.why_not == (READING_KILLED(9),)
    slow.let_end()
    assert mine.learn(staged(16), at_once=False, wait_s=LIMIT_S) is None
    assert mine.why_not == (EARLY, EARLIER_SENTENCE("None"))


def test_a_reading_that_raises_is_a_fault_of_the_stage(
    slow: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object, **__: object) -> Reading:
        raise ZeroDivisionError("of the reading")

    monkeypatch.setattr(stream_reading, "read_stream", raising)
    mine = JobLearner(RunDir(tmp_path))
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of the reading"):
        mine.learn(staged(8), at_once=False, wait_s=LIMIT_S)


def test_a_reading_ends_with_its_stage(slow: Slow, tmp_path: Path) -> None:
    """A stage that is killed leaves nobody who reads for it."""
    stage = os.fork()
    if not stage:
        JobLearner(RunDir(tmp_path)).learn(staged(8), at_once=False)
        slow.began()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(stage, 0)[1]) == signal.SIGKILL
    wait_until(lambda: process_identity(slow.pid) == "0 0", 60.0, "the end of the reading")
    assert not slow.ended


def test_what_came_is_read_once_more_when_nothing_comes_and_says_so_meanwhile(
    slow: Slow, tmp_path: Path
) -> None:
    """A job that died early sends no message that would make the stream worth another look."""
    run, now_s = RunDir(tmp_path), [100.0]
    run.memory.mkdir()
    mine = JobLearner(run, clock=lambda: now_s[0])
    slow.let_end()

    def look(messages: int, seconds: float) -> bool:
        """Whether anything was read meanwhile."""
        slow.shared[2] = 0
        for _ in range(int(seconds * 10)):
            now_s[0] += 0.1
            mine.learn(staged(messages), at_once=False, wait_s=LIMIT_S)
        return slow.ended

    assert not run.unread.exists()
    assert look(8, 0.1), "the first messages"
    assert run.unread.exists(), "more may come"
    assert not look(9, 4.9), "too few to be worth it"
    assert run.unread.exists()
    assert look(9, 1), "nothing came for five seconds"
    assert not run.unread.exists()
    assert not look(9, 60), "and nothing is read twice"
    assert not look(10, 1) and run.unread.exists()
    assert look(10, 5) and not run.unread.exists()
    mine.learn(staged(64), at_once=False)
    assert run.unread.exists()
    mine.forget()
    assert not run.unread.exists()


def test_what_is_left_is_read_again_where_flows_of_it_were_dropped(
    slow: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a later life, what is staged of its flows is counted: with those that are dropped it may
    become less, though something came."""
    messages, dropped, now_s = [100], iter([4]), [100.0]
    monkeypatch.setattr(job_learner, "completed_messages", lambda *_: messages[0])
    monkeypatch.setattr(job_learner, "ignore_flows", lambda *_: next(dropped, 0))
    mine = JobLearner(RunDir(tmp_path), clock=lambda: now_s[0])
    slow.let_end()

    def look(seconds: float) -> bool:
        """Whether anything was read meanwhile."""
        slow.shared[2] = 0
        for _ in range(int(seconds * 10)):
            now_s[0] += 0.1
            mine.learn(staged(0), at_once=False, only=[{1}], wait_s=LIMIT_S)
        return slow.ended

    assert look(0.1) and mine.take_ignored_flow_count() == 4
    messages[0] = 90
    assert look(6)
    assert not look(60), "and nothing is read twice"


def test_what_a_reading_awaits_is_read_when_it_is_whole_and_hardly_before(
    slow: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = (FlowKey(source="a", destination="b", dest_qp=qp) for qp in (1, 2))

    def awaiting(staged: object, terms: object) -> stream_reading.ReadingOutcome:
        awaited = Awaited(flows=((own, 5),))
        return stream_reading.ReadingOutcome(why_not=(EARLY,), awaited=awaited)

    def reads(whole: int, begun: int, of_others: int) -> bool:
        """Whether so many messages make it read."""
        fields = [("message", [("flow", np.int64)]), ("state", np.uint8), ("completed", np.uint8)]
        records = np.zeros(begun + of_others, np.dtype(fields))
        records["message"]["flow"][begun:] = 1
        records["state"] = records["completed"] = 1
        records["completed"][whole:begun] = 0
        held = np.arange(len(records))
        staging = SimpleNamespace(
            completions=whole + of_others, records=lambda: records, held=lambda: held
        )
        extractor: Any = SimpleNamespace(staging=staging, keys=lambda: [own, other])
        before = mine._read_at
        mine.learn([extractor], at_once=False, wait_s=LIMIT_S)
        return mine._read_at != before

    monkeypatch.setattr(reading_process, "read_staged", awaiting)
    mine = JobLearner(RunDir(tmp_path), clock=lambda: 100.0)
    assert reads(2, 2, 8)
    assert not reads(2, 3, 22), "it came while the reading went on"
    assert not reads(4, 5, 30), "half as many again tell nothing, and it has but begun"
    assert reads(5, 5, 30)
    assert not reads(4, 5, 36)
    assert not reads(4, 5, 46)
    assert reads(4, 5, 66), "a quarter more than foretold, and it did not come"
    assert not reads(4, 5, 72)
    assert reads(4, 5, 136)


def test_the_release_the_job_file_states_reaches_the_reading(slow: Slow, tmp_path: Path) -> None:
    settings = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "nccl": "2.21.5"}
    stage = ExtractService(RunDir(tmp_path), job_from({"source": [{"file": "x"}], **settings}))
    slow.let_end()
    stage._learner.learn(staged(8), at_once=False, wait_s=LIMIT_S)
    assert stage._learner.why_not == (EARLY, EARLIER_SENTENCE(str(NcclEra.V2_20)))


def test_why_no_job_is_learned_is_told_once_it_stood_and_no_oftener(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.learned_folder.mkdir()
    said: list[Finding] = []
    now_s = [100.0]
    mine = LearningStatus(run, said.append, lambda: now_s[0])

    def look(seconds: int, reason: Callable[[int], Finding]) -> int:
        before = len(said)
        for _ in range(seconds * 10):
            now_s[0] += 0.1
            mine.report((reason(int(now_s[0])),))
        return len(said) - before

    assert look(9, lambda _: EARLY) == 0 and unlearned_reasons(run) == []
    assert look(60, lambda _: EARLY) == 1
    assert (said, unlearned_reasons(run)) == (
        [NO_JOB_SO_FAR([EARLY])],
        [EARLY],
    )
    assert look(100, SENDS_UNREAD) in (3, 4), "what changes all the time"
    assert look(5, lambda _: LAST) + look(60, lambda _: LAST) == 1
    assert unlearned_reasons(run) == [LAST]
    run.unlearned.write_text('["for good"]')
    assert unlearned_reasons(run) == [LAST], "as an earlier version wrote it"
    mine.job_learned()
    assert unlearned_reasons(run) == []


def test_the_extractor_tells_why_no_job_is_learned_of_frames_that_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    stage = ExtractService(RunDir(tmp_path), job_from({"source": [{"file": "x"}], **settings}))
    heard: list[Any] = []
    stage._links = SimpleNamespace(report=heard.append)  # type: ignore[assignment]
    commit = ffi.new("struct fc_parse_commit *")
    extracted = ffi.new("struct fc_extract_commit *")
    ring = SimpleNamespace(
        drained=False, tail=0, parse_commit=lambda: commit, extract_commit=lambda: extracted
    )
    handle = SimpleNamespace(header=SimpleNamespace(data_bytes=0))
    staging = SimpleNamespace(completions=0, handle=handle)
    stage._extractors = [
        SimpleNamespace(ring=ring, stalled=False, staging=staging)  # type: ignore[list-item]
    ]
    monkeypatch.setattr(learning_status, "REASON_STABLE_S", 0.0)
    stage._learn(wait_s=0.0)
    assert heard == [], "nothing came: the operator is told of that otherwise"
    ring.tail = 9
    stage._learn(wait_s=0.0)
    stage._learn(wait_s=0.0)
    assert [note.finding for note in heard] == [NO_JOB_SO_FAR([NO_WRITES()])]
    commit.counters.write_frames = 7
    stage._unlearned = LearningStatus(stage._run, heard.append)
    stage._learn(wait_s=0.0)
    stage._learn(wait_s=0.0)
    told = NO_JOB_SO_FAR([NO_WHOLE_WRITES()])
    assert heard[1:] == [told], "writes that came are not denied"


def test_what_a_forgotten_reading_found_is_of_no_reading_after_it(
    slow: Slow, tmp_path: Path
) -> None:
    mine = JobLearner(RunDir(tmp_path))
    mine.learn(staged(8), at_once=False)
    first = slow.began()
    mine.forget()
    slow.shared[0] = 0
    assert mine.learn(staged(8), at_once=False) is None, "a reading of its own, of as many messages"
    assert slow.began() != first and mine.busy
    slow.let_end()
    assert mine.learn(staged(8), at_once=False, wait_s=LIMIT_S) is None
    assert (mine.busy, mine.why_not) == (False, (EARLY, EARLIER_SENTENCE("None")))
