"""Initial weights and an empty shard go from a reading to the learned job's files without
passing the stage."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import pickle
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.chain import wait_until

from flowcheck.atomic_write import temporary_path
from flowcheck.findings.catalog.job_selection_reasons import NOT_THE_BUCKET_PLAN
from flowcheck.plane.shared_memory.shard_size import ShardSize
from flowcheck.stages.extraction import shard_creation
from flowcheck.stages.job_learning import job_learner, proved_job, reading_process
from flowcheck.stages.job_learning.job_learner import JobLearner
from flowcheck.stages.job_learning.proved_job import ProvedJob
from flowcheck.stages.job_learning.reading_process import NOTHING_TO_MAKE, ReadingProcess, ToMake
from flowcheck.stages.job_learning.stream_reading import ReadingOutcome, ReadingTerms
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.wire.learn.reading import Deferred, Put

LIMIT_S = 60.0

WEIGHTS = np.arange(4096, dtype="<f4").view(np.uint8)


def test_the_reading_writes_them_and_the_stage_names_them(tmp_path: Path) -> None:
    file = tmp_path / ".read-weights.bin"
    found = reading_process._with_file(ReadingOutcome(weights=WEIGHTS), file)
    assert found.weights == file and file.stat().st_mode & 0o777 == 0o600
    place = tmp_path / "weights.bin"
    proved_job._link_or_copy(file, place)
    assert place.read_bytes() == WEIGHTS.tobytes()
    assert place.stat().st_ino == file.stat().st_ino, "not copied"


def test_a_file_system_without_links_has_them_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    (tmp_path / "read").write_bytes(WEIGHTS.tobytes())
    proved_job._link_or_copy(tmp_path / "read", tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS.tobytes()


def test_weights_without_room_stay_with_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(reading_process, "write_atomically", full)
    found = reading_process._with_file(ReadingOutcome(weights=WEIGHTS), tmp_path / "file")
    assert found.weights is WEIGHTS


SIZE = ShardSize(1 << 20, 0, 4)


def test_the_shard_that_a_reading_made_is_taken_as_it_is(shm: Path) -> None:
    run = RunDir(shm)
    run.memory.mkdir()
    shard_creation.prepare_shard(run, SIZE)
    made = run.read_shard(SIZE).stat().st_ino
    shard_creation.prepare_shard(run, SIZE)
    assert run.read_shard(SIZE).stat().st_ino == made, "one is there"
    with shard_creation._taken(run, SIZE) as taken:
        assert run.shard.stat().st_ino == made and not run.read_shard(SIZE).exists()
        assert taken.gradient_bytes == 1 << 20 and not taken.gradient(0).any()


@pytest.mark.parametrize("other", [ShardSize(1 << 19, 0, 4), ShardSize(1 << 20, 0, 2)])
def test_a_shard_that_was_made_for_another_job_is_not_taken(other: ShardSize, shm: Path) -> None:
    run = RunDir(shm)
    run.memory.mkdir()
    shard_creation.prepare_shard(run, other)
    made = run.read_shard(other).stat().st_ino
    half_made = temporary_path(run.read_shard(ShardSize(1 << 18, 0, 4)))
    half_made.write_bytes(b"of a reading that was killed")
    with shard_creation._taken(run, SIZE) as taken:
        assert run.shard.stat().st_ino != made
        assert (taken.gradient_bytes, taken.unit_bytes) == (1 << 20, 4)
    assert list(run.memory.iterdir()) == [run.shard], "its room is free again"


SOURCE = b"source of the weights"
FOUND = ReadingOutcome(weights_source=SOURCE, shard=SIZE, why_not=(NOT_THE_BUCKET_PLAN(),))


class Behind:
    """A reading whose outcome asks for weights and a shard, and what making them does."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path = tmp_path
        self.may_end = np.frombuffer(mmap.mmap(-1, 4), np.int32)
        self.sound, self.error = True, None
        monkeypatch.setattr(reading_process, "read_staged", lambda staged, terms: self.found())

    def found(self) -> ReadingOutcome:
        deferred = Deferred(len(WEIGHTS), self.give, lambda: SOURCE)
        return dataclasses.replace(FOUND, deferred=deferred)

    def give(self, put: Put) -> bool:
        put(0, WEIGHTS[:5000])
        wait_until(lambda: bool(self.may_end[0]), 60.0, "the leave to end")
        if self.error is not None:
            raise self.error
        put(5000, WEIGHTS[5000:])
        return self.sound

    def file(self, source: bytes | None) -> Path:
        return self.tmp_path / ("at-once" if source is None else source.decode())

    def begin(self, by_another: ToMake = NOTHING_TO_MAKE) -> ReadingProcess:
        made = self.tmp_path / "shard"
        return ReadingProcess(
            (),
            ReadingTerms(),
            weights_file=self.file,
            made_by_another=by_another,
            prepare=lambda size: made.write_text(repr(tuple(size))),
        )

    def told(self, **given: Any) -> ReadingProcess:
        """A reading that told its outcome and goes on."""
        reading = self.begin(**given)
        assert reading.wait(LIMIT_S)
        found, _ = reading.outcome()
        assert (found.goes_on, found.weights_source, found.why_not) == (
            True,
            SOURCE,
            FOUND.why_not,
        )
        return reading


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    made = Behind(tmp_path, monkeypatch)
    yield made
    made.may_end[0] = 1


def test_the_outcome_is_told_before_the_weights_are_made(behind: Behind) -> None:
    reading = behind.told()
    assert reading.made(0.0) is None
    assert not behind.file(SOURCE).exists(), "nothing half made has their name"
    behind.may_end[0] = 1
    assert reading.made(LIMIT_S) is True and reading.made(0.0) is True
    assert behind.file(SOURCE).read_bytes() == WEIGHTS.tobytes()
    assert behind.file(SOURCE).stat().st_mode & 0o777 == 0o600
    assert (behind.tmp_path / "shard").read_text() == repr(tuple(SIZE))


def test_what_another_reading_makes_is_not_made_again(behind: Behind) -> None:
    reading = behind.begin(ToMake(SOURCE, SIZE))
    assert reading.wait(LIMIT_S)
    found, _ = reading.outcome()
    assert not found.goes_on and found.weights_source == SOURCE
    reading = behind.begin(ToMake(SOURCE, ShardSize(8, 0, 4)))
    assert reading.wait(LIMIT_S) and reading.outcome()[0].goes_on
    assert reading.made(LIMIT_S) is True, "a shard of another size alone"
    assert not behind.file(SOURCE).exists() and (behind.tmp_path / "shard").exists()


def test_weights_of_which_copies_differ_get_no_name(behind: Behind) -> None:
    behind.sound, behind.may_end[0] = False, 1
    assert behind.told().made(LIMIT_S) is False
    assert [path.name for path in behind.tmp_path.iterdir()] == []


def test_weights_without_room_are_not_made(behind: Behind) -> None:
    behind.error, behind.may_end[0] = OSError(errno.ENOSPC, "no room"), 1
    assert behind.told().made(LIMIT_S) is False
    assert [path.name for path in behind.tmp_path.iterdir()] == []


def test_a_maker_that_is_killed_made_nothing(behind: Behind) -> None:
    reading = behind.told()
    os.kill(reading._pid, signal.SIGKILL)
    assert reading.made(LIMIT_S) is False
    assert not behind.file(SOURCE).exists()


def test_a_maker_that_raises_is_a_fault_of_the_stage(behind: Behind) -> None:
    behind.error, behind.may_end[0] = ZeroDivisionError("of the maker"), 1
    reading = behind.told()
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of the maker"):
        reading.made(LIMIT_S)


@pytest.fixture
def learner(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> JobLearner:
    nothing = SimpleNamespace(keys=(), only=None)
    monkeypatch.setattr(job_learner, "staged_snapshot_of", lambda extractor, only: nothing)
    run = RunDir(behind.tmp_path)
    run.learned_folder.mkdir()
    run.memory.mkdir()
    monkeypatch.setattr(job_learner, "PAUSE_PER_READING_TIME", 0)
    return JobLearner(run, prepare=lambda size: None)


def grown(learner: JobLearner, messages: int) -> ProvedJob | None:
    """What a look tells when so many messages are there."""
    extractor: Any = SimpleNamespace(staging=SimpleNamespace(completions=messages))
    return learner.learn([extractor], at_once=False, wait_s=LIMIT_S)


def test_weights_are_made_while_the_job_is_not_told_and_are_its(
    learner: JobLearner, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grown(learner, 64) is None and not learner.busy
    assert learner.why_not == FOUND.why_not
    job: Any = SimpleNamespace(awaits_base=False)
    told = dataclasses.replace(behind.found(), job=None, why_not=())
    monkeypatch.setattr(behind, "found", lambda: told)
    monkeypatch.setattr(
        reading_process.pickle, "load", lambda file, load=pickle.load: _with_job(load(file), job)
    )
    assert grown(learner, 128) is None and learner.busy, "its weights are still being made"
    behind.may_end[0] = 1
    wait_until(lambda: (proof := grown(learner, 129)) is not None and _keep(proof), 60.0, "it")
    proof = KEPT.pop()
    assert isinstance(proof.weights, Path)
    assert proof.weights.read_bytes() == WEIGHTS.tobytes() and not learner.busy


KEPT: list[ProvedJob] = []


def _keep(proof: ProvedJob) -> bool:
    KEPT.append(proof)
    return True


def _with_job(found: ReadingOutcome, job: Any) -> ReadingOutcome:
    return dataclasses.replace(found, job=job)


def test_weights_of_another_source_take_their_place(
    learner: JobLearner, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that a later reading tells are being written while the ones before are dropped."""
    assert grown(learner, 64) is None
    job: Any = SimpleNamespace(awaits_base=False)
    told = dataclasses.replace(behind.found(), weights_source=b"of the job")
    monkeypatch.setattr(behind, "found", lambda: told)
    monkeypatch.setattr(
        reading_process.pickle, "load", lambda file, load=pickle.load: _with_job(load(file), job)
    )
    wait = ReadingProcess.wait

    def waits_until_they_are_written(reading: ReadingProcess, limit_s: float) -> bool:
        behind.may_end[0] = 1
        place = learner._run.read_weights(b"of the job")
        wait_until(place.exists, 60.0, "the weights of the job")
        return wait(reading, limit_s)

    monkeypatch.setattr(ReadingProcess, "wait", waits_until_they_are_written)
    proofs: list[ProvedJob | None] = [grown(learner, 128)]
    wait_until(lambda: proofs.append(grown(learner, 129)) or proofs[-1] is not None, 60.0, "it")
    proof = next(one for one in proofs if one is not None)
    assert isinstance(proof.weights, Path) and proof.weights.read_bytes() == WEIGHTS.tobytes()
    assert list(learner._run.learned_folder.glob(".*")) == [proof.weights]


def test_weights_that_cannot_be_made_are_put_together_by_the_next_reading(
    learner: JobLearner, behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms: list[bool] = []
    monkeypatch.setattr(
        job_learner,
        "ReadingTerms",
        lambda **given: (terms.append(given["weights_at_once"]), ReadingTerms(**given))[1],
    )
    job: Any = SimpleNamespace(awaits_base=False)
    monkeypatch.setattr(
        reading_process.pickle, "load", lambda file, load=pickle.load: _with_job(load(file), job)
    )
    behind.sound, behind.may_end[0] = False, 1
    messages = count(64)

    def read_again() -> bool:
        assert grown(learner, next(messages)) is None
        return len(terms) >= 2

    wait_until(read_again, 60.0, "the next reading")
    assert terms[:2] == [False, True]
