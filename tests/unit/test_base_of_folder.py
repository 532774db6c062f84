"""A job that was joined midstream gets its base from the files of a watched folder, without a
command. Judged by torch's own optimizer, whose checkpoints these are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch
from support.incarnations import JOB, Life
from support.lives import Both
from test_base_command import lines
from test_late_join import _frames_before, known, life, play, trained  # noqa: F401

from flowcheck.config import AuditConfig, encode_config
from flowcheck.errors import StateError
from flowcheck.findings.catalog import base_checkpoints as findings
from flowcheck.findings.catalog.run_directories import REQUEST_WITHDRAWN
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch import base_search, watch_loop
from flowcheck.ops.trainer_checkpoint.audit_watch.audit_watch_command import exit_code_of
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import Candidate
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import MayBeBase, named_step
from flowcheck.ops.trainer_checkpoint.audit_watch.watch_loop import FolderWatch
from flowcheck.ops.trainer_checkpoint.base_proof import LogPosition
from flowcheck.ops.watch.state.job_reader import JobReader
from flowcheck.stages.chain_events.event_recorder import EventRecorder
from flowcheck.stages.job_state.audited_files import AuditedFile
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import SUPERVISOR
from flowcheck.wire.training_job.learned_job import LearnedJob

Attempts = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """(base, later file) of each attempt; nothing is slow here, so that none has to wait."""
    made: Attempts = []
    apply = base_search.apply_base

    def counted(where: RunDir, file: Path, place: LogPosition) -> object:
        assert place.later_checkpoint is not None
        made.append((file.name, place.later_checkpoint.name))
        return apply(where, file, place)

    monkeypatch.setattr(base_search, "apply_base", counted)
    monkeypatch.setattr(base_search, "SEARCH_SHARE", 0)
    return made


class Joined:
    """A chain that saw a job from its third step on, and the watch of a folder."""

    def __init__(self, both: Both, folder: Path) -> None:
        self.both, self.run, self.folder = both, both.chain.run, folder
        folder.mkdir()
        self.told: list[AuditedFile] = []
        settings = AuditConfig(folder=str(folder), interval_s=0.01)
        config = msgspec.structs.replace(both.config, audit=settings)
        self.run.config.write_bytes(encode_config(config))
        self.watch = FolderWatch(self.run, settings, self.told.append, lambda _: None)
        self.watch.begin()
        self.config = config

    def look(self, times: int = 3) -> None:
        """Looks at the folder, while the stages work on what came."""

        with ThreadPoolExecutor(1) as pool:
            looks = pool.submit(lambda: [self.watch.turn() for _ in range(times)])
            while not looks.done():
                self.both.drive(looks.done, frames=0)
        looks.result()

    def last(self) -> dict[str, tuple[str, str]]:
        """{file: (outcome, first reason)}"""
        return {
            Path(one.file).name: (one.outcome.value, one.why[0].code if one.why else "")
            for one in self.told
        }

    def search(self) -> list[Finding]:
        return list(JobReader(self.run, 1, "job").read(self.config, 1, 0).base_search)


@pytest.fixture
def joined(
    play: Callable[..., Both],  # noqa: F811
    life: Life,  # noqa: F811
    known: LearnedJob,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Joined]:
    lives = dict.fromkeys(("update", SUPERVISOR.name), os.getpid())
    monkeypatch.setattr(RunDir, "stage_pids", lambda _: lives)
    yield Joined(play(life.frames_of()[_frames_before(life, 2) :], known), tmp_path / "runs")


def test_a_job_that_was_joined_late_starts_from_the_files_of_a_watched_folder(
    joined: Joined,
    life: Life,  # noqa: F811
    tmp_path: Path,
    attempts: Attempts,
) -> None:
    wanted, files = trained(life, tmp_path, (1, 4, 6, 8))
    both, folder = joined.both, joined.folder
    shutil.copy(files[1], folder / "step-1.pt")
    joined.look()
    assert joined.last() == {}, "the job is not learned yet"
    both.drive(until=lambda: both.applied_iteration() >= 2)
    assert joined.search() == [findings.NO_FILE_FOR_BASE(str(folder))]
    joined.look()
    assert joined.last() == {"step-1.pt": ("waiting", "base.awaits_later_file")}
    shutil.copy(files[4], folder / "step-4.pt")
    joined.look()
    assert joined.last()["step-1.pt"] == ("waiting", "base.tried_so_far")
    joined.look(6)
    assert attempts == [("step-1.pt", "step-4.pt")], "the same files are not read at each look"
    [search] = joined.search()
    assert search.arguments["file"] == f"{folder}/step-4.pt"

    both.update = both._again(both.update, both._update)
    both.drive(until=lambda: both.applied_iteration() >= 4)
    shutil.copy(files[6], folder / "step-6.pt")
    joined.look()
    assert joined.last()["step-4.pt"] == ("base", "base.leads_to_later_file")
    assert exit_code_of(joined.watch.taken) == 0
    both.drive()
    told = lines(both)
    assert [line["step"] for line in told] == list(range(4, JOB.steps + 1))
    assert [line["parameters_sha256"] for line in told] == wanted[3:]
    shutil.copy(files[8], folder / "step-8.pt")
    joined.look(4)
    assert {name: outcome for name, (outcome, _) in joined.last().items()} == {
        "step-1.pt": "not_compared",
        "step-4.pt": "base",
        "step-6.pt": "equal",
        "step-8.pt": "equal",
    }
    [search] = joined.search()
    assert search.is_any_of(findings.BASE_OF_FOLDER)
    assert search.arguments["file"] == f"{folder}/step-4.pt"
    recorder = EventRecorder(joined.run, joined.config)
    recorder._look_at_files()
    assert search.code in joined.run.events.read_text()


class Stubbed:
    """A watch of files that may all be the base of one job, whose log holds `logged` steps."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.logged, self.awaits = folder / "runs", 20, True
        self.refusals: dict[tuple[str, str], Finding] = {}
        self.folder.mkdir()
        (folder / "run").mkdir(mode=0o700)
        self.where = RunDir(folder / "run")
        self.read: list[str] = []

        def audit(where: RunDir, folder: Path, one: Candidate, _: object) -> MayBeBase:
            self.read.append(one.path.name)
            step = named_step(one.path, folder)
            assert step is not None
            return MayBeBase(one, step, (where,), None)

        def refuse(_: RunDir, file: Path, place: LogPosition) -> object:
            assert place.later_checkpoint is not None
            pair = file.name, place.later_checkpoint.name
            self.attempts.append(pair)
            raise StateError(self.refusals.get(pair, findings.NO_PLACE(step=1, later=2)))

        self.attempts: Attempts = []
        monkeypatch.setattr(watch_loop, "audit_file", audit)
        monkeypatch.setattr(base_search, "apply_base", refuse)
        monkeypatch.setattr(base_search, "_awaits", lambda _: self.awaits)
        monkeypatch.setattr(base_search, "_log_of", lambda _: (1, 1, self.logged))
        self.watch = self.begun()

    def begun(self) -> FolderWatch:
        settings = AuditConfig(folder=str(self.folder), interval_s=0.01, wait_s=0.01)
        watch = FolderWatch(self.where, settings, lambda _: None, lambda _: None)
        watch.begin(since_ns=0)
        return watch

    def look(self, *names: str, times: int = 4) -> None:
        for name in names:
            torch.save(0, self.folder / name)
        for _ in range(times):
            self.watch.turn()

    def reasons(self) -> dict[str, str]:
        return {Path(one.file).name: one.why[0].code for one in self.watch.taken}


@pytest.fixture
def stubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubbed:
    return Stubbed(tmp_path, monkeypatch)


def test_a_refused_pair_is_tried_again_only_as_the_log_grows_and_then_given_up(
    stubbed: Stubbed,
) -> None:
    pair = ("step-10.pt", "step-20.pt")
    stubbed.look(*pair)
    stubbed.look()
    assert stubbed.attempts == [pair]
    for grown, made in ((1, 1), (1, 2), (5, 2), (1, 3)):
        stubbed.logged += grown
        stubbed.look()
        assert stubbed.attempts == [pair] * made
    assert stubbed.reasons() == {"step-10.pt": "base.not_the_base"}
    stubbed.refusals["step-20.pt", "step-30.pt"] = findings.SEVERAL_PLACES(
        places=2, step=20, later=30
    )
    stubbed.look("step-30.pt")
    assert stubbed.attempts[3:] == [("step-20.pt", "step-30.pt")], "more steps tell no less"
    stubbed.logged = 5
    stubbed.look("step-60.pt")
    assert len(stubbed.attempts) == 4, "fewer steps are logged than lie between the two"
    told = {Path(one.file).name: one.why[0].arguments["why"] for one in stubbed.watch.taken}
    assert isinstance(told["step-30.pt"], Finding)
    assert told["step-30.pt"].is_any_of(findings.LOG_BEGINS_BEHIND)
    assert sorted(stubbed.read) == sorted([*pair, "step-30.pt", "step-60.pt"]), "each once"


def test_files_wait_without_a_limit_and_go_over_to_the_next_watch(stubbed: Stubbed) -> None:
    pair = ("step-10.pt", "step-20.pt")
    stubbed.refusals[pair] = REQUEST_WITHDRAWN(run=stubbed.where.root, file="x", seconds=60.0)
    stubbed.look(*pair, times=3)
    stubbed.look(times=5)
    assert len(stubbed.attempts) > 3 and not stubbed.watch.taken, "no fault of the files"
    for _ in range(watch_loop.DEATHS_MAX):  # a killed watch
        stubbed.watch = stubbed.begun()
        stubbed.look()
    assert not stubbed.watch.taken
    stubbed.watch.end(0.01)
    assert set(stubbed.reasons().values()) == {"base.still_missing"}
    assert exit_code_of(stubbed.watch.taken) == 3
    stubbed.watch = stubbed.begun()
    made = len(stubbed.attempts)
    stubbed.look()
    assert stubbed.attempts[made:] and not stubbed.watch.taken
    stubbed.read.clear()
    stubbed.awaits = False
    stubbed.look(times=2)
    assert sorted(stubbed.read)[:2] == sorted(pair), "by hand it got one: all are compared now"


def test_files_are_paired_by_their_names(stubbed: Stubbed) -> None:
    for name in ("other-step-15.pt", "own-epoch=1-step=10.pt", "own-epoch=2-step=20.pt"):
        stubbed.look(name)
    assert stubbed.attempts[0] == ("own-epoch=1-step=10.pt", "other-step-15.pt"), "none is alike"
    assert stubbed.attempts[1] == ("own-epoch=1-step=10.pt", "own-epoch=2-step=20.pt")
    assert not stubbed.watch.taken
    stubbed.logged += 8
    stubbed.look(times=8)
    stubbed.look("other-step-25.pt")
    assert stubbed.attempts[-1] == ("other-step-15.pt", "other-step-25.pt")


def test_no_more_files_wait_than_can_be_tried(
    stubbed: Stubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_search, "FILES_MAX", 3)
    stubbed.look(*(f"{name}-step-10.pt" for name in "abcde"))
    assert sorted(stubbed.reasons().values()) == ["base.not_tried"] * 2
