"""Several jobs given back into one folder: whole, as torch reads it, and in nobody else's place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused_as import like, refused_as
from support.steps import ADAMW, layout_of, made, trained
from test_overwrite_guard import held

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog import output_paths as outputs
from flowcheck.findings.catalog import trainer_checkpoints as findings
from flowcheck.ops.restore import multi_job_restore, restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import FoundStep
from flowcheck.replica.checkpoint.step_snapshot import Snapshot
from flowcheck.stages.run_directory.run_dir import RunDir

STEPS = 3
Trees = list[dict[str, Any]]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trees:
    """Two trainers: [job] its tree of the last step; its first file is job-N.pt of a folder."""
    (tmp_path / "early").mkdir()
    last, found = [], []
    for number in (1, 2):
        net, optimizer = made()
        trained(net, optimizer, 10 * number, 10 * number)
        tree = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
        torch.save(tree, tmp_path / "early" / f"{number}.pt")
        trained(net, optimizer, 10 * number + 1, 10 * number + STEPS - 1)
        last.append({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": STEPS})
        layout = layout_of(net)
        values = {n: p.detach().clone() for n, p in net.named_parameters()}
        states = tuple(dict(optimizer.state[p]) for p in net.parameters())
        taken = Snapshot(STEPS, "", layout, ADAMW, values, states)
        found.append(FoundStep(taken, f"job {number}"))
    runs = [RunDir(tmp_path / f"run-{n}") for n in (1, 2)]
    monkeypatch.setattr(multi_job_restore, "all_run_dirs", lambda run: runs)
    monkeypatch.setattr(multi_job_restore, "_found", lambda runs, allow_tainted: found)
    monkeypatch.setattr(multi_job_restore, "_told_apart", lambda runs, layouts, files: [0, 1])
    monkeypatch.setattr(
        "flowcheck.ops.lifecycle.common_step_of_jobs.all_run_dirs", lambda run: runs
    )
    return last


def restored(folder: Path, out: Path, *, force: bool = False, names: tuple[str, ...] = ()) -> None:
    early = folder / "early"
    files = [early / name for name in names or ("1.pt", "2.pt")]
    source = StepSource(run=folder / "run")
    request = RestoreRequest(source=source, templates=tuple(files), output=out, force=force)
    restore_command.run(request, as_json=True)


def test_each_job_comes_back_as_its_trainers_file_and_only_in_place_of_its_own_kind(
    jobs: Trees, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    restored(tmp_path, out)
    for number, own in enumerate(jobs, 1):
        tree = torch.load(out / f"job-{number}-{number}.pt", weights_only=True)
        assert tree["step"] == STEPS
        assert all(torch.equal(own["model"][n], v) for n, v in tree["model"].items())
        for index, state in own["optimizer"]["state"].items():
            told = tree["optimizer"]["state"][index]
            assert all(torch.equal(value, told[kind]) for kind, value in state.items())
    assert json.loads((out / "jobs.json").read_text())["step"] == STEPS
    with refused_as(outputs.EXISTS, kind=ConfigError):
        restored(tmp_path, out)
    (tmp_path / "early" / "2.pt").rename(tmp_path / "early" / "again.pt")
    restored(tmp_path, out, force=True, names=("1.pt", "again.pt"))
    there = ["job-1-1.pt", "job-2-again.pt", "jobs.json"]
    assert sorted(path.name for path in out.iterdir()) == there, "nothing of the output before"


@pytest.mark.parametrize("strange", ["notes.txt", "job-3-old.pt", "job-1-1.pt/"])
def test_what_no_restore_of_several_jobs_wrote_stays(
    strange: str, jobs: Trees, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    restored(tmp_path, out)
    if strange[-1] == "/":
        (out / strange).unlink()
        (out / strange).mkdir()
    else:
        (out / strange).write_text("mine")
    before = held(tmp_path)
    with refused_as(outputs.HOLDS_FOREIGN, kind=ConfigError, names=re.compile(re.escape(strange))):
        restored(tmp_path, out, force=True)
    assert held(tmp_path) == before


@pytest.mark.parametrize(
    "index", ["mine", '{"step": 3, "jobs": [{"job": 1, "checkpoint": "../x"}]}']
)
def test_an_index_of_something_else_lists_nothing(index: str, jobs: Trees, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "jobs.json").write_text(index)
    (tmp_path / "x").write_text("mine")
    with refused_as(outputs.HOLDS_FOREIGN, kind=ConfigError, names=("jobs.json",)):
        restored(tmp_path, tmp_path / "out", force=True)
    for path, wanted in (
        ("early", like(outputs.HOLDS_INPUT, what="what the step is filled into")),
        ("x", outputs.IS_FILE),
    ):
        with refused_as(wanted, kind=ConfigError):
            restored(tmp_path, tmp_path / path, force=True)


def test_a_job_that_does_not_fit_leaves_what_was_there(jobs: Trees, tmp_path: Path) -> None:
    out = tmp_path / "out"
    restored(tmp_path, out)
    before = held(out)
    torch.save({"model": {"a": torch.zeros(3)}, "step": 1}, tmp_path / "early" / "2.pt")
    with refused_as(findings.NO_MODEL):
        restored(tmp_path, out, force=True)
    assert held(out) == before
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
