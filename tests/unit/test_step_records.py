"""steps.jsonl as a kill leaves it, torn at any byte."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from flowcheck.config import OptimizerConfig, job_from
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.stages.replica_update.step_log import StepLog, StepRecord
from flowcheck.stages.run_directory.bounded_log_files import append_line
from flowcheck.stages.run_directory.run_dir import RunDir

LAYOUT = Layout.of_shapes([(3,)])


def line(step: int) -> bytes:
    states = {"exp_avg": "ab", "Größe": "cd"}
    told = StepRecord(step=step, digest="ef", seconds=0.5, states_sha256=states, older={"ü": 1})
    return msgspec.json.encode(told)


@pytest.fixture
def run(tmp_path: Path, shm: Path) -> RunDir:
    return RunDir.create(tmp_path / "run", shm / "memory")


def records_of(run: RunDir, tmp_path: Path) -> StepLog:
    settings = {"source": [{"file": "0"}], "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    optimizer = OptimizerConfig(name="sgd", learning_rate=0.1)
    weights = np.zeros(3, np.float32)
    replica = Replica.create(tmp_path / "replica", LAYOUT, optimizer, weights)
    records = StepLog(run, job_from(settings), replica)
    replica.close()
    return records


@pytest.mark.parametrize("appended", [False, True])
def test_a_line_torn_at_any_byte_costs_itself_alone(
    run: RunDir, tmp_path: Path, appended: bool
) -> None:
    """appended: a step was written behind it before anybody looked."""
    records, torn = records_of(run, tmp_path), line(3)
    for bytes_left in range(len(torn) + 1):
        run.steps.write_bytes(line(1) + b"\n" + line(2) + b"\n" + torn[:bytes_left])
        whole = bytes_left == len(torn)
        if appended:
            append_line(run.steps, line(4), 1 << 20)
        assert records.last_step() == (4 if appended else 2 + whole), torn[:bytes_left]
        kept = [1, 2] + [3] * whole + [4] * appended
        assert run.steps.read_bytes() == b"".join(line(n) + b"\n" for n in kept)


def test_lines_of_another_past_go_whatever_is_torn(run: RunDir, tmp_path: Path) -> None:
    records, torn = records_of(run, tmp_path), line(3)
    for bytes_left in range(len(torn)):
        run.steps.write_bytes(line(1) + b"\n" + torn[:bytes_left] + b"\n" + line(2) + b"\n")
        records.forget_after(1, 1)
        assert run.steps.read_bytes() == line(1) + b"\n"
