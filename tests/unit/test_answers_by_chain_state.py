"""What `restore`, `base` and `status` say where no step is applied: by what the chain does, which
runs, has ended or was killed, and by whether it reads captures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.refused_as import refused_as

from flowcheck.config import job_from
from flowcheck.findings.catalog.base_checkpoints import (
    CHAIN_HAS_ENDED,
    CHAIN_WAS_KILLED,
    NO_JOB_YET,
    REPLAY_HAS_ENDED,
    REPLAY_WAS_KILLED,
)
from flowcheck.findings.catalog.chain_health import (
    REPLAY_SUPERVISOR_GONE_NO_STEP,
    SUPERVISOR_GONE_NO_STEP,
)
from flowcheck.findings.catalog.how_chains_end import NO_REPLICA_TO_KEEP, SIGNAL_INT
from flowcheck.findings.catalog.nccl_transport import NO_WRITES
from flowcheck.findings.catalog.refused_restores import (
    KILLED_BEFORE_STEP,
    NO_STEP_YET,
    NOTHING_WRITTEN,
)
from flowcheck.findings.finding import Entry
from flowcheck.ops.lifecycle.chain_runner import create_run
from flowcheck.ops.lifecycle.shutdown_cleanup import rescue_killed_chain
from flowcheck.ops.lifecycle.shutdown_record_writer import record_end
from flowcheck.ops.lifecycle.status_command import print_state, read_chain
from flowcheck.ops.restore.step_lookup import newest_step
from flowcheck.ops.trainer_checkpoint import base_command
from flowcheck.ops.watch.state.chain_state import EndKind
from flowcheck.stages.run_directory.process_liveness import process_identity
from flowcheck.stages.run_directory.run_dir import RunDir

OPTIMIZER = {"name": "sgd", "learning_rate": 0.1}
STATES = ("running", "ended", "killed")


@pytest.fixture(params=["file", "interface"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RunDir, bool]]:
    """A run without a step, and whether it is a replay."""
    source = [{request.param: "x"}]
    run, _ = create_run(job_from({"source": source, "optimizer": OPTIMIZER}), tmp_path / "a run")
    yield run, request.param == "file"
    run.remove(keep_records=False)


def brought_to(run: RunDir, state: str, *, replay: bool) -> None:
    if state == "running":
        (run.pids / "supervisor").write_text(process_identity(os.getpid()))
        return
    (run.pids / "supervisor").write_text("999999 0")
    if state == "ended":
        record_end(run, EndKind.ASKED, SIGNAL_INT(), [], 10**18, replay=replay)
        run.remove(keep_records=True)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("state", "entry"),
    [("running", NO_STEP_YET), ("ended", NOTHING_WRITTEN), ("killed", KILLED_BEFORE_STEP)],
)
def test_restore_without_a_step_tells_what_the_chain_does(
    made: tuple[RunDir, bool], state: str, entry: Entry, waits: bool
) -> None:
    run, replay = made
    if waits:
        run.unlearned.write_bytes(msgspec.json.encode([NO_WRITES()]))
    brought_to(run, state, replay=replay)
    with refused_as(entry) as why:
        newest_step(run, settle=False)
    finding = why.value.finding  # type: ignore[attr-defined]
    assert ("ended" in finding.cause) == (state == "ended")
    assert ("run the command again" in finding.remedy) == (state == "running")
    assert ("trainer's own checkpoint" in finding.remedy) == (state != "running")


@pytest.mark.parametrize("state", STATES)
def test_base_without_a_job_tells_what_the_chain_does(
    made: tuple[RunDir, bool], state: str, tmp_path: Path
) -> None:
    run, replay = made
    brought_to(run, state, replay=replay)
    entry = {
        "running": NO_JOB_YET,
        "ended": REPLAY_HAS_ENDED if replay else CHAIN_HAS_ENDED,
        "killed": REPLAY_WAS_KILLED if replay else CHAIN_WAS_KILLED,
    }[state]
    with refused_as(entry) as why:
        base_command.run(run.root, tmp_path / "x.pt", as_json=False)
    remedy = why.value.finding.remedy  # type: ignore[attr-defined]
    again = f"`flowcheck replay FILE... --run '{run.root}' --out FOLDER`"
    assert (again in remedy) == (replay and state != "running")
    assert ("flowcheck up" in remedy) == (not replay and state != "running")


def test_status_and_down_of_a_killed_chain_without_a_replica_agree(
    made: tuple[RunDir, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    run, replay = made
    brought_to(run, "killed", replay=replay)
    state = read_chain(run)
    again = f"flowcheck replay FILE... --run '{run.root}' --out FOLDER"
    gone = REPLAY_SUPERVISOR_GONE_NO_STEP(again) if replay else SUPERVISOR_GONE_NO_STEP()
    assert state.health.reason == gone
    print_state(state, [])
    assert "in memory" not in capsys.readouterr().out
    done = rescue_killed_chain(run, "flowcheck down")
    assert done is not None and done.arguments["done"] == NO_REPLICA_TO_KEEP()
    run.remove(keep_records=True)
    print_state(read_chain(run), [])
    out = capsys.readouterr().out
    assert ("flowcheck replay FILE..." in out, "flowcheck up" in out) == (replay, not replay)
