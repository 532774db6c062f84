"""Steps behind a saved checkpoint come again from the folder of gradients after the chain's memory
is gone. Judged by torch's own optimizer in the trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.lives import Both, Deaths
from support.refused_as import refused_as
from support.steps import ADAMW, layout_of, made
from test_replica_reset import play, trained

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.refused_restores import GRADIENTS_OF_A_SAVE
from flowcheck.findings.catalog.step_journals import (
    JOURNAL_BEHIND,
    JOURNAL_DIFFERS,
    JOURNAL_ENDS,
    JOURNAL_GOES_ON,
    JOURNAL_LEADS_NOWHERE,
    JOURNAL_NO_ROOM,
    JOURNAL_TOO_SMALL,
    JOURNAL_UNREADABLE,
)
from flowcheck.findings.finding import Finding
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import FoundStep, found_step, newest_step
from flowcheck.replica import step_journal
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.state_digest import sha256
from flowcheck.replica.state_file.gradient_log import DATA_OFFSET
from flowcheck.replica.step_journal import StepJournal
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


@pytest.mark.parametrize("kills", [False, True])
def test_every_step_behind_a_save_comes_again_as_the_trainer_had_it(
    play: Callable[..., Both], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    frames, wanted, _ = trained(tmp_path, unseen=False)
    both = play(frames, gradient_log={"folder": str(tmp_path / "kept"), "folder_bytes": 64 * MIB})
    both.drive(until=lambda: both.applied_iteration() >= SAVED)
    saved(both, tmp_path / "saved")
    deaths = Deaths(monkeypatch) if kills else None
    if deaths is not None:
        deaths.begun, deaths.left, deaths.count = True, 0, 0
    both.drive()
    if deaths is not None:
        deaths.begun = False
        assert deaths.count > 8
    assert parameters_sha256(again(tmp_path)) == wanted[-1]
    for step in range(SAVED, len(wanted) + 1):
        found = again(tmp_path, step)
        assert found.snapshot.step == step
        assert parameters_sha256(found) == wanted[step - 1]
    with refused_as(JOURNAL_ENDS, last=len(wanted)):
        again(tmp_path, len(wanted) + 1)


@pytest.fixture
def told() -> list[Finding]:
    return []


class Kept:
    """A replica in which some steps lack bytes, with a save at SAVED and a journal; and torch."""

    def __init__(self, folder: Path, told: list[Finding], size_bytes: int = 64 * MIB) -> None:
        self.folder = folder
        self.net, self.optimizer = made()
        layout = layout_of(self.net)
        weights = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()]).numpy()
        self.replica = Replica.create(folder / "replica", layout, ADAMW, weights)
        self.journal = StepJournal(folder / "kept", size_bytes, layout.gradient_bytes, told.append)

    def steps(self, first: int, last: int, lossy: int = 0) -> None:
        for step in range(first, last + 1):
            torch.manual_seed(step)
            for p in self.net.parameters():
                p.grad = torch.randn_like(p)
            self.optimizer.step()
            flat = torch.cat([p.grad.reshape(-1) for p in self.net.parameters()]).numpy()
            before, missing = self.replica.digest, [LOST] if step == lossy else []
            if missing:
                flat[LOST[0] // 4 : LOST[1] // 4] = 0
            self.replica.apply(Step(step), flat, missing=missing)
            lacked = self.replica.lacked(Step(step))
            self.journal.add_step(Step(step), (before, self.replica.digest), flat, None, lacked)
            if step == SAVED:
                found = copy_snapshot(self.replica.path, ADAMW)
                save_trainer_state(trainer_state(found), self.folder / "saved", found.layout)

    def heal(self, whole: Replica) -> None:
        before, elements = self.replica.digest, self.replica.tainted_ranges
        patch = patch_of_sections(whole.description, whole.sections(), elements)
        self.replica.heal(self.replica.step, patch)
        self.journal.add_healing(self.replica.step, (before, self.replica.digest), patch)

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
    assert again(tmp_path).snapshot.step == 4, "the newest exact one"
    assert again(tmp_path, tainted=True).snapshot.tainted
    kept.heal(whole.replica)
    kept.steps(7, STEPS)
    found = again(tmp_path)
    assert found.snapshot.step == STEPS
    assert not found.snapshot.tainted
    assert kept.is_torchs(found)
    whole.close()


def test_a_save_of_the_newest_step_is_given_itself(kept: Kept, tmp_path: Path) -> None:
    kept.steps(1, SAVED)
    found = again(tmp_path)
    assert found.snapshot.step == SAVED
    assert kept.is_torchs(found)


def test_where_every_later_step_is_tainted_the_save_is_the_newest_exact_one(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, STEPS, lossy=SAVED + 1)
    assert again(tmp_path).snapshot.step == SAVED
    assert again(tmp_path, tainted=True).snapshot.step == STEPS


@pytest.mark.parametrize("hurt", ["gradient", "line", "digest", "gone", "all"])
def test_what_is_damaged_ends_the_steps_there_and_is_named(
    kept: Kept, tmp_path: Path, hurt: str
) -> None:
    kept.steps(1, STEPS)
    kept.journal.close()
    [lines] = (tmp_path / "kept").glob("*.jsonl")
    gradients = lines.with_suffix(".gradients")
    text = lines.read_bytes().splitlines(keepends=True)
    if hurt == "gradient":
        raw = bytearray(gradients.read_bytes())
        raw[DATA_OFFSET + 4096 * 5 + 100] ^= 1  # of step 6: a record takes a page
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
        was = text[-1].rindex(b'"digest":"') + 10
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


def test_the_folder_keeps_its_bound_and_the_newest_steps(
    tmp_path: Path, told: list[Finding]
) -> None:
    bound = 12 * 4096 + 4 * 4096
    own = Kept(tmp_path, told, bound)
    own.steps(1, 40)
    own.journal.close()
    files = list((tmp_path / "kept").iterdir())
    gradients = [file for file in files if file.suffix == ".gradients"]
    assert sum(file.stat().st_size for file in gradients) <= bound
    assert not told
    steps = sorted(one.entry.step for one in step_journal.read_entries(tmp_path / "kept"))
    assert steps[-1] == 40
    assert steps == list(range(steps[0], 41))
    with refused_as(JOURNAL_LEADS_NOWHERE, step=SAVED):
        again(tmp_path)
    own.replica.close()


def test_a_full_disk_costs_the_journal_alone_and_is_told_once(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Kept(tmp_path, told)
    own.steps(1, 4)
    whole = step_journal.StepJournal._write

    def full(*given: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StepJournal, "_write", full)
    own.steps(5, 6)
    monkeypatch.setattr(StepJournal, "_write", whole)
    own.steps(7, 8)
    codes = [one.code for one in told]
    assert codes == [JOURNAL_NO_ROOM.code, JOURNAL_GOES_ON.code]
    assert again(tmp_path).snapshot.step == 4
    own.close()


def test_what_a_slow_disk_leaves_out_is_told_once(
    tmp_path: Path, told: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, to_disk = threading.Event(), step_journal._to_disk
    monkeypatch.setattr(step_journal, "BEHIND_STEPS", 1)
    monkeypatch.setattr(step_journal, "BEHIND_BYTES", 0)
    monkeypatch.setattr(step_journal, "_to_disk", lambda file: (go_on.wait(60), to_disk(file)))
    own = Kept(tmp_path, told)
    own.steps(1, STEPS)
    assert [one.code for one in told] == [JOURNAL_BEHIND.code]
    assert told[0].arguments["step"] == 3, "one was on its way, and one waited"
    go_on.set()
    own.close()


def test_too_few_bytes_are_told_and_nothing_is_written(tmp_path: Path, told: list[Finding]) -> None:
    own = Kept(tmp_path, told, 4096)
    own.steps(1, 2)
    assert [one.code for one in told] == [JOURNAL_TOO_SMALL.code]
    assert not (tmp_path / "kept").exists()
    own.close()


def test_gradients_alone_give_nothing() -> None:
    source = StepSource(run=Path("run"), gradients=Path("kept"))
    with refused_as(GRADIENTS_OF_A_SAVE, kind=ConfigError):
        RestoreRequest(source=source, output=Path("out"), form="torch").check()
