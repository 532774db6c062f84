"""Steps that a folder of gradients makes again are in doubt as those of the replica are: where an
audit failed since the save, or a trainer's checkpoint took the place of what the replica had.
Judged by torch's own optimizer, in a trainer that did something no frame shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.incarnations import JOB, Life, floats
from support.kept_replica import MIB, Kept, _disk_in_time, again, kept, parameters_sha256, told
from support.lives import Both
from support.refused_as import refused_as
from test_base_command import Trainer
from test_replica_reset import given, play

from flowcheck.findings.catalog.file_audits import DOUBTED, RESTORE_DOUBTED
from flowcheck.findings.catalog.step_journals import JOURNAL_GIVEN_UP, JOURNAL_REPLACED
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.single_step_restore import refuse_doubted
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.ops.trainer_checkpoint import audit_command
from flowcheck.replica.checkpoint.checkpoint_save import save_trainer_state
from flowcheck.replica.checkpoint.trainer_state import trainer_state
from flowcheck.replica.element_patch import patch_of_sections
from flowcheck.step_numbers import Step

__all__ = ["_disk_in_time", "kept", "play", "told"]

UNSEEN, GIVEN = 2, 6
"""The step behind which the trainer changed a weight; the replica's when it is given a file."""


def trained(folder: Path) -> tuple[list[Any], list[str]]:
    """Frames, and sha256 of the trainer's parameters step by step; its files are step-N.pt."""
    trainer = Trainer()
    life = Life(replace(JOB, seed=1), trainer.flat(), number=0)
    wanted = []
    for step, gradient in enumerate(life.generate().gradients, 1):
        wanted.append(trainer.step(floats(gradient)))
        trainer.save(folder / f"step-{step}.pt", step)
        if step == UNSEEN:
            with torch.no_grad():
                trainer.parameters[0].mul_(1.5)
    return life.frames_of(), wanted


def saved(both: Both, name: str = "saved") -> Path:
    """The newest step, saved below the run directory."""
    folder = both.chain.run.root / name
    found = newest_step(both.chain.run, settle=False)
    save_trainer_state(trainer_state(found.snapshot), folder, found.snapshot.layout)
    return folder


def audit(both: Both, file: Path) -> int:
    return audit_command.run(both.chain.run.root, file, as_json=True)


@pytest.fixture
def both(play: Callable[..., Both], tmp_path: Path) -> tuple[Both, list[str]]:
    """At step GIVEN, with a save of step UNSEEN whose audit passed."""
    frames, wanted = trained(tmp_path)
    log = {"folder": str(tmp_path / "kept"), "folder_bytes": 64 * MIB, "taken_steps": 4}
    own = play(frames, gradient_log=log)
    own.drive(until=lambda: own.applied_iteration() >= UNSEEN)
    saved(own)
    assert audit(own, tmp_path / f"step-{UNSEEN}.pt") == 0
    own.drive(until=lambda: own.applied_iteration() >= GIVEN)
    return own, wanted


def test_an_audit_that_failed_behind_the_save_puts_the_steps_since_in_doubt(
    both: tuple[Both, list[str]], tmp_path: Path
) -> None:
    own, wanted = both
    assert audit(own, tmp_path / "step-4.pt") != 0
    own.drive()
    own.update.stop()
    folder = own.chain.run.root / "saved"
    exact = again(tmp_path, UNSEEN, folder=folder)
    assert not exact.assumed
    assert parameters_sha256(exact) == wanted[UNSEEN - 1]
    for step in (*range(UNSEEN + 1, len(wanted) + 1), None):
        found = again(tmp_path, step, folder=folder)
        assert parameters_sha256(found) != wanted[found.snapshot.step - 1]
        assert [one.code for one in found.assumed] == [DOUBTED.code]
        with refused_as(RESTORE_DOUBTED, step=found.snapshot.step):
            refuse_doubted(found, despite_audit=False)


def test_what_a_base_ended_is_given_despite_the_doubt_alone_and_what_follows_it_is_exact(
    both: tuple[Both, list[str]], tmp_path: Path
) -> None:
    own, wanted = both
    given(own, tmp_path / "step-4.pt")
    own.drive(until=lambda: own.applied_iteration() > GIVEN)
    newer = saved(own, "newer")
    own.drive()
    own.update.stop()
    audit_command.append_base_line(own.chain.run, Step(4), tmp_path / "step-4.pt")
    folder = own.chain.run.root / "saved"
    with refused_as(JOURNAL_REPLACED, step=GIVEN, to=4):
        again(tmp_path, folder=folder)
    assert not again(tmp_path, UNSEEN, folder=folder).assumed, "an audit showed it"
    for step in range(UNSEEN + 1, GIVEN + 1):
        found = again(tmp_path, step, folder=folder)
        assert parameters_sha256(found) != wanted[step - 1]
        assert found.assumed == (JOURNAL_GIVEN_UP(step=step, at=GIVEN, to=4),)
    found = again(tmp_path, folder=newer)
    assert found.snapshot.step == len(wanted)
    assert parameters_sha256(found) == wanted[-1]
    assert not found.assumed


@pytest.mark.parametrize("step", [UNSEEN, GIVEN])
def test_restore_names_the_doubt_and_writes_it_where_it_is_told_to(
    both: tuple[Both, list[str]], tmp_path: Path, step: int
) -> None:
    own, _ = both
    own.chain.run.audits.unlink()
    given(own, tmp_path / "step-4.pt")
    own.drive()
    own.update.stop()
    source = StepSource(
        checkpoint=own.chain.run.root / "saved", gradients=tmp_path / "kept", step=Step(step)
    )
    request = RestoreRequest(source=source, output=tmp_path / "out", form="torch")
    doubt = JOURNAL_GIVEN_UP(step=step, at=GIVEN, to=4)
    with refused_as(RESTORE_DOUBTED, step=step, why=doubt):
        restore(request)
    [done] = restore(replace(request, despite_audit=True))
    assert done.doubt == doubt
    assert doubt in done.written.assumed


def test_a_base_that_ends_taint_alone_puts_no_exact_step_in_doubt(
    kept: Kept, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    whole = Kept(tmp_path / "other", [])
    whole.steps(1, 5)
    kept.steps(1, 5, lossy=5)
    sections = {name: array.copy() for name, array in whole.replica.sections().items()}
    elements = kept.replica.tainted_ranges
    own = patch_of_sections(kept.replica.description, kept.replica.sections(), elements)
    theirs = patch_of_sections(whole.replica.description, sections, elements)
    assert any((own.parts[name] != theirs.parts[name]).any() for name in own.parts)
    kept.replica.rebase(Step(5), sections, replays=False)
    kept.written()
    with refused_as(JOURNAL_REPLACED, step=5, to=5):
        again(tmp_path)
    assert not again(tmp_path, 4).assumed
    whole.close()
