"""`restore --run` of a chain that has ended: from the checkpoint that the record of its end
names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.persisting import replica_in, saver_for, take
from support.refused_as import refused_as

import flowcheck
from flowcheck.config import OptimizerConfig, PersistConfig, job_from
from flowcheck.errors import StateError
from flowcheck.findings.catalog.checkpoint_damage import NO_SUCH_CHECKPOINT
from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.findings.catalog.refused_restores import (
    REPLICA_GONE,
    STEP_NOT_KEPT,
    STEP_NOT_REACHED,
)
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.shutdown_record_writer import record_end
from flowcheck.ops.restore.restore_command import restore
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.restore.step_lookup import newest_step, step_on_stores
from flowcheck.ops.watch.state.chain_state import EndKind, JobEnd
from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.file_header import peek_versions
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.step_numbers import step_ranges

OPTIMIZER = {"name": "sgd", "learning_rate": 0.1}
CONFIG = job_from({"source": [{"file": "x"}], "optimizer": OPTIMIZER})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    layout = Layout.of_shapes([(1, 5)])
    weights = np.arange(5, dtype=np.float32)
    replica = Replica.create(tmp_path / "replica", layout, OptimizerConfig(**OPTIMIZER), weights)
    replica.apply(1, np.ones(5, dtype=np.float32))
    written = checkpoint_save.save(replica, tmp_path / "kept")
    replica.close()
    return written


def ended(folder: Path, checkpoint: Path | str | None) -> RunDir:
    run, _ = create_run(CONFIG, folder)
    run.steps.write_text('{"step":1,"digest":"d","seconds":0.1}\n')
    kept = None if checkpoint is None else str(checkpoint)
    record_end(run, EndKind.DRAINED, SIGNAL_INT(), [JobEnd(step=1, checkpoint=kept)], 10**18)
    run.remove(keep_records=True)
    return run


def test_the_checkpoint_that_was_kept_at_the_end_is_taken(tmp_path: Path, saved: Path) -> None:
    run = ended(tmp_path / "run", saved)
    for step in (None, 1):
        found = newest_step(run, settle=True, step=step)
        assert found.snapshot.step == 1
        (values,) = found.snapshot.parameters.values()
        own = np.arange(5, dtype=np.float32) - np.float32(0.1) * np.ones(5, dtype=np.float32)
        assert np.array_equal(values.numpy().reshape(-1), own)
    with refused_as(STEP_NOT_KEPT, step=2):
        newest_step(run, settle=True, step=2)


def test_a_step_on_several_stores_is_read_back_by_the_run_also_without_the_first_store(
    tmp_path: Path, shm: Path
) -> None:
    made = replica_in(shm / "state", 1000)
    take(made)
    stores = [tmp_path / name for name in "abc"]
    targets = [str(one) for one in stores]
    own = PersistConfig(targets=tuple(targets), every_steps=1)
    saver_for(own, tmp_path / "staging", shm / "state").save(1)
    made.close()
    stated: dict[str, Any] = {"source": [{"file": "x"}], "optimizer": OPTIMIZER}
    stated["persist"] = {"targets": targets, "every_steps": 1}
    run, _ = create_run(job_from(stated), tmp_path / "run")
    end = JobEnd(step=1, checkpoint=str(stores[0] / "step-1"))
    record_end(run, EndKind.DRAINED, SIGNAL_INT(), [end], 10**18)
    run.remove(keep_records=True)
    wanted = flowcheck.load(stores[1])["model"]
    for number in range(2):
        output = tmp_path / f"{number}.pt"
        source = StepSource(run=run.root)
        restore(RestoreRequest(source=source, output=output, form="torch"))
        for tree in (torch.load(output), flowcheck.load(run.root)):
            assert tree["step"] == 1
            assert all(torch.equal(tree["model"][name], one) for name, one in wanted.items())
        shutil.rmtree(stores[0], ignore_errors=True)
    several, _ = create_run(job_from(stated | {"jobs": 2}), tmp_path / "several")
    end = JobEnd(step=1, checkpoint=str(stores[1] / "step-1"))
    record_end(several, EndKind.DRAINED, SIGNAL_INT(), [end, end], 10**18)
    several.remove(keep_records=True)
    assert step_on_stores(several, None) is None  # it is not the step of all its jobs


def test_a_step_that_is_not_applied_yet_is_not_said_to_be_dropped(tmp_path: Path) -> None:
    """The steps that are kept are named as ranges in the sentence, one by one in JSON."""
    run, _ = create_run(CONFIG, tmp_path / "run")
    layout, weights = Layout.of_shapes([(1, 5)]), np.zeros(5, dtype=np.float32)
    replica = Replica.create(run.replica, layout, OptimizerConfig(**OPTIMIZER), weights)
    try:
        for step in range(1, 8):
            replica.apply(step, np.ones(5, dtype=np.float32))
        kept = peek_versions(run.replica)[1]
        first, last = min(kept), max(kept)
        assert last == 7 and len(kept) > 1 and sorted(kept) == list(range(first, last + 1))
        told = {"newest": 7, "kept": tuple(sorted(kept)), "ranges": (f"{first} to 7",)}
        with refused_as(STEP_NOT_REACHED, step=99999, **told):
            newest_step(run, settle=False, step=99999)
        assert first > 0
        with refused_as(STEP_NOT_KEPT, step=first - 1, newest=7):
            newest_step(run, settle=False, step=first - 1)
    finally:
        replica.close()
        run.remove(keep_records=False)


@pytest.mark.parametrize(
    ("steps", "words"),
    [([], []), ([3], ["3"]), ([9, 1, 2, 3, 7, 8, 3], ["1 to 3", "7 to 9"]), ([1, 3], ["1", "3"])],
)
def test_steps_in_words(steps: list[int], words: list[str]) -> None:
    assert step_ranges(steps) == words


def test_one_that_is_gone_since_is_named(tmp_path: Path) -> None:
    run = ended(tmp_path / "run", tmp_path / "none" / "step-1")
    with refused_as(NO_SUCH_CHECKPOINT, output=str(tmp_path / "none" / "step-1")):
        newest_step(run, settle=True)


@pytest.mark.parametrize("kept", [None, "s3://bucket/step-1"])
def test_without_a_folder_the_status_is_named(tmp_path: Path, kept: str | None) -> None:
    run = ended(tmp_path / "a run", kept)
    with refused_as(REPLICA_GONE) as refusal:
        newest_step(run, settle=True)
    assert isinstance(refusal.value, StateError)
    assert f"--run '{run.root}'" in refusal.value.finding.remedy
