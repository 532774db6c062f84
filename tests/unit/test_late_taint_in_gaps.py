"""What a folder of gradients says of steps whose copies turned out to differ, where the entry that
tells it is not kept, or where an audit seems to speak against it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from support.kept_replica import SAVED, STEPS, Kept, _disk_in_time, again, kept, told
from test_differing_saves import ELEMENTS
from test_doubted_checkpoints import persists, run_with

from flowcheck.findings.catalog.step_journals import (
    JOURNAL_TAINTED_BEHIND_GAP,
    JOURNAL_TAINTED_LATE,
)
from flowcheck.messages import AuditRecord
from flowcheck.ops.restore.restore_request import StepSource
from flowcheck.ops.restore.step_lookup import found_step
from flowcheck.replica.checkpoint_files.direct_io import DirectFile
from flowcheck.replica.step_journal.journal_folder import JournalFolder
from flowcheck.replica.step_journal.waiting_entries import WaitingEntries
from flowcheck.step_numbers import Step

__all__ = ["_disk_in_time", "kept", "told"]

SINCE, MADE = 5, 6


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lose_the_entry(kept: Kept, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """That these elements are tainted."""
    kept.wait_for_disk()
    if where == "memory":
        monkeypatch.setattr(WaitingEntries, "put", lambda *_: None)
    else:
        monkeypatch.setattr(JournalFolder, "append", full)
    kept.replica.taint_since(Step(SINCE), ELEMENTS)
    kept.wait_for_disk()
    monkeypatch.undo()


@pytest.mark.parametrize("behind", ["nothing", "steps", "base"])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_an_entry_that_is_not_kept_leaves_a_doubt_in_every_step_since(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, behind: str
) -> None:
    kept.steps(1, MADE)
    lose_the_entry(kept, monkeypatch, where)
    last = STEPS if behind == "steps" else MADE
    kept.steps(MADE + 1, last)
    if behind == "base":
        sections = {name: array.copy() for name, array in kept.replica.sections().items()}
        kept.replica.rebase(Step(MADE), sections, replays=False)
    kept.written()
    if (where, behind) == ("memory", "nothing"):
        return  # nothing is put behind it: the next updater still has it in memory
    assert not again(tmp_path, SINCE - 1).assumed
    for step in range(SINCE, last + 1):
        [doubt] = again(tmp_path, step).assumed
        assert doubt == JOURNAL_TAINTED_BEHIND_GAP(step=step, since=SINCE)


def test_an_entry_behind_steps_that_are_not_kept_leaves_it_too(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.steps(1, MADE - 1)
    kept.wait_for_disk()
    monkeypatch.setattr(DirectFile, "put", full)
    kept.steps(MADE, MADE)
    kept.wait_for_disk()
    monkeypatch.undo()
    kept.replica.taint_since(Step(SINCE), ELEMENTS)
    kept.written()
    assert not again(tmp_path, SINCE - 1).assumed
    [doubt] = again(tmp_path, SINCE).assumed
    assert doubt.is_any_of(JOURNAL_TAINTED_BEHIND_GAP)


@pytest.mark.parametrize(
    ("audited", "left_out", "shown"),
    [(MADE, 0, True), (MADE, 16, False), (MADE + 1, 0, False)],
    ids=["whole", "all-but-the-tainted", "behind-the-healing"],
)
def test_only_an_audit_that_compared_these_elements_before_they_may_be_healed_ends_the_doubt(
    kept: Kept, tmp_path: Path, audited: int, left_out: int, shown: bool
) -> None:
    run = run_with(tmp_path / "run", **persists(tmp_path / "saved"))
    kept.steps(1, MADE)
    kept.replica.taint_since(Step(SAVED), ELEMENTS)
    kept.written()
    line = AuditRecord(
        step=Step(audited), passed=True, file="x.pt", tensors=4, tainted_elements=left_out
    )
    run.audits.write_bytes(msgspec.json.encode(line) + b"\n")
    source = StepSource(
        checkpoint=tmp_path / "saved",
        gradients=tmp_path / "kept",
        step=Step(SAVED),
        run=run.root,
    )
    with found_step(source, in_place=True) as found:
        assert [one.code for one in found.assumed] == [JOURNAL_TAINTED_LATE.code] * (not shown)
