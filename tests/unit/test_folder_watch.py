"""The loop of a watched folder: what is taken when, once, and what is given up; without a chain."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from support.refused_as import refused_as
from support.trainer_folders import trainer_folder

from flowcheck.config import AuditConfig
from flowcheck.errors import ConfigError, RunDirError
from flowcheck.findings.catalog.file_audits import WATCHED_IS_FILE
from flowcheck.findings.finding import Finding
from flowcheck.ops.trainer_checkpoint.audit_watch import watch_loop
from flowcheck.ops.trainer_checkpoint.audit_watch.audit_watch_command import exit_code_of, run
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import Candidate
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import NotYet, file_line
from flowcheck.ops.trainer_checkpoint.audit_watch.file_heal import FileHeal
from flowcheck.ops.trainer_checkpoint.audit_watch.watch_loop import FolderWatch
from flowcheck.stages.job_state.audited_files import (
    AuditedFile,
    FileOutcome,
    read_audited_files,
)
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

Watched = Callable[..., FolderWatch]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Makes watches of tmp_path/runs; every file that is taken counts as equal at step 1, but one
    that is named "ahead"."""
    (tmp_path / "run").mkdir(mode=0o700)

    def audit(_: RunDir, folder: Path, one: Candidate, __: object) -> AuditedFile | NotYet:
        if "ahead" in one.path.name:
            return NotYet(Step(9), 4)
        why = Finding("test.equal")
        return file_line(folder, one, why, step=Step(1), outcome=FileOutcome.EQUAL)

    monkeypatch.setattr(watch_loop, "audit_file", audit)

    def make(**settings: float) -> FolderWatch:
        config = AuditConfig(folder=str(tmp_path / "runs"), interval_s=0.01, **settings)
        return FolderWatch(RunDir(tmp_path / "run"), config, lambda _: None, warned.append)

    warned: list[Finding] = []
    return make


def save(file: Path) -> Path:
    file.parent.mkdir(exist_ok=True)
    torch.save({"w": torch.arange(9.0)}, file)
    return file


def names(watch: FolderWatch) -> list[tuple[str, str]]:
    return [(Path(one.file).name, one.outcome.value) for one in watch.taken]


def test_a_folder_that_comes_later_and_each_content_of_a_name_once(
    watched: Watched, tmp_path: Path
) -> None:
    watch = watched()
    watch.begin()
    watch.turn()
    file = save(tmp_path / "runs/step-1.pt")
    watch.turn()
    assert not watch.taken, "it is not known yet whether it stands still"
    for _ in range(3):
        watch.turn()
    assert names(watch) == [("step-1.pt", "equal")]
    file.rename(file.with_name("step-2.pt.tmp"))
    save(file)
    for _ in range(3):
        watch.turn()
    assert names(watch)[1:] == [("step-1.pt", "equal")], "another content of the same name"
    assert exit_code_of(watch.taken) == 0


def test_what_was_there_before_is_listed_and_a_later_watch_goes_on(
    watched: Watched, tmp_path: Path
) -> None:
    save(tmp_path / "runs/step-1.pt")
    (tmp_path / "runs/notes").write_text("no checkpoint")
    first = watched()
    first.begin()
    first.end(0.05)
    assert names(first) == [("step-1.pt", "not_compared")]
    assert exit_code_of(first.taken) == 3, "nothing was compared"
    save(tmp_path / "runs/step-2.pt")
    second = watched()
    second.begin()
    second.end(0.5)
    assert names(second) == [("step-2.pt", "equal")], "it came while no watch ran"
    third = watched(existing=True)
    third.begin()
    third.end(0.5)
    assert names(third) == [("step-1.pt", "equal")]


def test_torn_early_and_vanished_files_are_no_pass(watched: Watched, tmp_path: Path) -> None:
    watch = watched()
    watch.begin()
    torn = save(tmp_path / "runs/step-1.pt")
    torn.write_bytes(torn.read_bytes()[:300])
    save(tmp_path / "runs/ahead.pt")
    gone = save(tmp_path / "runs/step-3.pt")
    watch.turn()
    gone.unlink()
    watch.end(0.2)
    told = {Path(one.file).name: one.why[0].code for one in watch.taken}
    assert told == {
        "step-1.pt": "audit.not_whole",
        "ahead.pt": "audit.step_not_reached",
        "step-3.pt": "audit.vanished",
    }
    assert exit_code_of(watch.taken) == 3


def test_a_file_that_kills_the_watch_is_left_out(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def dies(*_: object) -> AuditedFile:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(watch_loop, "audit_file", dies)
        for _ in range(2):
            watch = watched()
            watch.begin(since_ns=0)
            save(tmp_path / "runs/step-1.pt") if not watch.where.audit_files.exists() else None
            with pytest.raises(Killed):
                watch.end(5)
    last = watched()
    last.begin(since_ns=0)
    last.end(0.05)
    (one,) = last.taken
    assert one.why[0].code == "audit.killed_the_watch"
    outcomes = [line.outcome.value for line in read_audited_files(last.where)]
    assert outcomes == ["reading", "reading", "not_compared"]


class Heal(FileHeal):
    """A file's values, for which the updater has time at the third look."""

    def __init__(self, where: RunDir, line: AuditedFile, turns: int) -> None:
        super().__init__(where, line, None, None, 1)  # type: ignore[arg-type]
        self.__dict__["left"] = turns

    def attempt(self) -> AuditedFile | None:
        self.__dict__["left"] -= 1
        done = msgspec.structs.replace(self.line, healed_elements=5)
        return done if self.__dict__["left"] < 0 else None


def test_values_wait_while_the_updater_takes_another_request(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited: list[str] = []

    def audit(where: RunDir, folder: Path, one: Candidate, __: object) -> FileHeal:
        audited.append(one.path.name)
        line = file_line(folder, one, step=Step(1), outcome=FileOutcome.EQUAL)
        return Heal(where, line, 2 if "some" in one.path.name else 10**6)

    monkeypatch.setattr(watch_loop, "audit_file", audit)
    watch = watched()
    watch.begin()
    some, never = save(tmp_path / "runs/some.pt"), save(tmp_path / "runs/never.pt")
    watch.turn()
    watch.turn()
    assert sorted(audited) == ["never.pt", "some.pt"] and not watch.taken
    some.unlink()
    save(never.with_name("never.tmp")).rename(never)
    watch.turn()
    watch.turn()
    assert [(Path(one.file).name, one.healed_elements) for one in watch.taken] == [("some.pt", 5)]
    assert sorted(audited) == ["never.pt", "never.pt", "some.pt"], "another content, once"
    watch.end(0.05)
    assert sorted(audited) == ["never.pt", "never.pt", "some.pt"]
    left = [one for one in watch.taken if "never" in one.file]
    reasons = [one.heal.arguments["reason"].code for one in left if one.heal is not None]
    assert reasons == ["lifecycle.another_request"] * 2
    assert exit_code_of(watch.taken) == 0


def test_a_folder_is_taken_once_it_is_whole_and_not_again_while_it_is_removed(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def audit(_: RunDir, folder: Path, one: Candidate, __: object) -> AuditedFile | NotYet:
        asked.append(len(one.parts))
        if one.path.name == "checkpoint-2":
            shutil.rmtree(one.path)  # as save_total_limit does
            return NotYet()
        if len(one.parts) < 6:  # as the reader finds, which knows what is missing
            return NotYet(lacks=Finding("test.lacks"))
        return file_line(folder, one, step=Step(1), outcome=FileOutcome.EQUAL)

    monkeypatch.setattr(watch_loop, "audit_file", audit)
    watch, model = watched(), {"w": torch.arange(9.0)}
    watch.begin()
    place = tmp_path / "runs/checkpoint-1"
    for _ in trainer_folder(place, model, {}, 1):
        watch.turn()
    (place / "rng_state.pth").unlink()
    for _ in range(3):
        watch.turn()
    assert not watch.taken and not asked, "it may be removed in this moment"
    torch.save({}, place / "rng_state.pth")
    (place / "config.json").unlink()
    for _ in range(4):
        watch.turn()
    assert not watch.taken and asked == [5], "what its reader misses is asked for once"
    (place / "config.json").write_text("{}")
    for _ in range(3):
        watch.turn()
    assert names(watch) == [("checkpoint-1", "equal")] and asked == [5, 6]
    for file in sorted(place.iterdir()):
        file.unlink()
        watch.turn()
        watch.turn()
    list(trainer_folder(tmp_path / "runs/checkpoint-2", model, {}, 2))
    for _ in range(3):
        watch.turn()
    assert names(watch)[1:] == [("checkpoint-2", "not_compared")]
    assert watch.taken[1].why[0].code == "audit.vanished"
    list(trainer_folder(tmp_path / "runs/checkpoint-3", model, {}, 3))
    (tmp_path / "runs/checkpoint-3/trainer_state.json").unlink()
    watch.end(0.1)
    [why] = watch.taken[2].why
    assert why.arguments["why"].code == "audit.no_last_file"


def test_a_watch_of_no_run_or_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "one.pt")
    with pytest.raises(RunDirError):
        run(tmp_path / "none", AuditConfig(folder=str(tmp_path)), None, as_json=True)
    monkeypatch.setattr(RunDir, "settings", lambda _: SimpleNamespace(audit=None, all_shards=False))
    with refused_as(WATCHED_IS_FILE, kind=ConfigError):
        run(tmp_path, AuditConfig(folder=str(tmp_path / "one.pt")), None, as_json=True)
