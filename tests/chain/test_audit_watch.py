"""Checkpoints that torch's own trainer writes are compared with a running chain as they appear.

Damaged as they were in users' jobs: a rank's copy with NaN beside a right primary, a save that
holds an earlier step's moments, moments of zero, one state under two names.
"""

from __future__ import annotations

import json
import pickle
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support.chain import LIMIT_S, Command, flowcheck, wait_until
from test_give_back import FACTORY, RATE, STEPS, job_file, lines, trained

from flowcheck.errors import StateError
from flowcheck.findings.catalog.file_audits import DOUBTED, RESTORE_DOUBTED
from flowcheck.lab.synthetic_traffic.synthetic_job import SyntheticJob
from flowcheck.ops.restore import restore_command, verify_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.single_step_restore import RestoredStep
from flowcheck.ops.watch.prometheus_metrics import metrics_text
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.job_state.audited_files import read_audited_files
from flowcheck.stages.run_directory.run_dir import RunDir

pytestmark = [
    pytest.mark.xdist_group("audit watch"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


class Ran:
    """A pickle that would leave a mark, if anything of it were called."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@contextmanager
def watched_chain(folder: Path) -> Iterator[RunDir]:
    """A chain that took every step of the trainer, and watches `folder`/runs."""
    trained(folder, SyntheticJob(steps=STEPS))
    (folder / "job.py").write_text(FACTORY)
    (folder / "runs").mkdir()  # the chain's user sees of a private folder what was there
    job, where = job_file(folder, RATE), RunDir(folder / "run")
    table = f'[audit]\nfolder = "{folder}/runs"\ninterval_s = 0.1\n'
    job.write_text(job.read_text() + table)
    try:
        with Command("up", job, "--run", where.root):
            wait_until(lambda: lines(where.steps) == STEPS, LIMIT_S, "all steps")
            wait_until(lambda: "audit" in where.stage_pids(), LIMIT_S, "the stage")
            yield where
    finally:
        wait_until(lambda: not where.stage_pids(), 60, "the end of the killed chain's stages")
        where.remove()


def outcomes(where: RunDir, folder: Path) -> dict[str, tuple[str, int | None, str | None]]:
    """{name below the folder: (outcome, step, first tensor that differs)}"""
    return {
        str(Path(one.file).relative_to(folder)): (one.outcome.value, one.step, one.tensor)
        for one in read_audited_files(where)
        if one.outcome != "reading" and one.folder == str(folder)
    }


def write_good_and_damaged(folder: Path, runs: Path) -> None:
    """What a trainer of two ranks and its asynchronous saves left."""
    (runs / "step-5").mkdir()
    own = torch.load(folder / "step-5.pt", weights_only=True)
    torch.save(own, runs / "step-5/rank-0.pt")
    own["net"]["layer1"][3] = float("nan")
    torch.save(own, runs / "step-5/rank-1.pt")
    tree = torch.load(folder / "step-6.pt", weights_only=True)
    own = tree["opt"]  # by name, as torch.distributed.checkpoint.state_dict has it
    groups = [one | {"params": [f"layer{n}" for n in one["params"]]} for one in own["param_groups"]]
    named = {"state": {f"layer{n}": s for n, s in own["state"].items()}, "param_groups": groups}
    whole = {"model": tree["net"], "optimizer": named, "step": tree["global_step"]}
    dcp.save(whole, checkpoint_id=runs / "step-6")
    shutil.copy(folder / "step-3.pt", runs / "step-3.pt")
    half = (folder / "step-4.pt").read_bytes()
    (runs / "step-4.pt").write_bytes(half[: len(half) // 2])
    with (runs / "step-7.pt").open("wb") as file:
        pickle.dump(Ran(folder / "ran"), file, protocol=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_file_is_held_against_its_step_and_a_difference_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, runs, more = tmp_path, tmp_path / "runs", tmp_path / "more"
    with watched_chain(folder) as where:
        write_good_and_damaged(folder, runs)
        wait_until(lambda: len(outcomes(where, runs)) >= 5, LIMIT_S, "five files")
        shutil.copy(folder / "step-4.pt", runs / "step-4.pt")  # its writer goes on
        shutil.copy(folder / "step-3.pt", runs / "step-8.pt")  # one state under two names
        wait_until(lambda: len(outcomes(where, runs)) >= 7, LIMIT_S, "seven files")
        assert outcomes(where, runs) == {
            "step-3.pt": ("equal", 3, None),
            "step-4.pt": ("equal", 4, None),
            "step-5/rank-0.pt": ("equal", 5, None),
            "step-5/rank-1.pt": ("differs", 5, "layer1"),
            "step-6": ("equal", 6, None),
            "step-7.pt": ("not_compared", None, None),
            "step-8.pt": ("stale", 3, None),
        }
        assert not (folder / "ran").exists(), "nothing of a pickle was run"
        (job,) = StateReader(where.root).state().jobs
        assert (job.audit_passed, job.audit_doubt, job.equal_step) == (True, None, 6)
        assert [one.arguments["file"] for one in job.damaged_files] == [f"{runs}/step-5/rank-1.pt"]

        code, told = moments_that_differ(folder, more, where)
        assert code == 1
        *files, last = told
        files.sort(key=lambda one: one["step"])  # their times may lie in one tick of the clock
        assert [(one["step"], one["outcome"], one["tensor"]) for one in files] == [
            (2, "equal", None),
            (7, "differs", "layer0/exp_avg"),
            (8, "differs", "layer0/exp_avg"),
        ]
        codes = [why["code"] for why in files[2]["why"]]
        assert codes == ["audit.element_differs", "audit.holds_zeros"]
        evidence = files[1]["why"][-1]
        assert (evidence["code"], evidence["arguments"]["step"]) == ("audit.holds_other_step", 1)
        assert (last["failed_step"], last["equal_step"], last["exit_code"]) == (7, 6, 1)
        check_told_and_refused(folder, where, capsys)
        base = flowcheck("base", folder / f"step-{STEPS}.pt", "--run", where.root)
        assert base[0] == 0, base
        (done,) = restored(where, folder / "b.pt")
        assert done.doubt is None, "a base ends the doubt"


def moments_that_differ(folder: Path, more: Path, where: RunDir) -> tuple[int, list[Any]]:
    """(exit code, lines) of a command that watches a folder with files that are there already."""
    more.mkdir()
    shutil.copy(folder / "step-2.pt", more / "step-2.pt")
    first = torch.load(folder / "step-1.pt", weights_only=True)["opt"]["state"]
    for step, moment in ((8, lambda n: torch.zeros_like(first[n]["exp_avg"])),
                         (7, lambda n: first[n]["exp_avg"])):  # fmt: skip
        tree = torch.load(folder / f"step-{step}.pt", weights_only=True)
        for number, state in tree["opt"]["state"].items():
            state["exp_avg"] = moment(number)
        torch.save(tree, more / f"step-{step}.pt")
    options = ("--existing", "--interval", "0.1", "--json")
    with Command("audit", "--watch", more, "--run", where.root, *options) as command:
        wait_until(lambda: len(outcomes(where, more)) == 3, LIMIT_S, "three files")
        command.process.send_signal(signal.SIGINT)
        code, out, err = command.result()
    assert not err, err
    return code, [json.loads(line) for line in out.splitlines()]


def check_told_and_refused(folder: Path, where: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """What the state, the metrics, the events, `restore` and `verify` say of a difference."""
    state: ChainState = StateReader(where.root).state()
    (job,) = state.jobs
    assert (job.health.word.value, job.audit_passed, job.audited_step) == ("tainted", False, 7)
    assert job.audit_doubt is not None and job.audit_doubt.arguments["equal"] == 6
    metrics = metrics_text(state, "")[0].decode()
    name = job.name
    assert f'flowcheck_audit_passed{{training_job="{name}"}} 0.0' in metrics
    assert f'flowcheck_audit_equal_step{{training_job="{name}"}} 6.0' in metrics
    assert f'flowcheck_audited_files_total{{outcome="stale",training_job="{name}"}} 1.0' in metrics
    wait_until(lambda: '"audit_skipped"' in where.events.read_text(), 60, "the event")
    kinds = [json.loads(line)["kind"] for line in where.events.read_text().splitlines()]
    assert kinds.count("audit") >= 6
    with pytest.raises(StateError) as refused:
        restored(where, folder / "a.pt")
    assert refused.value.finding.is_any_of(RESTORE_DOUBTED)
    (done,) = restored(where, folder / "a.pt", despite_audit=True)
    assert done.doubt is not None and done.doubt.is_any_of(DOUBTED)
    assert verify_command.run(folder / "a.pt", as_json=False) == 0
    assert "NOT proved exact" in capsys.readouterr().out
    (done,) = restored(where, folder / "6.pt", step=6)
    assert done.doubt is None


def restored(
    where: RunDir, out: Path, *, step: int | None = None, despite_audit: bool = False
) -> Sequence[RestoredStep]:
    source = StepSource(run=where.root, step=step)
    request = RestoreRequest(source=source, output=out, form="torch", despite_audit=despite_audit)
    return restore_command.restore(request)
