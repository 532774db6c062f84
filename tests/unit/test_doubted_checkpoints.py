"""A checkpoint that was saved before an audit failed is in doubt too, wherever its run is known."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.refused_as import refused_as
from typer.testing import CliRunner

import flowcheck
from flowcheck.cli import app
from flowcheck.config import OptimizerConfig, encode_config, job_from
from flowcheck.findings.catalog.file_audits import DOUBTED, LOAD_DOUBTED, RESTORE_DOUBTED
from flowcheck.findings.catalog.refused_restores import OTHER_STEP, STEP_NOT_THERE
from flowcheck.messages import AuditRecord
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import Step

OPTIMIZER = {"name": "adamw", "learning_rate": 0.1}
LAYOUT = Layout.of_shapes([(5, 3), (3,)])
EQUAL, FAILED, STEPS = 3, 5, (3, 6, 9)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with checkpoints of STEPS."""
    config = OptimizerConfig(**OPTIMIZER)
    weights = np.linspace(-1, 1, LAYOUT.elements).astype(np.float32)
    replica = Replica.create(tmp_path / "replica", LAYOUT, config, weights)
    for step in range(1, STEPS[-1] + 1):
        gradient = np.random.default_rng(step).standard_normal(LAYOUT.elements).astype(np.float32)
        replica.apply(step, gradient)
        if step in STEPS:
            checkpoint_save.save(replica, tmp_path / "saved")
    replica.close()
    return tmp_path / "saved"


def run_with(root: Path, **settings: object) -> RunDir:
    root.mkdir()
    made = RunDir(root)
    config = {"source": [{"file": "0"}], "optimizer": OPTIMIZER} | settings
    made.config.write_bytes(encode_config(job_from(config)))
    return made


def audited(run: RunDir, step: int, *, passed: bool = True, base: bool = False) -> None:
    first = None if passed else "w/exp_avg"
    line = AuditRecord(
        step=step, passed=passed, file=f"{step}.pt", tensors=0 if base else 4,
        first_difference=first, optimizer=True, base=base,
    )  # fmt: skip
    with run.audits.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def fail(run: RunDir) -> None:
    audited(run, EQUAL)
    audited(run, FAILED, passed=False)


def persists(folder: Path) -> dict[str, object]:
    return {"persist": {"target": str(folder), "every_steps": 3}}


def test_a_checkpoint_of_the_persist_folder_is_asked_of_its_run(
    saved: Path, tmp_path: Path
) -> None:
    run = run_with(tmp_path / "run", **persists(saved))
    assert flowcheck.load(saved, run=run.root)["step"] == 9
    fail(run)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved, run=run.root)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved / "step-6", run=run.root)
    assert flowcheck.load(saved, run=run.root, despite_audit=True)["step"] == 9
    assert flowcheck.load(saved, 3, run=run.root)["step"] == 3
    assert flowcheck.load(saved)["step"] == 9, "alone it cannot know"
    other = run_with(tmp_path / "other", **persists(tmp_path / "elsewhere"))
    fail(other)
    assert flowcheck.load(saved, run=other.root)["step"] == 9, "another job's audits"


def test_restore_and_verify_ask_it_too(saved: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", **persists(saved))
    fail(run)
    out = tmp_path / "out.pt"

    def request(step: int, *, despite_audit: bool = False) -> RestoreRequest:
        source = StepSource(run=run.root, checkpoint=saved, step=step)
        return RestoreRequest(source=source, output=out, form="torch", despite_audit=despite_audit)

    with refused_as(RESTORE_DOUBTED):
        restore_command.restore(request(6))
    [done] = restore_command.restore(request(6, despite_audit=True))
    assert done.doubt is not None and done.doubt.is_any_of(DOUBTED)
    with refused_as(LOAD_DOUBTED):  # its manifest says it, wherever it is
        flowcheck.load(out)
    assert flowcheck.load(out, despite_audit=True)["step"] == 6
    out.unlink()
    out.with_name("out.pt.manifest.json").unlink(missing_ok=True)
    verify = CliRunner().invoke
    told = verify(app, ["verify", str(saved / "step-6"), "--run", str(run.root), "--json"])
    assert told.exit_code == 0 and json.loads(told.stdout)["doubt"]["code"] == DOUBTED.code
    plain = verify(app, ["verify", str(saved / "step-6"), "--run", str(run.root)])
    assert "NOT proved exact" in plain.stdout
    for words in (["step-3", "--run", str(run.root)], ["step-6", "--run", str(tmp_path)]):
        told = verify(app, ["verify", str(saved / words[0]), *words[1:], "--json"])
        assert json.loads(told.stdout)["doubt"] is None


def test_a_run_and_what_lies_in_it_need_no_name(saved: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", checkpoint=str(saved))
    kept = run.root / "kept-1"
    saved.rename(kept)
    kept_run = run_with(tmp_path / "second", checkpoint=str(kept))
    for own in (run, kept_run):
        fail(own)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(kept)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(kept_run.root)
    assert flowcheck.load(kept_run.root, despite_audit=True)["step"] == 9
    assert flowcheck.load(kept_run.root, 3)["step"] == 3


def test_a_base_ends_the_doubt_of_what_is_saved_from_there_on(saved: Path, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", **persists(saved))
    fail(run)
    audited(run, 8, base=True)
    assert flowcheck.load(saved, 9, run=run.root)["step"] == 9
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved, 6, run=run.root)
    assert flowcheck.load(saved, 3, run=run.root)["step"] == 3
    audited(run, 9, passed=False)
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved, 9, run=run.root)


def test_a_step_that_a_folder_has_not_is_told_with_those_it_has(
    saved: Path, tmp_path: Path
) -> None:
    run = run_with(tmp_path / "run", **persists(saved))
    fail(run)
    for step in (5, 99):
        with refused_as(STEP_NOT_THERE, step=step, steps=STEPS):
            flowcheck.load(saved, step, run=run.root)
        source = StepSource(checkpoint=saved, step=Step(step))
        request = RestoreRequest(source=source, output=tmp_path / "out.pt", form="torch")
        with refused_as(STEP_NOT_THERE, step=step, steps=STEPS):
            restore_command.restore(request)
    with refused_as(OTHER_STEP):
        flowcheck.load(saved / "step-6", 5)
