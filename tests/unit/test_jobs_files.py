"""Checkpoints of two jobs that one chain follows: each is held against its own job, in a folder
each or in one together. Judged by torch's own trainers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.persisting import learn, replica_of, run_with_replica

from flowcheck.findings.catalog import base_checkpoints as findings
from flowcheck.ops.trainer_checkpoint.audit_watch import job_of_file
from flowcheck.ops.trainer_checkpoint.audit_watch.candidates import look_at
from flowcheck.ops.trainer_checkpoint.audit_watch.file_audit import (
    MayBeBase,
    NotYet,
    audit_file,
)
from flowcheck.stages.job_state.audit_history import audit_history_of
from flowcheck.stages.job_state.audited_files import AuditedFile, FileOutcome
from flowcheck.stages.run_directory.run_dir import RunDir

JOBS = '[[job]]\nname = "one"\nhosts = ["10.0.0.1"]\n[[job]]\nname = "two"\nhosts = ["10.0.0.2"]\n'
STEPS = {1: 5, 2: 3}
"""{job: steps of its replica}; both have the same model."""
LATER = 6


class Jobs:
    """Two jobs of one model, and torch's checkpoints of each step of each."""

    def __init__(self, folder: Path) -> None:
        self.run = run_with_replica(folder / "run", folder, JOBS, 1000)
        learn(self.run.job_run_dir(2), 1000)
        self.runs, self.trees = folder / "runs", dict[tuple[int, int], dict[str, Any]]()
        self.earlier: list[AuditedFile] = []
        for job in STEPS:
            self.step(job)

    def own(self, job: int) -> RunDir:
        return self.run if job == 1 else self.run.job_run_dir(2)

    def step(self, job: int) -> None:
        """By torch to LATER, and by the replica to STEPS."""
        with closing(replica_of(self.own(job))) as replica:
            sizes = [p.elements for p in replica.layout.parameters]
            weights = torch.from_numpy(replica.parameters().copy()).split(sizes)
            parameters = [torch.nn.Parameter(own.clone()) for own in weights]
            optimizer = torch.optim.AdamW(parameters, lr=0.1)
            for step in range(1, LATER + 1):
                random = np.random.default_rng(100 * job + step)
                gradient = random.standard_normal(sum(sizes)).astype(np.float32)
                if step <= STEPS[job]:
                    replica.apply(step, gradient)
                for p, part in zip(
                    parameters, torch.from_numpy(gradient).split(sizes), strict=True
                ):
                    p.grad = part.clone()
                optimizer.step()
                states = optimizer.state_dict()["state"].items()
                copied = {n: {k: v.clone() for k, v in own.items()} for n, own in states}
                self.trees[job, step] = {
                    "model": {f"w{n}": p.detach().clone() for n, p in enumerate(parameters)},
                    "opt": optimizer.state_dict() | {"state": copied},
                }

    def audit(self, name: str, job: int, step: int, *, wrong: bool = False) -> Any:
        file = self.runs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        tree = self.trees[job, step]
        if wrong:
            tree = tree | {"model": {name: own + 1 for name, own in tree["model"].items()}}
        torch.save(tree, file)
        [one] = look_at(self.runs).candidates
        told = audit_file(self.run, self.runs, one, self.earlier)
        file.unlink()
        if isinstance(told, AuditedFile):
            self.earlier.append(told)
        return told

    def failed(self) -> list[bool]:
        return [audit_history_of(self.own(job)).failed is not None for job in STEPS]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.run.job_run_dir(2).remove()
    made.run.remove()


@pytest.mark.parametrize("names", ["job-{}/step-{}.pt", "{}-step-{}.pt"])
def test_each_file_is_held_against_its_own_job(jobs: Jobs, names: str) -> None:
    for job, newest in STEPS.items():
        told = jobs.audit(names.format(job, newest), job, newest)
        assert (told.outcome, told.job, told.step) == (FileOutcome.EQUAL, job, newest)
    assert audit_history_of(jobs.own(2)).equal_step == STEPS[2]
    told = jobs.audit(names.format(2, 2), 2, 2, wrong=True)
    assert (told.outcome, told.job) == (FileOutcome.DIFFERS, 2), "its folder, or name, tells whose"
    assert jobs.failed() == [False, True]
    early = jobs.audit(names.format(2, LATER), 2, LATER)
    assert isinstance(early, NotYet)
    assert (early.step, early.at) == (LATER, STEPS[2])
    assert early.run is not None and early.run.root == jobs.own(2).root


def test_nothing_is_guessed_of_a_file_whose_job_nothing_tells(jobs: Jobs) -> None:
    told = jobs.audit("step-3.pt", 2, 3, wrong=True)
    assert told.outcome is FileOutcome.NOT_COMPARED
    assert told.why[0].is_any_of(findings.AUDITED_JOB_OPEN)
    for job in STEPS:
        assert jobs.audit(f"step-{job}.pt", job, job).job == job
    told = jobs.audit("step-3.pt", 2, 3, wrong=True)
    assert told.outcome is FileOutcome.NOT_COMPARED, "both write under these names"
    assert jobs.failed() == [False, False]
    late = jobs.audit("step-4.pt", 2, 4)
    assert isinstance(late, NotYet) and late.run is not None
    assert late.run.root == jobs.own(2).root, "it is no step of the other's"


def test_a_file_whose_job_nothing_tells_may_be_the_base_of_each_that_has_none(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    without: list[int] = [1, 2]
    roots = {jobs.own(job).root: job for job in STEPS}
    monkeypatch.setattr(job_of_file, "awaits_base", lambda run: roots[run.root] in without)

    def of(told: Any) -> tuple[list[int], int | None]:
        assert isinstance(told, MayBeBase), told
        return [roots[run.root] for run in told.runs], told.job

    assert of(jobs.audit("step-6.pt", 2, LATER)) == ([1, 2], None)
    without.remove(1)
    assert of(jobs.audit("step-6.pt", 2, LATER)) == ([2], None)
    told = jobs.audit("one-step-5.pt", 1, 5)
    assert (told.outcome, told.job) == (FileOutcome.EQUAL, 1), "it has the state to compare with"
    early = jobs.audit("one-step-6.pt", 1, LATER)
    assert isinstance(early, NotYet) and early.run is not None
    assert early.run.root == jobs.own(1).root, "its name tells"
