"""What was saved of steps before copies of them turned out to differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.kept_replica import LOST, SAVED, STEPS, Kept, again
from support.refused_as import refused_as
from test_doubted_checkpoints import persists, run_with, saved

import flowcheck
from flowcheck.errors import StateError
from flowcheck.findings.catalog.file_audits import LOAD_DOUBTED
from flowcheck.findings.catalog.step_journals import JOURNAL_TAINTED_LATE
from flowcheck.stages.job_state.audit_history import doubt_among
from flowcheck.stages.job_state.differing_steps import DifferingStep, record_differing_step
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.step_numbers import Step

__all__ = ["saved"]

SINCE, MADE = 5, 6
ELEMENTS = np.array([[LOST[0] // 4, LOST[1] // 4]])


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path, [])
    yield made
    made.close()


def test_the_save_itself_is_in_doubt_where_only_the_folder_tells_it(
    kept: Kept, tmp_path: Path
) -> None:
    kept.steps(1, MADE)
    kept.replica.taint_since(Step(SAVED), ELEMENTS)
    kept.steps(MADE + 1, STEPS)
    kept.written()
    for step in (None, SAVED):
        doubt = doubt_among(again(tmp_path, step).assumed)
        assert doubt is not None and doubt.is_any_of(JOURNAL_TAINTED_LATE)
    [(_, [one])] = again(tmp_path, SAVED + 1, tainted=True).snapshot.tainted.items()
    assert (one.start, one.stop, one.since) == (*ELEMENTS[0], SAVED)


def test_a_checkpoint_saved_meanwhile_is_in_doubt(saved: Path, tmp_path: Path) -> None:
    """Steps 3, 6 and 9 are saved; 5 to 6 were called exact."""
    run = run_with(tmp_path / "run", **persists(saved))
    late = DifferingStep(
        time_ns=1, step=Step(SINCE), called_exact_to=Step(MADE), conflict_bytes=8, elements=2
    )
    record_differing_step(run, late)
    record_differing_step(run, late)
    assert len(run.differing.read_bytes().splitlines()) == 1
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved, 6, run=run.root)
    for step in (3, 9):
        assert flowcheck.load(saved, step, run=run.root)["step"] == step
    assert flowcheck.load(saved, 6, run=run.root, despite_audit=True)["step"] == 6


@pytest.mark.parametrize("killed", [False, True])
def test_the_gradient_folder_tells_it_of_every_step_since(
    kept: Kept, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged by torch: what is not tainted has its bits, also of the step before."""
    kept.steps(1, SINCE - 1)
    before = {name: p.detach().clone() for name, p in kept.net.named_parameters()}
    kept.steps(SINCE, MADE)
    if killed:  # told, and not seen by anybody: it is told again
        monkeypatch.setattr(KeptSteps, "tainted_late", _killed)
        with pytest.raises(KeyboardInterrupt):
            kept.replica.taint_since(Step(SINCE), ELEMENTS)
        monkeypatch.undo()
    kept.replica.taint_since(Step(SINCE), ELEMENTS)
    kept.replica.taint_since(Step(SINCE), ELEMENTS)
    kept.steps(MADE + 1, STEPS)
    kept.written()
    exact = again(tmp_path).snapshot
    assert exact.step == SINCE - 1 and not exact.tainted
    assert all(torch.equal(exact.parameters[name], own) for name, own in before.items())
    for step in range(SINCE, STEPS + 1):
        with pytest.raises(StateError):
            again(tmp_path, step)
        [(name, [one])] = again(tmp_path, step, tainted=True).snapshot.tainted.items()
        assert (one.start, one.stop, one.since) == (*ELEMENTS[0], SINCE), name


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
