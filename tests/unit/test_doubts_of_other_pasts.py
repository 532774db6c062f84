"""Which saves a doubt is of, where a target has those of several pasts: of a run directory that was
made anew, and of a replica whose state a file of the trainer replaced."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fsspec
import msgspec
import pytest
import torch
from support.persisting import replica_of, run_with_replica, saver_for, take
from support.refused_as import refused_as
from test_doubted_checkpoints import audited, fail
from test_doubts_at_target import entries, noted, run, saved, target
from test_doubts_over_http import differs
from typer.testing import CliRunner

import flowcheck
from flowcheck.cli.main import app
from flowcheck.config import ServeConfig
from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_stores import SEVERAL_OF_STEP
from flowcheck.findings.catalog.file_audits import DOUBTED, LOAD_DOUBTED
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.findings.catalog.replica_update_notes import EMPTY_STATE
from flowcheck.messages import SaveFailed, StepSaved
from flowcheck.ops.lifecycle.shutdown_record_writer import record_end
from flowcheck.ops.restore.checkpoint_doubts import basis_of
from flowcheck.ops.restore.made_again import save_before
from flowcheck.ops.watch.state.chain_state import EndKind, JobEnd
from flowcheck.ops.watch.state.held_steps import checkpoints_of
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.stages.checkpointing.persist_stage import PersistService, saver_of
from flowcheck.stages.checkpointing.serve_stage import catalogue_of
from flowcheck.stages.job_state.lifecycle_record_schema import Incarnation
from flowcheck.stages.job_state.steps_of_this_past import is_of_this_past
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step
from flowcheck.vault.download.download_source import ObjectStoreSource
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.saver import Saver

__all__ = ["run", "target"]
STEPS = 6


def doubted(target: Path) -> list[int]:
    return [step for step, doubts in entries(target).items() if doubts]


def wrote_steps(run: RunDir, target: Path, *, other: tuple[int, ...] = (), last: int = 99) -> None:
    """steps.jsonl of a past that has these saves, but for `other`, which it made anew."""
    text = (target / checkpoint_ledger.LEDGER).read_bytes()
    with run.steps.open("wb") as file:
        for one in checkpoint_ledger.decode(text, "x").entries:
            digest = "f" * 64 if one.step in other else one.digest
            if one.step <= last:
                file.write(msgspec.json.encode({"step": one.step, "digest": digest}) + b"\n")


@pytest.mark.parametrize("differing", [False, True], ids=["audit", "copies"])
def test_a_run_directory_made_anew_takes_no_doubt_back(
    run: RunDir, target: Path, tmp_path: Path, differing: bool
) -> None:
    saved(run, STEPS)
    if differing:
        differs(run, 4, STEPS)
    else:
        fail(run)
    noted(run)
    config = run.config.read_bytes()
    run.remove()
    shutil.rmtree(run.root, ignore_errors=True)
    again = run_with_replica(run.root, tmp_path, "")
    again.config.write_bytes(config)
    assert noted(again) == ()
    assert doubted(target) == [4, 5, 6]
    again.remove()


@pytest.mark.parametrize("made", ["anew", "not yet", "the same"])
def test_saves_of_the_past_that_a_base_replaced_stay_in_doubt(
    run: RunDir, target: Path, made: str
) -> None:
    saved(run, STEPS)
    wrote_steps(run, target)
    fail(run)
    noted(run)
    anew = (4, 5, 6) if made == "anew" else ()
    wrote_steps(run, target, other=anew, last=4 if made == "not yet" else STEPS)
    audited(run, 4, base=True)
    noted(run)
    still = {"anew": [4, 5, 6], "not yet": [5, 6], "the same": []}[made]
    assert doubted(target) == still
    for step in still:
        with refused_as(LOAD_DOUBTED):
            flowcheck.load(target / f"step-{step}", run=run.root)


def test_the_base_of_a_later_life_ends_no_doubt_of_the_one_before(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(run, STEPS)
    wrote_steps(run, target)
    fail(run)
    noted(run)
    life = Incarnation(number=2, step=Step(50), base=Step(50), audits=2)
    for room in ("audit_history", "differing_steps"):
        monkeypatch.setattr(f"flowcheck.stages.job_state.{room}.incarnation_of", lambda _: life)
    noted(run)
    assert doubted(target) == [4, 5, 6]


@pytest.mark.parametrize(
    ("life", "exact"),
    [
        (Incarnation(anchored=Step(4)), [4, 5]),
        (Incarnation(anchored=Step(2)), []),
        (Incarnation(number=2, step=Step(2)), [4, 5]),
        (Incarnation(number=2, step=Step(4)), []),
    ],
    ids=["anchored since", "anchored before", "went back before", "went on behind"],
)
def test_what_was_made_anew_is_exact_although_copies_of_its_step_differed(
    run: RunDir, target: Path, life: Incarnation, exact: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of step 3 copies differed, when 6 steps were made. Of this past are 4 and 5; 6 is to come."""
    saved(run, STEPS)
    differs(run, 3, STEPS)
    wrote_steps(run, target, other=(3,), last=5)
    monkeypatch.setattr("flowcheck.stages.job_state.differing_steps.incarnation_of", lambda _: life)
    noted(run)
    assert doubted(target) == [step for step in (3, 4, 5, 6) if step not in exact]


def test_of_a_step_of_two_pasts_the_newest_is_given(
    run: RunDir, target: Path, tmp_path: Path
) -> None:
    """As after a base of an earlier step: the step was taken again, with other bits."""
    saved(run, 4)
    config = run.settings().persist
    assert config is not None
    replica = replica_of(run)
    replica.go_back(2)
    for step in (3, 4):
        replica.apply(step, replica.parameters().copy())
        saver_of(run, config).save(step)
    of_now = replica.parameters().copy()
    replica.close()
    first, second = sorted(path.name for path in target.glob("step-3*"))
    assert len(second) > len(first)

    def given(where: Path) -> list[float]:
        out = tmp_path / "given.pt"
        done = CliRunner().invoke(
            app, ["restore", "--checkpoint", str(where), "--step", "4", "--format", "torch",
                  "--out", str(out), "--force"],
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        loaded = torch.load(out, weights_only=True)["model"]
        return list(next(iter(loaded.values())).flatten().numpy())

    assert given(target) == list(of_now)
    record_end(run, EndKind.ASKED, SIGNAL_INT(), [JobEnd(step=3, checkpoint=str(target / second))])
    assert checkpoints_of(run) == [target / second]
    assert flowcheck.load(target, 3)["step"] == 3
    newest = flowcheck.load(target, 4)["model"]
    assert list(next(iter(newest.values())).flatten().numpy()) == list(of_now)
    (target / checkpoint_ledger.LEDGER).rename(tmp_path / "ledger")
    for refuses in (lambda: flowcheck.load(target, 3), lambda: save_before(target, Step(3))):
        with refused_as(SEVERAL_OF_STEP) as refused:
            refuses()
        told = refused.value.finding.arguments["checkpoints"]
        assert first in str(told) and second in str(told)
    store = ObjectStoreSource(f"file://{target}", fsspec.filesystem("file"))
    with refused_as(SEVERAL_OF_STEP):
        store.find(Step(3))
    assert store.find(Step(2)).name == "step-2"
    for name in (first, second):
        assert flowcheck.load(target / name, 3)["step"] == 3
    assert flowcheck.load(target, 2)["step"] == 2
    shutil.rmtree(target / first)
    assert flowcheck.load(target, 3)["step"] == 3, "one is there"
    assert store.find(Step(3)).name == second


def test_a_line_is_found_wherever_it_is_and_whatever_a_kill_tore(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert is_of_this_past(run, Step(1), "a") is None
    lines = [b'{"step": %d, "digest": "%d", "x": "%s"}\n' % (n, n, b"y" * (n % 90))
             for n in range(10, 200) if n != 77]  # fmt: skip
    lines[30] += b'{"step": 40, "dig\n'
    lines[50] = b'{"step": 60, "digest": "before"}\n' + lines[50]
    run.steps.write_bytes(b"".join(lines) + b'{"step": 2')
    for step in range(10, 200):
        assert is_of_this_past(run, Step(step), str(step)) is (step != 77)
        assert is_of_this_past(run, Step(step), "other") is False
    assert is_of_this_past(run, Step(60), "before")
    assert is_of_this_past(run, Step(9), "9") is None
    assert is_of_this_past(run, Step(200), "200") is False


def test_a_doubt_outlives_the_same_save_once_more(run: RunDir, target: Path) -> None:
    saved(run, 4)
    differs(run, 3, 4)
    noted(run)
    config = run.settings().persist
    assert config is not None
    saver = saver_for(config, run.root / "x", run.replica, str(run.root.resolve()))
    saver.save(Step(4))  # killed here
    assert doubted(target) == [3, 4] and (target / "latest").read_text() == "step-2\n"


def test_a_manifest_that_is_gone_ends_no_noting_and_no_doubt(run: RunDir, target: Path) -> None:
    saved(run, 4)
    differs(run, 3, 4)
    (target / "step-3" / "manifest.json").write_bytes(b"{")
    (target / "latest").unlink()
    noted(run)
    assert doubted(target) == [3, 4]


def test_many_doubts_of_a_step_do_not_fill_the_ledger(run: RunDir, target: Path) -> None:
    saved(run, 2)
    for _ in range(40):
        differs(run, 2, 2)
    noted(run)
    [of] = [doubts for doubts in entries(target).values() if doubts]
    assert len(of) <= checkpoint_ledger.DOUBTS_MAX


def test_a_tainted_step_made_of_a_save_keeps_what_an_audit_says_of_the_save(
    run: RunDir, target: Path
) -> None:
    """The ledger alone knows it; of the elements that copies differed in, the step tells itself."""
    saved(run, 4)
    fail(run)
    differs(run, 4, 4)
    noted(run)
    shutil.rmtree(run.root)
    of = target / "step-4"
    made = SimpleNamespace(step=Step(5), digest="0" * 64, tainted={"w": ()})
    found = basis_of(of, load_manifest(of), made=cast("Any", made))
    assert [one.code for one in found if one.code != EMPTY_STATE.code] == [DOUBTED.code]


def test_another_run_serves_the_folder_with_what_its_ledger_says(
    run: RunDir, target: Path, tmp_path: Path
) -> None:
    saved(run, 4)
    differs(run, 4, 4)
    noted(run)
    (tmp_path / "beside").mkdir()
    other = run_with_replica(tmp_path / "beside" / "other", tmp_path, "")
    other.config.write_bytes(run.config.read_bytes())
    served = catalogue_of(other, other.settings(), ServeConfig())
    assert [bool(served.doubts(one.folder, one.listing)) for one in served.durable().values()] == [
        False, False, False, True,
    ]  # fmt: skip
    other.remove()


class Stage:
    """The stage in this process, which does one thing when it is asked to."""

    def __init__(self, run: RunDir) -> None:
        self.told: list[object] = []
        self.own = PersistService(run, run.settings())
        self.own.start(cast("Any", SimpleNamespace(report=self.told.append)))

    def works(self) -> None:
        self.own._looked_s = self.own._next_s = 0.0
        self.own.work()
        assert self.own._thread is not None, "nothing is due"
        self.own._thread.join()
        self.own.work()


def test_the_stage_notes_it_while_memory_holds_no_step(run: RunDir, target: Path) -> None:
    saved(run, 5)
    service = Stage(run)
    service.works()
    run.replica.unlink()
    fail(run)
    service.works()
    assert doubted(target) == [4, 5]


def test_a_save_is_told_as_one_where_only_the_noting_fails(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = replica_of(run)
    take(replica, 3)
    service = Stage(run)

    def fails(*_: object) -> None:
        raise StateError(ERROR_TEXT(text="no", kind="x"))

    monkeypatch.setattr(Saver, "note_doubts", fails)
    service.works()
    kinds = [type(one) for one in service.told if isinstance(one, StepSaved | SaveFailed)]
    assert kinds == [StepSaved, SaveFailed]
    saves: list[object] = []
    monkeypatch.setattr(Saver, "save", lambda _, step: saves.append(step))
    service.works()
    assert not saves, "what is saved is not saved again"
    take(replica)
    monkeypatch.undo()
    service.works()
    status = service.own._reported
    assert (status.durable_step, status.attempts, status.error, status.count) == (4, 0, None, 2)
    replica.close()


def test_a_taint_that_comes_behind_its_record_is_missing_in_no_save(
    run: RunDir, target: Path
) -> None:
    """The updater was killed between the two, and what it had told was noted."""
    replica = replica_of(run)
    take(replica, 2)
    service = Stage(run)
    service.works()
    take(replica)
    differs(run, 3, 3)
    Stage(run).own._save(None)
    service.own._doubts_noted = service.own._records_of_doubts()
    service.works()
    assert doubted(target) == [3] and (target / "latest").read_text() == "step-2\n"
    replica.close()
