"""What was saved of steps before copies of them turned out to differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.differing import STEP, Port, changed
from support.incarnations import floats
from support.kept_replica import LOST, SAVED, STEPS, Kept, again
from support.refused_as import refused_as
from support.two_rings import TwoRings
from test_base_command import Trainer
from test_differing_copies import ADAMW
from test_doubted_checkpoints import persists, run_with, saved
from test_replica_reset import given
from test_tainted_restart import replica_of

import flowcheck
from flowcheck.config import encode_config
from flowcheck.errors import StateError
from flowcheck.findings.catalog.file_audits import LOAD_DOUBTED
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.catalog.step_journals import JOURNAL_TAINTED_LATE
from flowcheck.ops.restore.checkpoint_doubts import basis_of
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.checkpoint_files.manifest import load_manifest
from flowcheck.stages.job_state.audit_history import doubt_among
from flowcheck.stages.job_state.differing_steps import (
    DifferingStep,
    differing_steps,
    record_differing_step,
    saved_while_exact,
)
from flowcheck.stages.job_state.lifecycle_record_reader import incarnation_of
from flowcheck.stages.replica_update.gradient_sources.gradient_source import LateDifferences
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.replica_update.late_differences import record_late
from flowcheck.stages.run_directory.disk_full import DiskFullCounter
from flowcheck.step_numbers import Iteration, Step

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
    with refused_as(LOAD_DOUBTED):
        flowcheck.load(saved, 6, run=run.root)
    for step in (3, 9):
        assert flowcheck.load(saved, step, run=run.root)["step"] == step
    assert flowcheck.load(saved, 6, run=run.root, despite_audit=True)["step"] == 6


@pytest.mark.parametrize("others", [False, True], ids=["these", "others"])
def test_a_checkpoint_that_names_other_elements_is_in_doubt_too(
    kept: Kept, tmp_path: Path, others: bool
) -> None:
    """It is not where it names those of which copies differ: then it was saved behind that."""
    kept.steps(1, SAVED, lossy=SAVED)
    saved = checkpoint_save.save(kept.replica, tmp_path / "own")
    run = run_with(tmp_path / "run", **persists(tmp_path / "own"))
    ranges = [(LOST[1] - 4, LOST[1] + 4 * others)]
    late = LateDifferences(0, Iteration(SAVED), 8, ranges)
    records = SimpleNamespace(unwritten=DiskFullCounter(run.steps))
    record_late(run, kept.replica, cast("Any", records), Step(SAVED), late, Step(SAVED))
    found = basis_of(saved, load_manifest(saved), run.root)
    assert [one.code for one in found] == [CALLED_EXACT_BEFORE.code] * others


def test_copies_of_a_step_that_a_file_of_the_trainer_replaced_put_saves_of_it_in_doubt(
    shm: Path, tmp_path: Path
) -> None:
    """The replica itself is the trainer's, and stays exact."""
    trainer = Trainer()
    log = {"taken_steps": 4}
    port = Port(tmp_path, shm / "memory", trainer.flat(), optimizer=ADAMW, gradient_log=log)
    for gradient in port.gradients[:STEP]:
        trainer.step(floats(gradient))
    with torch.no_grad():
        trainer.parameters[0].mul_(1.5)  # no frame shows it
    try:
        port.begin()
        port.run.config.write_bytes(encode_config(port.both.config))
        port.both.drive(until=lambda: port.both.applied_iteration() >= STEP)
        work = port.hold_update(0)
        given(port.both, trainer.save(tmp_path / "own.pt", STEP))
        while incarnation_of(port.run).anchored != STEP:
            work()
        port.come(changed(port.message[2], [3]))
        work()
        [late] = differing_steps(port.run)
        assert (late.step, late.called_exact_to, late.elements) == (STEP, STEP, 1)
        assert saved_while_exact(port.run, Step(STEP))
        assert not replica_of(port.both).commit.tainted
    finally:
        port.both.close()


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


def test_the_newest_line_is_written_again_and_no_record_grows_with_steps(tmp_path: Path) -> None:
    rings = TwoRings(tmp_path)
    steps = 4
    try:
        for step in range(1, steps + 1):
            rings.take(1)
            for word in (0, 8):
                rings.differs_late(1, step, [(16 * step + word, 16 * step + word + 4)])
        run = rings.own(1)
        lines = [json.loads(line) for line in run.steps.read_bytes().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, steps + 1))
        assert [sum(line["tainted"].values()) for line in lines] == [2, 4, 6, 8]
        assert all(line["seconds"] == 0.01 for line in lines)
        assert not list(run.root.glob("steps-*"))
    finally:
        rings.close()


def test_what_was_tainted_before_is_not_said_to_have_been_called_exact(tmp_path: Path) -> None:
    rings = TwoRings(tmp_path)
    try:
        rings.take(1, [(8, 40)])
        rings.take(1)
        assert rings.differs_late(1, 1, [(16, 24)]) is None
        for _ in range(2):  # again, as behind a kill
            told = rings.differs_late(1, 1, [(32, 48)])
            assert told is not None
            assert (told.elements, told.called_exact_to) == (2, 2)
            assert [*told.parameters.values()] == [((10, 12),)]
        [line] = differing_steps(rings.own(1))
        assert line.elements == 2
    finally:
        rings.close()
