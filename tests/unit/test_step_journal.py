"""Steps behind a saved checkpoint come again from the folder of gradients after the chain's memory
is gone. Judged by torch's own optimizer in the trainer."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.kept_replica import (
    LOST,
    MIB,
    SAVED,
    STEPS,
    Kept,
    _disk_in_time,
    again,
    journal_of,
    kept,
    parameters_sha256,
    told,
)
from support.lives import Both, Deaths
from support.refused_as import like, refused_as, says
from support.steps import ADAMW
from test_replica_reset import play, trained

from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog.refused_restores import GRADIENTS_OF_A_SAVE
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEFORE_SAVE,
    JOURNAL_BROKEN,
    JOURNAL_DIFFERS,
    JOURNAL_ENDS,
    JOURNAL_FOLDER_UNREADABLE,
    JOURNAL_GAP,
    JOURNAL_GIVEN_UP,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_NOT_REACHED,
    JOURNAL_REPLACED,
    JOURNAL_UNREADABLE,
)
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.optimizer.state_section_names import PARAMETERS
from flowcheck.replica.state_file.state_file import StateFile
from flowcheck.replica.step_journal.waiting_entries import WaitingEntries
from flowcheck.replica.taint import TaintLog
from flowcheck.step_numbers import Step

__all__ = ["_disk_in_time", "kept", "play", "told"]


def saved(both: Both, folder: Path) -> None:
    found = newest_step(both.chain.run, settle=False)
    save_trainer_state(trainer_state(found.snapshot), folder, found.snapshot.layout)


class MoreDeaths(Deaths):
    """At what the journal does too."""

    CHANGES = (
        *Deaths.CHANGES,
        (StateFile, "_commit"),
        (WaitingEntries, "put"),
        (WaitingEntries, "commit"),
    )


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
    for step in (4, 5):
        [why] = again(tmp_path, step).assumed
        assert why == JOURNAL_GIVEN_UP(step=step, at=5, to=5)
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


@pytest.mark.parametrize("hurt", ["gradient", "amid", "line", "digest", "gone", "all"])
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
        found = again(tmp_path)
        assert found.snapshot.step == 5 and found.later is not None
        told = {"steps": ("6 to 8",), "folder": str(tmp_path / "kept")}
        assert says(found.later, like(JOURNAL_NOT_REACHED, **told))
        assert says(found.later, like(JOURNAL_UNREADABLE, step=6))
        return
    if hurt == "amid":
        lines.write_bytes(b"".join([*text[:5], text[5][:40], b"\n", *text[6:]]))
        found = again(tmp_path)
        assert found.snapshot.step == 5 and found.later is not None
        assert says(found.later, like(JOURNAL_NOT_REACHED, steps=("7 to 8",)))
        with refused_as(JOURNAL_BROKEN, last=5, step=7):
            again(tmp_path, 8)
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
            again(tmp_path, SAVED + 1)
        found = again(tmp_path)
        assert found.snapshot.step == SAVED and found.later is not None
        assert says(found.later, like(JOURNAL_UNREADABLE, step=SAVED + 1))
        return
    lines.unlink()
    with refused_as(JOURNAL_LEADS_NOWHERE, step=SAVED):
        again(tmp_path, SAVED + 1)
    found = again(tmp_path)
    assert found.snapshot.step == SAVED and found.later is not None
    assert says(found.later, like(JOURNAL_LEADS_NOWHERE, step=SAVED))


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


def test_gradients_alone_give_nothing() -> None:
    source = StepSource(run=Path("run"), gradients=Path("kept"))
    with refused_as(GRADIENTS_OF_A_SAVE, kind=ConfigError):
        RestoreRequest(source=source, output=Path("out"), form="torch").check()


def test_a_step_before_all_saves_is_told_as_that(kept: Kept, tmp_path: Path) -> None:
    kept.steps(1, STEPS)
    kept.written()
    folder = tmp_path / "saves"
    folder.mkdir()
    for step in (SAVED, SAVED + 2):
        found = again(tmp_path, step).snapshot
        save_trainer_state(trainer_state(found), folder / f"step-{step}", found.layout)
    (folder / "latest").write_text(f"step-{SAVED + 2}\n")
    for place in (folder, tmp_path / "saved"):
        with refused_as(JOURNAL_BEFORE_SAVE, step=SAVED - 1, first=SAVED, checkpoint=place):
            again(tmp_path, SAVED - 1, folder=place)
    assert again(tmp_path, SAVED + 1, folder=folder).snapshot.step == SAVED + 1


def test_the_command_tells_later_steps_that_are_not_reached(
    kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, and in the JSON form on stdout."""
    kept.steps(1, STEPS)
    kept.written()
    [gradients] = (tmp_path / "kept").glob("*.gradients")
    os.truncate(gradients, 4096 * 5)
    source = StepSource(checkpoint=tmp_path / "saved", gradients=tmp_path / "kept")
    for as_json in (False, True):
        request = RestoreRequest(source=source, output=tmp_path / f"{as_json}.pt", form="torch")
        assert restore_command.run(request, as_json=as_json) == 0
        said = capsys.readouterr()
        if as_json:
            told = json.loads(said.out)
            assert (told["step"], told["later"]["code"]) == (5, JOURNAL_NOT_REACHED.code)
            assert not said.err
        else:
            assert "6 to 8" in said.err and "step 5" in said.out


def test_tainted_steps_behind_the_one_that_is_given_are_told(kept: Kept, tmp_path: Path) -> None:
    kept.steps(1, STEPS, lossy=SAVED + 3)
    kept.written()
    found = again(tmp_path)
    assert found.snapshot.step == SAVED + 2
    assert found.newer_tainted == tuple(range(SAVED + 3, STEPS + 1))
    assert again(tmp_path, tainted=True).newer_tainted == ()


def test_what_turned_out_behind_damaged_bytes_counts_all_the_same(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, STEPS)
    kept.replica.taint_since(Step(SAVED + 2), np.array([[LOST[0] // 4, LOST[1] // 4]]))
    kept.written()
    [gradients] = (tmp_path / "kept").glob("*.gradients")
    os.truncate(gradients, 4096 * (STEPS - 1))
    assert again(tmp_path).snapshot.step == SAVED + 1
