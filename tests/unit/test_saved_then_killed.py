"""A chain that was killed and whose memory is gone: what `[persist]` saved is restored, and told
by `status` as it is by `restore`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.persisting import replica_of, run_with_replica
from support.refused_as import refused_as

import flowcheck
from flowcheck.findings.catalog.chain_health import SUPERVISOR_GONE, SUPERVISOR_GONE_NO_REPLICA
from flowcheck.findings.catalog.how_chains_end import SIGNAL_INT
from flowcheck.findings.catalog.refused_restores import SAVED_IN_FOLDER, SAVED_IN_STORE
from flowcheck.findings.catalog.restored_state import EXACT_IN_ALL, NOT_EXACT_IN_ALL
from flowcheck.findings.catalog.step_journals import JOURNAL_MORE
from flowcheck.ops.lifecycle.shutdown_record_writer import record_end
from flowcheck.ops.lifecycle.status_command import print_state, read_chain
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.ops.watch.state.chain_state import EndKind
from flowcheck.ops.watch.state.held_steps import newest_exact_step
from flowcheck.stages.checkpointing.final_checkpoint import save_last_step
from flowcheck.stages.replica_update.kept_steps import KeptSteps
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.save_status_file import read_save_status, write_save_status

EXACT, TAINTED = 4, 5


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """Of a chain whose saves are steps 2, EXACT and TAINTED, and that took one more step."""
    table = f'[persist]\ntarget = "{tmp_path}/saved"\nevery_steps = 1\nkeep_last = 9\n'
    table += f'[gradient_log]\nfolder = "{tmp_path}/kept"\n'
    made = run_with_replica(tmp_path / "a run", tmp_path / "memory", table)
    replica = replica_of(made)
    journal = KeptSteps(made, made.settings(), replica, lambda _: None, gathered=False)
    for step in range(1, TAINTED + 2):
        lost = [(8, 72)] if step == TAINTED else []
        gradient = np.full(replica.layout.elements, 0.1 * step, np.float32)
        journal.before_step(gradient, None)
        replica.apply(step, gradient, missing=lost)
        if step in (2, EXACT, TAINTED):
            assert save_last_step(made, made.settings(), step, lambda _: None)
    journal.close()
    replica.close()
    yield made
    made.remove(keep_records=False)


def killed(run: RunDir) -> None:
    """By SIGKILL; then the machine began anew."""
    (run.pids / "supervisor").write_text("999999 0")
    run.replica.unlink()


def went_down(run: RunDir) -> None:
    killed(run)
    record_end(run, EndKind.KILLED, SIGNAL_INT(), [], 10**18)
    run.remove(keep_records=True)


def test_status_tells_a_replica_in_memory_from_one_that_is_gone(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = run.replica.read_bytes()
    run.steps.write_text(f'{{"step":{EXACT},"digest":"d","seconds":0.1,"elements":1000}}\n')
    killed(run)
    state = read_chain(run)
    assert state.health.reason == SUPERVISOR_GONE_NO_REPLICA()
    print_state(state, [])
    assert "in memory still" not in capsys.readouterr().out
    run.replica.write_bytes(kept)
    assert read_chain(run).health.reason == SUPERVISOR_GONE()


@pytest.mark.parametrize("ends", [killed, went_down])
def test_the_newest_exact_save_is_given(
    run: RunDir, tmp_path: Path, ends: Callable[[RunDir], None]
) -> None:
    ends(run)

    def given(name: str, **more: object) -> int:
        source = StepSource(run=run.root, **more)  # type: ignore[arg-type]
        request = RestoreRequest(source=source, output=tmp_path / name, form="torch")
        return restore_command.restore(request)[0].written.step

    assert given("exact.pt") == EXACT
    assert given("tainted.pt", allow_tainted=True) == TAINTED
    assert given("early.pt", step=2) == 2
    assert flowcheck.load(run.root)["step"] == EXACT
    assert flowcheck.load(run.root, allow_tainted=True)["step"] == TAINTED
    assert newest_exact_step([run]) == EXACT


def test_steps_that_the_gradients_lead_to_are_told_with_the_command(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To those alone of which nothing is tainted."""
    killed(run)
    for step in (EXACT, TAINTED):
        shutil.rmtree(tmp_path / "saved" / f"step-{step}")
    source = StepSource(run=run.root)
    request = RestoreRequest(source=source, output=tmp_path / "out.pt", form="torch")
    assert restore_command.run(request, as_json=False) == 0
    kept, save = tmp_path / "kept", tmp_path / "saved" / "step-2"
    more = JOURNAL_MORE(folder=str(kept), checkpoint=str(save), last=EXACT)
    said = capsys.readouterr().err
    assert str(more) in said
    assert f"flowcheck restore --checkpoint {save} --gradients {kept}" in said


def test_of_a_store_the_command_is_named(run: RunDir) -> None:
    """As of a folder whose ledger cannot be read."""
    killed(run)
    (Path(run.root).parent / "saved" / checkpoint_ledger.LEDGER).write_text("{")
    with refused_as(SAVED_IN_FOLDER, step=EXACT, folder=run.root.parent / "saved"):
        flowcheck.load(run.root)
    settings = run.config.read_bytes()
    store = str(run.root.parent / "saved").encode()
    run.config.write_bytes(settings.replace(store, b"memory://bucket/job"))
    told = read_save_status(run.persisted)
    assert told is not None
    told.target = "memory://bucket/job"
    write_save_status(run.persisted, told)
    assert newest_exact_step([run]) == EXACT
    with refused_as(SAVED_IN_STORE, step=EXACT, place=f"memory://bucket/job/step-{EXACT}"):
        flowcheck.load(run.root)


@pytest.mark.parametrize("ends", [killed, went_down])
@pytest.mark.parametrize("readable", [True, False])
def test_status_names_one_newest_exact_step(
    run: RunDir, ends: Callable[[RunDir], None], readable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the line of the saves, and below in the one of the tainted tensors."""
    run.steps.write_text(
        f'{{"step":{TAINTED + 1},"digest":"d","seconds":0.1,"elements":1000,'
        f'"tainted":{{"0":16}},"tainted_since":{{"0":{TAINTED}}}}}\n'
    )
    ends(run)
    if not readable:
        (run.root.parent / "saved" / checkpoint_ledger.LEDGER).unlink()
    state = read_chain(run)
    print_state(state, [])
    said = capsys.readouterr().out
    assert f"last exact durable checkpoint: step {EXACT}, " in said
    assert str(EXACT_IN_ALL(EXACT)) in said and str(NOT_EXACT_IN_ALL()) not in said
    [model] = state.models
    assert model.exact_step == EXACT
