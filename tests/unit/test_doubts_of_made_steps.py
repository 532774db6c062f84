"""Steps that are made from a save by the gradients that were kept are in doubt as saves of them
would be, also where the run is not known."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.kept_replica import SAVED, STEPS, Kept, again
from support.persisting import saver_for
from test_doubted_checkpoints import audited, run_with

from flowcheck.config import PersistConfig
from flowcheck.findings.catalog.file_audits import DOUBTED
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.stages.job_state.audit_history import doubt_among
from flowcheck.stages.job_state.doubts_behind_save import doubt_of_later
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.persist.checkpoint_ledger import LEDGER, Ledger, LedgerEntry, encode


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path, [])
    yield made
    made.close()


@pytest.mark.parametrize("copied", [False, True], ids=["there", "in a copy"])
def test_a_step_made_from_gradients_behind_a_failed_audit_is_in_doubt(
    kept: Kept, tmp_path: Path, copied: bool
) -> None:
    """The save itself was found equal, and no later one was made: only the ledger tells it."""
    kept.steps(1, STEPS)
    kept.written()
    folder, run = tmp_path / "saved", run_with(tmp_path / "run")
    [save] = folder.glob("step-*")
    made = load_manifest(save)
    entry = LedgerEntry(
        name=save.name, step=made.step, digest=made.digest, bytes=1, saved=1.0, run="r"
    )
    (folder / LEDGER).write_bytes(encode(Ledger(entries=(entry,))))
    config = PersistConfig(target=str(folder), every_steps=1)

    def noted(by: RunDir = run) -> Path:
        later = partial(doubt_of_later, by)
        saver = saver_for(config, tmp_path / "x", tmp_path / "replica", "r", of_later=later)
        saver.note_doubts()
        if not copied:
            return folder
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(folder, tmp_path / "copy")

    for step in (SAVED, SAVED + 1):
        assert doubt_among(again(tmp_path, step, folder=noted()).assumed) is None
    audited(run, SAVED)
    audited(run, SAVED + 2, passed=False)
    assert doubt_among(again(tmp_path, SAVED, folder=noted()).assumed) is None
    for one in (SAVED + 1, STEPS, None):
        doubt = doubt_among(again(tmp_path, one, folder=noted()).assumed)
        assert doubt is not None and doubt.is_any_of(DOUBTED)
    noted(run_with(tmp_path / "anew"))
    doubt = doubt_among(again(tmp_path, STEPS, folder=folder).assumed)
    assert doubt is not None, "another run directory knows nothing of that audit"
    audited(run, SAVED + 2, base=True)
    assert doubt_among(again(tmp_path, STEPS, folder=noted()).assumed) is None
