"""Steps behind a saved checkpoint come again from the folder of gradients after the chain's memory
is gone. Judged by torch's own optimizer in the trainer."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.lives import Both, Deaths
from support.refused_as import refused_as
from support.steps import ADAMW, layout_of, made
from test_replica_reset import play, trained

from flowcheck.config import job_from
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import GRADIENTS_OF_A_SAVE
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEHIND,
    JOURNAL_DIFFERS,
    JOURNAL_ENDS,
    JOURNAL_FOLDER_UNREADABLE,
    JOURNAL_GAP,
    JOURNAL_GOES_ON,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_LEFT_WAITING,
    JOURNAL_NO_ROOM,
    JOURNAL_REPLACED,
    JOURNAL_STOPPED,
    JOURNAL_TOO_SMALL,
    JOURNAL_UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import FoundStep, found_step, newest_step
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.checkpoint_files.direct_io import DirectFile
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import PARAMETERS
from flowcheck.replica.state_digest import sha256
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.replica.step_journal import journal_writer
from flowcheck.replica.step_journal.journal_figures import read_figures
from flowcheck.replica.step_journal.journal_folder import SEGMENTS_LEAST, JournalFolder
from flowcheck.replica.step_journal.journal_reader import journals_below
from flowcheck.replica.step_journal.journal_records import JournalLine
from flowcheck.replica.step_journal.waiting_entries import WaitingEntries
from flowcheck.replica.step_journal.waiting_sizes import SLOTS_MOST
from flowcheck.replica.taint import TaintLog
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.step_numbers import Step

__all__ = ["play"]

SAVED, STEPS = 3, 8
MIB = 1 << 20
LOST = (8, 72)
"""Bytes of a gradient."""


def saved(both: Both, folder: Path) -> None:
    found = newest_step(both.chain.run, settle=False)
    save_trainer_state(trainer_state(found.snapshot), folder, found.snapshot.layout)


def again(folder: Path, step: int | None = None, *, tainted: bool = False) -> FoundStep:
    source = StepSource(
        checkpoint=folder / "saved",
        gradients=folder / "kept",
        step=None if step is None else Step(step),
        allow_tainted=tainted,
    )
    with found_step(source, in_place=True) as found:
        return found


def parameters_sha256(found: FoundStep) -> str:
    layout = found.snapshot.layout
    values = [p.reshape(-1).numpy() for p in found.snapshot.parameters.values()]
    assert len(values) == len(layout.parameters)
    return sha256(np.concatenate(values))


class MoreDeaths(Deaths):
    """At what the journal does too."""

    CHANGES = (*Deaths.CHANGES, (StateFile, "_commit"), (WaitingEntries, "put"))


@pytest.mark.parametrize("kills", [False, True])
def test_every_step_behind_a_save_comes_again_as_the_trainer_had_it(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    frames, wanted, _ = trained(tmp_path, unseen=False)
    both = play(frames, gradient_log={"folder": str(tmp_path / "kept"), "folder_bytes": 64 * MIB})
    both.drive(until=lambda: both.applied_iteration() >= SAVED)
    saved(both, tmp_path / "saved")
    deaths = MoreDeaths(monkeypatch) if kills else None
    if deaths is not None:
        deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    if deaths is not None:
        deaths.begun = False
        assert deaths.count > 8
    both.update.stop()
    assert parameters_sha256(again(tmp_path)) == wanted[-1]
    for step in range(SAVED, len(wanted) + 1):
        found = again(tmp_path, step)
        assert found.snapshot.step == step
        assert parameters_sha256(found) == wanted[step - 1]
    with refused_as(JOURNAL_ENDS, last=len(wanted)):
        again(tmp_path, len(wanted) + 1)


@pytest.fixture(autouse=True)
def _disk_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(journal_writer, "CLOSE_S", 60.0)


@pytest.fixture
def told() -> list[Finding]:
    return []


def journal_of(folder: Path, told: list[Finding], replica: Replica, size_bytes: int) -> KeptSteps:
    """That observes the replica, as the updater has it."""
    run = SimpleNamespace(waiting_steps=folder / "waiting", kept_steps=folder / "kept-steps.json")
    log = {"folder": str(folder / "kept"), "folder_bytes": size_bytes}
    optimizer = {"name": "adamw", "learning_rate": 1e-2}
    source = [{"file": "0"}]
    config = job_from({"source": source, "optimizer": optimizer, "gradient_log": log})

    def say(found: Finding | None) -> None:
        if found is not None:
            told.append(found)

    return KeptSteps(cast("Any", run), config, replica, say, gathered=False)


class Kept:
    """A replica in which some steps lack bytes, with a save at SAVED and a journal; and torch."""

    def __init__(self, folder: Path, told: list[Finding], size_bytes: int = 64 * MIB) -> None:
        self.folder, self.told, self.size_bytes = folder, told, size_bytes
        self.net, self.optimizer = made()
        layout = layout_of(self.net)
        weights = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
        self.replica = Replica.create(folder / "replica", layout, ADAMW, weights)
        self.journal = journal_of(folder, told, self.replica, size_bytes)

    def steps(self, first: int, last: int, lossy: int = 0, *, hasty: bool = False) -> None:
        """hasty: faster than the disk, if need be."""
        for step in range(first, last + 1):
            if not hasty:
                self.wait_for_disk()
            flat, missing = self.gradient(step), [LOST] if step == lossy else []
            if missing:
                flat[LOST[0] // 4 : LOST[1] // 4] = 0
            self.journal.before_step(flat, None)
            self.replica.apply(Step(step), flat, missing=missing)
            flat[:] = np.nan  # its memory is another step's from here on
            if step == SAVED:
                found = copy_snapshot(self.replica.path, ADAMW)
                save_trainer_state(trainer_state(found), self.folder / "saved", found.layout)

    def gradient(self, step: int) -> np.ndarray:
        """Of the step, which torch takes."""
        torch.manual_seed(step)
        for p in self.net.parameters():
            p.grad = torch.randn_like(p)
        self.optimizer.step()
        return torch.cat([p.grad.reshape(-1) for p in self.net.parameters()]).numpy()

    def heal(self, whole: Replica) -> None:
        elements = self.replica.tainted_ranges
        patch = patch_of_sections(whole.description, whole.sections(), elements)
        self.replica.heal(self.replica.step, patch)

    def again(self) -> None:
        """The updater starts again."""
        self.journal.close()
        self.journal = journal_of(self.folder, self.told, self.replica, self.size_bytes)

    def wait_for_disk(self) -> None:
        """Until nothing waits for it any more."""
        journal = self.journal._journal
        assert journal is not None
        waiting, until_s = journal._waiting, time.monotonic() + 60
        while waiting is not None and waiting.waiting():
            assert time.monotonic() < until_s
            threading.Event().wait(0.001)

    def written(self) -> None:
        """Everything that waits is on the disk, and the updater has told what it has to."""
        self.journal.close()

    def is_torchs(self, found: FoundStep) -> bool:
        own = dict(self.net.named_parameters())
        held = found.snapshot.parameters
        return all(torch.equal(held[name], p.detach()) for name, p in own.items())

    def close(self) -> None:
        self.journal.close()
        self.replica.close()


@pytest.fixture
def kept(tmp_path: Path, told: list[Finding]) -> Iterator[Kept]:
    made_now = Kept(tmp_path, told)
    yield made_now
    made_now.close()


def test_tainted_steps_are_given_only_if_allowed_and_healed_ones_are_exact(
    kept: Kept, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    whole = Kept(tmp_path / "other", [])
    whole.steps(1, 6)
    kept.steps(1, 6, lossy=5)
    kept.again()
    assert again(tmp_path).snapshot.step == 4, "the newest exact one"
    assert again(tmp_path, tainted=True).snapshot.tainted
    kept.heal(whole.replica)
    kept.steps(7, STEPS)
    kept.written()
    found = again(tmp_path)
    assert found.snapshot.step == STEPS
    assert not found.snapshot.tainted
    assert kept.is_torchs(found)
    whole.close()


class Killed(BaseException):
    """What kill -9 leaves is what lies in shared memory and on the disk."""


@pytest.mark.parametrize("at", ["told", "published", "tainted"])
@pytest.mark.parametrize("what", ["step", "healing"])
def test_a_kill_at_any_point_of_a_change_breaks_no_chain(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, at: str
) -> None:
    (tmp_path / "other").mkdir()
    whole = Kept(tmp_path / "other", [])
    whole.steps(1, 6)
    kept.steps(1, 5, lossy=5)
    if what == "healing":
        kept.steps(6, 6)
    sixth = None if what == "healing" else kept.gradient(6)

    def change() -> None:
        if sixth is None:
            kept.heal(whole.replica)
            return
        kept.journal.before_step(sixth, None)
        if kept.replica.step < 6:  # else the updater knows that it has it
            kept.replica.apply(Step(6), sixth)

    owner, name = {
        "told": (StateFile, "_commit"),
        "published": (StateFile, "_commit"),
        "tainted": (TaintLog, "heal_elements"),
    }[at]
    real = getattr(owner, name)

    def dies(*given: Any, **named: Any) -> None:
        if at != "told":
            real(*given, **named)
        raise Killed

    monkeypatch.setattr(owner, name, dies)
    if (what, at) == ("step", "tainted"):
        change()  # nothing of a step comes behind the commit
    else:
        with pytest.raises(Killed):
            change()
    monkeypatch.setattr(owner, name, real)
    kept.replica.close()
    kept.journal.close()
    kept.replica = Replica.open(tmp_path / "replica", ADAMW)
    kept.journal = journal_of(tmp_path, kept.told, kept.replica, kept.size_bytes)
    with suppress(StateError):  # nothing is left that it would heal
        change()
    if what == "step":
        kept.heal(whole.replica)
    kept.steps(7, STEPS)
    kept.written()
    found = again(tmp_path)
    assert (found.snapshot.step, found.snapshot.tainted) == (STEPS, {})
    assert kept.is_torchs(found)
    assert not kept.told
    whole.close()


def test_what_waits_for_the_disk_is_written_by_the_next_updater(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, hangs = JournalFolder.append, threading.Event()
    monkeypatch.setattr(JournalFolder, "append", lambda *_: hangs.wait(60))
    monkeypatch.setattr(journal_writer, "CLOSE_S", 0.0)
    kept.steps(1, 6, hasty=True)
    kept.journal.close()
    assert [one.code for one in kept.told] == [JOURNAL_LEFT_WAITING.code]
    monkeypatch.setattr(JournalFolder, "append", append)
    monkeypatch.setattr(journal_writer, "CLOSE_S", 60.0)
    kept.journal = journal_of(tmp_path, kept.told, kept.replica, kept.size_bytes)
    kept.steps(7, STEPS)
    kept.written()
    assert kept.is_torchs(again(tmp_path))
    hangs.set()


def test_parameters_of_a_restarts_broadcast_are_kept_and_end_no_taint_of_adamws_state(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, 5, lossy=5)
    weights = torch.cat([p.detach().reshape(-1) for p in kept.net.parameters()]).numpy()
    assert not len(kept.replica.take_weights(weights))
    kept.written()
    assert again(tmp_path).snapshot.step == 4
    found = again(tmp_path, tainted=True)
    assert found.snapshot.tainted
    assert kept.is_torchs(found), "torch's own parameters, in the tainted elements too"


def test_a_save_is_needed_behind_a_checkpoint_that_became_the_state(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, 5)
    sections = {name: array.copy() for name, array in kept.replica.sections().items()}
    sections[PARAMETERS][0] += 1
    kept.replica.rebase(Step(5), sections, replays=False)
    kept.steps(6, STEPS)
    kept.written()
    with refused_as(JOURNAL_REPLACED, step=5, to=5):
        again(tmp_path)
    assert again(tmp_path, 5).snapshot.step == 5
    with refused_as(JOURNAL_ENDS, last=5):
        again(tmp_path, 6)


def test_a_checkpoint_of_the_same_state_breaks_nothing(kept: Kept, tmp_path: Path) -> None:
    kept.steps(1, 5)
    sections = {name: array.copy() for name, array in kept.replica.sections().items()}
    kept.replica.rebase(Step(5), sections, replays=False)
    kept.steps(6, STEPS)
    kept.written()
    assert kept.is_torchs(again(tmp_path))


def test_of_two_pasts_the_later_one_is_given_whatever_is_not_kept(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.steps(1, 4)
    kept.steps(5, 5)
    kept.replica.go_back(Step(4))
    with monkeypatch.context() as full:
        full.setattr(WaitingEntries, "put", lambda *_: False)
        kept.steps(5, 5)
    kept.steps(6, STEPS)
    kept.written()
    assert again(tmp_path).snapshot.step == 4, "the job gave up what it had taken as step 5"
    with refused_as(JOURNAL_ENDS, last=4) as refused:
        again(tmp_path, 6)
    assert JOURNAL_GAP(step=6) == refused.value.finding.arguments["why"]


def test_a_save_of_the_newest_step_is_given_itself(kept: Kept, tmp_path: Path) -> None:
    kept.steps(1, SAVED)
    kept.written()
    found = again(tmp_path)
    assert found.snapshot.step == SAVED
    assert kept.is_torchs(found)


def test_where_every_later_step_is_tainted_the_save_is_the_newest_exact_one(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, STEPS, lossy=SAVED + 1)
    kept.written()
    assert again(tmp_path).snapshot.step == SAVED
    assert again(tmp_path, tainted=True).snapshot.step == STEPS


@pytest.mark.parametrize("what", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP])
def test_a_folder_that_is_none_is_named_with_what_the_kernel_says(
    kept: Kept, tmp_path: Path, what: int
) -> None:
    kept.steps(1, STEPS)
    kept.written()
    (tmp_path / "kept").rename(tmp_path / "elsewhere")
    if what == errno.ENOTDIR:
        (tmp_path / "kept").write_text("a file")
    elif what == errno.ELOOP:  # as for what may not be read, which root may
        (tmp_path / "kept").symlink_to("kept")
    told = {"folder": tmp_path / "kept", "error": os.strerror(what)}
    with refused_as(JOURNAL_FOLDER_UNREADABLE, **told):
        again(tmp_path)


@pytest.mark.parametrize("hurt", ["gradient", "line", "digest", "gone", "all"])
def test_what_is_damaged_ends_the_steps_there_and_is_named(
    kept: Kept, tmp_path: Path, hurt: str
) -> None:
    kept.steps(1, STEPS)
    kept.written()
    [lines] = (tmp_path / "kept").glob("*.jsonl")
    gradients = lines.with_suffix(".gradients")
    text = lines.read_bytes().splitlines(keepends=True)
    if hurt == "gradient":
        raw = bytearray(gradients.read_bytes())
        raw[4096 * 5 + 100] ^= 1  # of step 6: a gradient takes a page
        gradients.write_bytes(raw)
        with refused_as(JOURNAL_UNREADABLE, step=6):
            again(tmp_path, 6)
        assert again(tmp_path).snapshot.step == 5
        return
    if hurt == "line":
        lines.write_bytes(b"".join(text[:6]) + text[6][:40])
        assert again(tmp_path).snapshot.step == 6
        with refused_as(JOURNAL_ENDS, last=6):
            again(tmp_path, 7)
        return
    if hurt == "digest":
        was = text[-1].index(b'"behind":[8,"') + 13
        text[-1] = text[-1][:was] + b"0" * 32 + text[-1][was + 32 :]
        lines.write_bytes(b"".join(text))
        with refused_as(JOURNAL_DIFFERS, step=STEPS):
            again(tmp_path)
        return
    if hurt == "gone":
        gradients.unlink()
        with refused_as(JOURNAL_UNREADABLE, step=SAVED + 1):
            again(tmp_path)
        return
    lines.unlink()
    with refused_as(JOURNAL_LEADS_NOWHERE, step=SAVED):
        again(tmp_path)


def test_the_folder_keeps_its_bound_the_newest_steps_and_what_is_not_its_own(
    tmp_path: Path, told: list[Finding]
) -> None:
    others = ["training.jsonl", "steps-1.jsonl", "notes.gradients"]
    (tmp_path / "kept").mkdir()
    for name in others:
        (tmp_path / "kept" / name).write_text("somebody's\n" * 4096)
    bound = 12 * 4096 + 4 * 4096
    own = Kept(tmp_path, told, bound)
    own.steps(1, 20)
    own.again()  # in a new segment
    own.steps(21, 40)
    own.written()
    for name in others:
        assert (tmp_path / "kept" / name).read_text() == "somebody's\n" * 4096
    [reader] = journals_below(tmp_path / "kept")
    gradients = (tmp_path / "kept").glob("steps-00*.gradients")
    assert sum(file.stat().st_size for file in gradients) <= bound
    steps = [line.step for line in reader.lines]
    assert steps == list(range(steps[0], 41))
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.first_step, figures.last_step, figures.not_kept) == (steps[0], 40, 0)
    assert not told
    with refused_as(JOURNAL_LEADS_NOWHERE, step=SAVED):
        again(tmp_path)
    own.replica.close()


def test_the_entries_of_the_job_alone_are_read_whatever_lies_beside_them(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, STEPS)
    kept.written()
    (tmp_path / "kept" / "b-job").mkdir()
    for file in list((tmp_path / "kept").glob("steps-*")):
        file.rename(tmp_path / "kept" / "b-job" / file.name)
    other = tmp_path / "kept" / "a-job"
    other.mkdir()
    (other / "steps-000001-from-1.jsonl").write_bytes(b"{}\n[[[\n\xff\n")
    assert kept.is_torchs(again(tmp_path))


def test_a_full_disk_costs_the_journal_alone_and_is_told_once(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    own.steps(1, 4)
    own.again()
    with monkeypatch.context() as full:

        def no_room(*_: object) -> None:
            raise OSError(28, "No space left on device")

        full.setattr(DirectFile, "put", no_room)
        own.steps(5, 6)
        own.journal.close()
    assert [one.code for one in told] == [JOURNAL_NO_ROOM.code]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.last_step, figures.not_kept) == (4, 2)
    assert figures.why_not is not None
    assert figures.why_not.is_any_of(JOURNAL_NO_ROOM)
    own.again()
    own.steps(7, 8)
    own.written()
    assert again(tmp_path).snapshot.step == 4
    own.close()


def test_a_disk_that_stays_full_costs_no_kept_step_and_leaves_no_files(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    for step in range(1, SEGMENTS_LEAST):
        own.steps(step, step)
        own.again()

    folder = tmp_path / "kept"
    before = sorted(folder.iterdir())

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DirectFile, "put", no_room)
    own.steps(SEGMENTS_LEAST, 20)
    monkeypatch.setattr(os, "fsync", no_room)  # it fails as the segment is begun
    own.steps(21, 30)
    own.written()
    assert sorted(folder.iterdir()) == before
    held = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert not [one for one in held if str(folder) in one], "files that are open still"
    [reader] = journals_below(tmp_path / "kept")
    assert [line.step for line in reader.lines] == list(range(1, SEGMENTS_LEAST))
    own.replica.close()


def test_a_fault_of_the_writer_is_told_and_costs_no_step(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("no such case")

    monkeypatch.setattr(JournalFolder, "append", fails)
    own = Kept(tmp_path, told)
    own.steps(1, SLOTS_MOST + 3, hasty=True)
    own.written()
    assert own.replica.step == SLOTS_MOST + 3
    assert JOURNAL_STOPPED.code in [one.code for one in told]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None and figures.why_not is not None
    assert figures.why_not.is_any_of(JOURNAL_STOPPED)
    own.replica.close()


def test_a_head_torn_by_a_kill_takes_no_slot_and_no_other_entry(tmp_path: Path) -> None:
    entries = WaitingEntries(tmp_path / "waiting", 4096)
    lines = [JournalLine(before=(Step(n), "a"), behind=(Step(n + 1), "b")) for n in range(20)]
    gradient = np.arange(1024, dtype=np.float32)
    assert all(entries.put(line, [gradient]) for line in lines[:SLOTS_MOST])
    raw = bytearray((tmp_path / "waiting").read_bytes())
    head = next(n for n in range(4096, len(raw), 8) if raw[n] == 2)  # its sequence
    raw[head + 7] = 0xFF
    (tmp_path / "waiting").write_bytes(raw)
    entries = WaitingEntries(tmp_path / "waiting", 4096)
    left = [lines[0], *lines[2:SLOTS_MOST]]
    assert [entry.line for entry in entries.waiting()] == left
    assert entries.put(lines[SLOTS_MOST], [gradient])
    assert not entries.put(lines[SLOTS_MOST + 1], [gradient])
    held = entries.waiting()
    assert [entry.line for entry in held] == [*left, lines[SLOTS_MOST]]
    assert all(entry.payload[:4096].tobytes() == gradient.tobytes() for entry in held)
    del held
    other = WaitingEntries(tmp_path / "waiting", 5000)  # of another model: nothing of it is left
    assert not other.waiting()


def test_room_is_made_where_the_file_system_is_fuller_than_the_bound_says(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    for step in range(1, SEGMENTS_LEAST + 1):
        own.steps(step, step)
        own.again()
    put, full = DirectFile.put, [True]

    def once(*given: Any) -> None:
        if full and full.pop():
            raise OSError(28, "No space left on device")
        put(*given)

    monkeypatch.setattr(DirectFile, "put", once)
    own.steps(SEGMENTS_LEAST + 1, STEPS)
    own.written()
    [reader] = journals_below(tmp_path / "kept")
    kept = [line.step for line in reader.lines]
    assert kept == list(range(2, STEPS + 1)), "the oldest segment made room"
    assert not told
    own.replica.close()


def test_what_a_slow_disk_leaves_out_is_told_once_and_no_step_waits_for_it(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, append = threading.Event(), JournalFolder.append
    monkeypatch.setattr(JournalFolder, "append", lambda *given: go_on.wait(60) and append(*given))
    own = Kept(tmp_path, told)
    own.steps(1, SLOTS_MOST + 3, hasty=True)
    own.journal.tell()
    assert [one.code for one in told] == [JOURNAL_BEHIND.code]
    assert told[0].arguments["step"] == SLOTS_MOST + 1
    go_on.set()
    own.steps(SLOTS_MOST + 4, SLOTS_MOST + 4)
    own.written()
    assert [one.code for one in told] == [JOURNAL_BEHIND.code, JOURNAL_GOES_ON.code]
    figures = read_figures(tmp_path / "kept-steps.json")
    assert figures is not None
    assert (figures.last_step, figures.not_kept) == (SLOTS_MOST + 4, 3)
    assert figures.why_not is None
    assert again(tmp_path).snapshot.step == SLOTS_MOST
    own.close()


def test_too_few_bytes_are_told_and_nothing_is_written(tmp_path: Path, told: list[Finding]) -> None:
    own = Kept(tmp_path, told, 4096)
    own.steps(1, 2)
    own.journal.tell()
    assert [one.code for one in told] == [JOURNAL_TOO_SMALL.code]
    assert not (tmp_path / "kept").exists()
    own.close()


def test_gradients_alone_give_nothing() -> None:
    source = StepSource(run=Path("run"), gradients=Path("kept"))
    with refused_as(GRADIENTS_OF_A_SAVE, kind=ConfigError):
        RestoreRequest(source=source, output=Path("out"), form="torch").check()
