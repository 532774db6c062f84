"""The stage: what it saves beside a replica that goes on, what it says, and what its end costs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from support import preloaded
from support.persisting import proved, replica_of, run_with_replica, take
from support.striped import flip, sums
from support.supervised import Clock, FakeProcess

from flowcheck.config import encode_config
from flowcheck.findings.catalog.chain_processes import (
    EXITED,
    LOG_EMPTY,
    OPTIONAL_STAGE_RESTARTED,
    OPTIONAL_STAGE_WAITS,
)
from flowcheck.ops.lifecycle import shutdown_cleanup
from flowcheck.ops.watch.state import checkpoint_status
from flowcheck.ops.watch.state.chain_state import DurableCheckpoint
from flowcheck.stages.checkpointing import final_checkpoint
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import stage_names
from flowcheck.stages.supervisor import stage_process
from flowcheck.stages.supervisor.stage_process import StageProcess

WAIT_S = 60.0


def until(true: Callable[[], bool], tick: Callable[[], None] = lambda: None) -> None:
    for _ in range(int(WAIT_S / 0.05)):
        if true():
            return
        tick()
        Event().wait(0.05)
    raise AssertionError("it never came")


@contextmanager
def stage(run: RunDir) -> Iterator[subprocess.Popen[bytes]]:
    command = ["stage", "persist", "--run", str(run.root)]
    with run.log("persist").open("ab") as log:
        process = preloaded.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def run(tmp_path: Path, target: Path) -> Iterator[RunDir]:
    stated = f'[persist]\ntarget = "{target}"\nevery_steps = 5\nkeep_last = 2\n'
    made = run_with_replica(tmp_path / "run", tmp_path, stated)
    yield made
    made.remove()


def told(run: RunDir) -> DurableCheckpoint:
    state = checkpoint_status.read_checkpoint_status(run, run.settings().persist)
    assert state is not None
    return state


def test_steps_become_durable_while_the_replica_goes_on_and_failures_are_seen_at_once(
    run: RunDir, target: Path, tmp_path: Path
) -> None:
    replica = replica_of(run)
    with stage(run) as process:
        until(lambda: told(run).step is not None, lambda: take(replica))
        assert proved(target / told(run).name) >= 5
        aside = tmp_path / "aside"
        target.rename(aside)
        target.write_text("no folder any more")
        until(lambda: told(run).attempts > 1, lambda: take(replica))
        state = told(run)
        assert "Not a directory" in str(state.error) or "File exists" in str(state.error)
        *_, (failing, why) = checkpoint_status.checkpoint_sentences(state, replica.step)
        assert why == state.error and failing.startswith("[red]saving fails[/] (2 attempts)")
        before = state.step
        target.unlink()
        aside.rename(target)
        until(lambda: not told(run).attempts and told(run).step > before)
        assert told(run).error is None
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert replica.step > before
    replica.close()


def test_tainted_steps_are_saved_while_an_exact_one_is_held_that_is_not_due(
    run: RunDir, target: Path
) -> None:
    """Memory keeps the newest exact one for as long as all that follow it are tainted."""
    replica = replica_of(run)
    take(replica, 3)
    for step in range(4, 13):
        replica.apply(step, np.ones(replica.layout.elements, np.float32), missing=[(8, 16)])
    assert 3 in replica.versions
    with stage(run):
        until(lambda: told(run).step == 10)
        assert sorted(path.name for path in target.glob("step-*")) == ["step-10", "step-3"]
    assert proved(target / "step-3") == 3
    replica.close()


def test_blocks_that_a_store_lost_are_made_again_by_the_stage_that_saves(tmp_path: Path) -> None:
    stores = [tmp_path / name for name in "abc"]
    targets = ", ".join(f'"{store}"' for store in stores)
    stated = f"[persist]\ntargets = [{targets}]\nevery_steps = 5\nkeep_last = 99\n"
    stated += "scrub_every_hours = 0.0001\n"
    run = run_with_replica(tmp_path / "run", tmp_path, stated, 10_000)
    replica = replica_of(run)
    with stage(run):
        until(lambda: (told(run).step or 0) >= 10, lambda: take(replica))
    replica.close()
    before = [sums(store) for store in stores]
    shards = list(stores[0].glob("step-*/blocks.stripe"))
    shutil.rmtree(shards[0].parent)
    damaged = stores[1] / shards[1].relative_to(stores[0])
    flip(damaged, damaged.stat().st_size // 2)
    began_ns = time.time_ns()
    with stage(run):
        until(lambda: (told(run).scrubbed_time_ns or 0) > began_ns)
    for store, kept in zip(stores, before, strict=True):
        found = sums(store)
        for name in kept:
            assert found[name] == kept[name] or "/" not in name, name
    sentences = checkpoint_status.checkpoint_sentences(told(run), 10)
    assert any("every block of the saves" in line for line, _ in sentences)
    run.remove()


def test_the_last_step_goes_the_same_way_when_the_chain_stops(run: RunDir, target: Path) -> None:
    replica = replica_of(run)
    take(replica, 3)
    replica.close()
    kept, why = shutdown_cleanup.save_replicas(run.settings(), run)
    assert why is None
    assert [one.folder for one in kept if one is not None] == [target / "step-3"]
    assert (target / "latest").read_text() == "step-3\n"
    assert proved(target / "step-3") == 3


def test_a_last_step_that_its_target_refuses_is_kept_below_the_run(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = replica_of(run)
    take(replica, 3)
    replica.close()
    target.write_text("no folder")
    monkeypatch.setattr(final_checkpoint, "RETRY_WAITS_S", (0.01, 0.01))
    kept, _ = shutdown_cleanup.save_replicas(run.settings(), run)
    assert kept[0] is not None and kept[0].folder == run.root / "rescued" / "step-3"
    assert str(target) in str(kept[0].why)


def test_a_stage_beside_the_chain_that_dies_again_and_again_is_given_time_and_never_the_chain(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeProcess.started, FakeProcess.said = [], []
    clock = Clock()
    monkeypatch.setattr(stage_process.subprocess, "Popen", FakeProcess)
    monkeypatch.setattr(stage_process, "time", clock)
    own = StageProcess("persist")
    own.spawn(run)
    said = []
    for _ in range(400):
        clock.now_s += 1
        FakeProcess.started[-1].code = 1
        said.append(own.restart_if_dead(run))
    told = [one for one in said if one is not None]
    empty = {"stage": "persist", "ended": EXITED(1), "log": LOG_EMPTY(run.log("persist"))}
    assert told[0] == OPTIONAL_STAGE_RESTARTED(**empty)
    assert told[1] == OPTIONAL_STAGE_WAITS(**empty, seconds=2)
    assert told[-1] == OPTIONAL_STAGE_WAITS(**empty, seconds=60)
    assert 9 < len(FakeProcess.started) < 20


def test_only_a_job_that_states_it_has_the_stage(run: RunDir) -> None:
    settings = run.settings()
    assert stage_names(settings)[:3] == ["update", "extract", "persist"]
    assert b"kept" in encode_config(settings)
