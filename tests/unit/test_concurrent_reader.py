"""Readers hold a step still while the updater goes on, and their death lets go of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.refused_as import refused_as

from flowcheck.config import OptimizerConfig
from flowcheck.findings.catalog.replica_state_errors import OVERWRITTEN
from flowcheck.replica.checkpoint.step_snapshot import hold_snapshot
from flowcheck.replica.model_replica import Replica
from flowcheck.replica.param_layout import Layout
from flowcheck.replica.state_file.concurrent_reader import pin_step

ADAMW = OptimizerConfig(name="adamw", learning_rate=0.1)
LAYOUT = Layout.of_shapes([(5, 3), (3,)])
STATE_BYTES = 4 * (3 * LAYOUT.elements + len(LAYOUT.parameters))
HOLDER = """
import sys
from pathlib import Path
from flowcheck.replica.state_file.concurrent_reader import pin_step
with pin_step(Path(sys.argv[1])) as held:
    print(held.commit.step, flush=True)
    sys.stdin.read()
"""


def made(path: Path, spare: int) -> Replica:
    weights = np.linspace(-1, 1, LAYOUT.elements).astype(np.float32)
    return Replica.create(path, LAYOUT, ADAMW, weights, keep_bytes=spare * STATE_BYTES)


def take(replica: Replica, steps: int) -> None:
    for step in range(replica.step + 1, replica.step + 1 + steps):
        gradient = np.random.default_rng(step).standard_normal(LAYOUT.elements)
        replica.apply(step, gradient.astype(np.float32))


def flat(snapshot_parameters: dict[str, object]) -> np.ndarray:
    return np.concatenate([v.numpy().reshape(-1) for v in snapshot_parameters.values()])  # type: ignore[attr-defined]


def test_a_step_that_is_read_stays_while_the_updater_takes_many_more(shm: Path) -> None:
    replica = made(shm / "state", spare=1)
    take(replica, 3)
    third = replica.parameters().copy()
    with hold_snapshot(shm / "state", ADAMW) as snapshot:
        take(replica, 7)
        assert snapshot.step == 3
        assert np.array_equal(flat(snapshot.parameters), third)
        assert replica.versions == (3, 9, 10)
    take(replica, 3)
    assert replica.versions == (11, 12, 13)
    replica.close()


def test_without_a_version_to_spare_a_reader_has_a_copy_and_the_updater_its_memory(
    shm: Path,
) -> None:
    replica = made(shm / "state", spare=0)
    take(replica, 3)
    third = replica.parameters().copy()
    with hold_snapshot(shm / "state", ADAMW) as snapshot:
        take(replica, 4)
        assert np.array_equal(flat(snapshot.parameters), third)
    with pin_step(shm / "state") as found:
        assert not found.has_spare_copy and found.is_unchanged
        take(replica, 2)
        assert not found.is_unchanged
    replica.close()


def test_where_readers_hold_all_other_steps_the_oldest_goes_and_its_reader_is_told(
    shm: Path,
) -> None:
    replica = made(shm / "state", spare=1)
    take(replica, 1)
    with refused_as(OVERWRITTEN):  # noqa: SIM117
        with hold_snapshot(shm / "state", ADAMW):
            take(replica, 1)
            with hold_snapshot(shm / "state", ADAMW) as second:
                take(replica, 2)
                assert second.step == 2
            assert replica.step == 4
    replica.close()


def test_the_death_of_a_reader_lets_go_of_its_step(shm: Path) -> None:
    replica = made(shm / "state", spare=1)
    take(replica, 1)
    reader = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(shm / "state")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert int(reader.stdout.readline()) == 1
    take(replica, 4)
    assert replica.versions == (1, 4, 5)
    os.kill(reader.pid, signal.SIGKILL)
    reader.communicate()
    take(replica, 2)
    assert replica.versions == (5, 6, 7)
    replica.close()
