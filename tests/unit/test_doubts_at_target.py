"""What comes to light behind a save is written where the save is: also whoever has the target
alone, on another machine, is not told that it is exact."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fsspec
import msgspec
import pytest
from support.persisting import replica_of, run_with_replica, saver_for, take
from support.refused_as import refused_as
from support.s3 import BUCKET, server
from test_doubted_checkpoints import audited, fail
from test_doubts_over_http import differs
from test_persist_stage import stage, until

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_downloads import NOTES_UNREADABLE
from flowcheck.findings.catalog.file_audits import DOUBTED, LOAD_DOUBTED
from flowcheck.findings.catalog.replica_update_notes import ASSUMED_UNREADABLE, EMPTY_STATE
from flowcheck.findings.finding import Finding
from flowcheck.ops.lifecycle import shutdown_cleanup
from flowcheck.stages.checkpointing.persist_stage import saver_of
from flowcheck.stages.job_state.assumptions import add_assumption, assumptions_of
from flowcheck.stages.job_state.doubts_behind_save import doubts_to_note
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.download import download_source
from flowcheck.vault.download.checkpoint_download import download_step
from flowcheck.vault.download.download_source import ObjectStoreSource
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.saver import Saver


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def run(tmp_path: Path, target: Path) -> Iterator[RunDir]:
    stated = f'[persist]\ntarget = "{target}"\nevery_steps = 1\nkeep_last = 5\n'
    made = run_with_replica(tmp_path / "run", tmp_path, stated)
    yield made
    made.remove()


def saved(run: RunDir, steps: int) -> None:
    replica = replica_of(run)
    config = run.settings().persist
    assert config is not None
    for _ in range(steps):
        take(replica)
        saver_of(run, config).save(replica.step)
    replica.close()


def entries(target: Path) -> dict[int, tuple[Finding, ...]]:
    text = (target / checkpoint_ledger.LEDGER).read_bytes()
    return {one.step: one.doubts for one in checkpoint_ledger.decode(text, "x").entries}


def noted(run: RunDir) -> tuple[str, ...]:
    config = run.settings().persist
    assert config is not None
    return saver_of(run, config).note_doubts().fresh


def test_the_stage_notes_a_failed_audit_and_a_base_that_ends_the_doubt(
    run: RunDir, target: Path, tmp_path: Path
) -> None:
    saved(run, 6)
    assert flowcheck.load(target)["step"] == 6
    with stage(run):
        fail(run)  # of step 5, where step 3 was equal
        until(lambda: any(entries(target).values()))
    assert [step for step, doubts in entries(target).items() if doubts] == [4, 5, 6]
    copied = shutil.copytree(target, tmp_path / "elsewhere")
    shutil.rmtree(run.root)
    for folder in (target, copied):
        with refused_as(LOAD_DOUBTED) as refused:
            flowcheck.load(folder)
        why = refused.value.finding.arguments["why"]
        assert isinstance(why, Finding) and why.is_any_of(DOUBTED)
        assert flowcheck.load(folder, 3)["step"] == 3
        assert flowcheck.load(folder, despite_audit=True)["step"] == 6


def test_a_base_ends_the_doubt_of_what_is_saved_from_its_step_on(run: RunDir, target: Path) -> None:
    saved(run, 6)
    fail(run)
    assert noted(run) == ("step-4", "step-5", "step-6") and noted(run) == ()
    audited(run, 6, base=True)
    assert noted(run) == ()
    assert [step for step, doubts in entries(target).items() if doubts] == [4, 5]
    assert flowcheck.load(target)["step"] == 6


def test_latest_leaves_a_step_of_which_copies_differed(run: RunDir, target: Path) -> None:
    saved(run, 4)
    differs(run, 3, 4)
    latest = target / "latest"
    noted(run)
    assert latest.read_text() == "step-2\n"
    latest.write_text("step-4\n")  # killed between the ledger and `latest`
    noted(run)
    assert latest.read_text() == "step-2\n"
    differs(run, 1, 2)
    noted(run)
    assert latest.read_text() == "step-2\n", "there is none better"
    assert list(entries(target)) == [1, 2, 3, 4]
    saved(run, 1)
    assert latest.read_text() == "step-5\n"


@pytest.mark.parametrize("why", ["audit", "copies", "audit, then copies"])
def test_the_newest_save_that_is_exact_outlives_those_in_doubt(
    run: RunDir, target: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run.settings().persist
    assert config is not None
    config = msgspec.structs.replace(config, keep_last=2)
    replica = replica_of(run)

    def saves(steps: int) -> set[str]:
        for _ in range(steps):
            take(replica)
            saver_of(run, config).save(replica.step)
        assert set(entries(target)) == {int(one.name[5:]) for one in target.glob("step-*")}
        return {one.name for one in target.glob("step-*")}

    assert saves(4) == {"step-3", "step-4"}
    if "audit" in why:
        fail(run)  # of step 5, where step 3 was equal: nothing is noted at the target yet
    if "copies" in why:
        differs(run, 4, 9)
    monkeypatch.setattr(Saver, "_manifest", unreadable)
    assert saves(1) >= {"step-3", "step-4", "step-5"}, "nothing goes before that is known"
    monkeypatch.undo()
    assert saves(3) == {"step-3", "step-7", "step-8"}
    noted(run)
    latest = "step-8" if why == "audit" else "step-3"
    assert (target / "latest").read_text() == f"{latest}\n"
    assert flowcheck.load(target, 3)["step"] == 3
    run.differing.unlink(missing_ok=True)
    audited(run, 9, base=True)
    assert saves(3) == {"step-10", "step-11"}
    replica.close()


def unreadable(*_: object) -> None:
    raise OSError("cannot be read")


def test_the_save_at_the_end_of_the_chain_notes_it_too(run: RunDir, target: Path) -> None:
    saved(run, 4)
    fail(run)
    kept, why = shutdown_cleanup.save_replicas(run.settings(), run)
    assert why is None and kept[0] is not None
    assert [step for step, doubts in entries(target).items() if doubts] == [4]


def test_what_a_damaged_ledger_said_is_a_doubt(run: RunDir, target: Path, tmp_path: Path) -> None:
    saved(run, 2)
    differs(run, 2, 2)
    noted(run)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(target, 2)
    (target / checkpoint_ledger.LEDGER).write_bytes(b"{")
    for step in (1, 2):
        with refused_as(LOAD_DOUBTED) as refused:
            flowcheck.load(target, step)
        why = refused.value.finding.arguments["why"]
        assert isinstance(why, Finding) and why.is_any_of(NOTES_UNREADABLE)
        assert str(target / checkpoint_ledger.LEDGER) in why.remedy
        assert flowcheck.load(target, step, despite_audit=True)["step"] == step
    served = ObjectStoreSource(f"file://{target}", fsspec.filesystem("file"))
    assert [one.code for one in served.find("latest").doubts] == [NOTES_UNREADABLE.code]
    with pytest.raises(StateError):
        noted(run)
    (target / "step-1").rename(target / "mine")
    assert flowcheck.load(target / "mine")["step"] == 1, "the ledger is not of this"
    (target / checkpoint_ledger.LEDGER).unlink()
    assert flowcheck.load(target, 2)["step"] == 2


def test_a_store_that_does_not_give_its_ledger_gives_no_step(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(run, 1)
    files = fsspec.filesystem("file")
    source = ObjectStoreSource(f"file://{target}", files)
    assert source.find(Step(1)).doubts == ()
    reads = download_source.read_small

    def fails(system: object, path: str, most: int) -> bytes:
        if path.endswith(checkpoint_ledger.LEDGER):
            raise TimeoutError(path)
        return reads(system, path, most)

    monkeypatch.setattr(download_source, "read_small", fails)
    with pytest.raises(StateError):
        source.find("latest")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_store_tells_it_to_whoever_downloads(run: RunDir, tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    replica = replica_of(run)
    take(replica, 4)
    with server() as store:
        target = f"s3://{BUCKET}/job"
        config = PersistConfig(target=target, options=store.options, every_steps=1)
        known = partial(doubts_to_note, run)
        saver = saver_for(config, tmp_path / "staging", run.replica, doubts_of=known)
        saver.save(4)
        told: list[Finding] = []
        download_step(
            target, "latest", tmp_path / "before", options=store.options, doubted=told.extend
        )
        assert told == []
        fail(run)
        assert saver.note_doubts().fresh == ("step-4",)
        for step in ("latest", 4):
            download_step(
                target, step, tmp_path / "after", options=store.options, doubted=told.extend
            )
            assert told.pop().is_any_of(DOUBTED) and not told
    replica.close()


@pytest.mark.parametrize("torn", [b"", b'[{"code":"replica.', b"\x00" * 40, b"{}"])
def test_of_a_damaged_record_of_assumptions_the_state_is_saved_and_not_called_proved(
    run: RunDir, torn: bytes
) -> None:
    saved(run, 2)
    before = assumptions_of(run)
    run.assumed.write_bytes(torn)
    found = assumptions_of(run)
    assert [one.code for one in found if one not in before] == [ASSUMED_UNREADABLE.code]
    [kept], why = shutdown_cleanup.save_replicas(run.settings(), run)
    assert why is None and kept is not None
    assert add_assumption(run, EMPTY_STATE())
    assert [one.code for one in assumptions_of(run) if one not in before] == [
        ASSUMED_UNREADABLE.code
    ], "what was there is not forgotten when more is written"
