"""Steps that stay whole beside the newest: kept, gone back to, and never half overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.replica_state_errors import NOT_KEPT, NOT_KEPT_IN
from flowcheck.replica.checkpoint.step_snapshot import copy_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.state_file import StateFile

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.1)
LAYOUT = Layout.of_shapes([(5, 3), (3,)])


def gradient(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal(LAYOUT.elements).astype(np.float32)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    weights = np.linspace(-1, 1, LAYOUT.elements).astype(np.float32)
    state_bytes = 4 * (3 * LAYOUT.elements + len(LAYOUT.parameters))
    made = Replica.create(tmp_path / "state", LAYOUT, ADAMW, weights, keep_bytes=2 * state_bytes)
    yield made
    made.close()


def parameters_of_steps(replica: Replica, last: int) -> dict[int, np.ndarray]:
    kept = {0: replica.parameters().copy()}
    for step in range(1, last + 1):
        replica.apply(step, gradient(step))
        kept[step] = replica.parameters().copy()
    return kept


def test_the_last_steps_stay_whole_and_are_told_by_their_weights(
    replica: Replica, tmp_path: Path
) -> None:
    kept = parameters_of_steps(replica, 7)
    assert replica.versions == (4, 5, 6, 7)
    for step in (4, 5, 6, 7):
        assert replica.step_of_weights(kept[step]) == step
        taken = copy_snapshot(tmp_path / "state", ADAMW, step)
        flat = np.concatenate([v.reshape(-1).numpy() for v in taken.parameters.values()])
        assert np.array_equal(flat, kept[step])
    assert replica.step_of_weights(kept[3]) is None
    with refused_as(NOT_KEPT_IN, step=3, kept=(4, 5, 6, 7)):
        copy_snapshot(tmp_path / "state", ADAMW, 3)


def test_going_back_takes_the_same_steps_again(replica: Replica, tmp_path: Path) -> None:
    kept = parameters_of_steps(replica, 6)
    digest = replica.digest
    replica.go_back(4)
    assert replica.step == 4
    assert replica.versions == (3, 4)
    replica.close()
    reopened = Replica.open(tmp_path / "state", ADAMW)
    assert reopened.step == 4
    assert np.array_equal(reopened.parameters(), kept[4])
    for step in (5, 6):
        reopened.apply(step, gradient(step))
    assert reopened.digest == digest
    with refused_as(NOT_KEPT, step=1):
        reopened.go_back(1)
    reopened.close()


def test_a_copy_being_written_is_no_version(replica: Replica, tmp_path: Path) -> None:
    kept = parameters_of_steps(replica, 5)
    replica.close()
    state = StateFile.open(tmp_path / "state")
    copy = state.begin()
    state.sections(copy)["parameters"][:] = 7  # killed here, in the middle of a step
    state.close()
    reopened = Replica.open(tmp_path / "state", ADAMW)
    assert reopened.versions == (3, 4, 5)
    assert np.array_equal(reopened.parameters(), kept[5])
    reopened.close()
