"""A folder of saved checkpoints whose newest one is tainted: what is given of it, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fetching import served
from support.persisting import replica_in, saver_for, take
from support.refused_as import refused_as

import flowcheck
from flowcheck.config import PersistConfig
from flowcheck.findings.catalog.refused_restores import STEP_TAINTED
from flowcheck.ops.restore import restore_command
from flowcheck.ops.restore.restore_request import RestoreRequest, StepSource
from flowcheck.replica.checkpoint_files.latest_pointer import latest_checkpoint
from flowcheck.replica.model_replica import Replica
from flowcheck.vault.persist import checkpoint_ledger

EXACT, TAINTED = 2, 3


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """Steps EXACT and TAINTED of one run; `latest` names the exact one."""
    replica: Replica = replica_in(tmp_path / "replica")
    config = PersistConfig(target=str(tmp_path / "saved"), every_steps=1)
    saver = saver_for(config, tmp_path, tmp_path / "replica")
    take(replica, EXACT)
    saver.save(EXACT)
    gradient = np.ones(replica.layout.elements, np.float32)
    replica.apply(TAINTED, gradient, missing=[(8, 72)])
    saver.save(TAINTED)
    replica.close()
    folder = tmp_path / "saved"
    assert latest_checkpoint(folder) == folder / f"step-{EXACT}"
    yield folder


def restored(source: StepSource, out: Path) -> int:
    [done] = restore_command.restore(RestoreRequest(source=source, output=out, form="torch"))
    return done.written.step


@pytest.mark.parametrize("ledger", [True, False])
def test_the_newest_of_a_folder_is_given_where_a_tainted_one_may_be(
    target: Path, tmp_path: Path, ledger: bool
) -> None:
    if not ledger:
        (target / checkpoint_ledger.LEDGER).unlink()
    assert restored(StepSource(checkpoint=target), tmp_path / "exact.pt") == EXACT
    source = StepSource(checkpoint=target, allow_tainted=True)
    assert restored(source, tmp_path / "newest.pt") == TAINTED
    assert flowcheck.load(target)["step"] == EXACT
    assert flowcheck.load(target, allow_tainted=True)["step"] == TAINTED
    with refused_as(STEP_TAINTED, step=TAINTED):
        flowcheck.load(target, TAINTED)


@pytest.mark.parametrize("kind", ["file", "http"])
def test_the_newest_of_a_url_is(target: Path, tmp_path: Path, kind: str) -> None:
    with served(target) as server:
        url = server if kind == "http" else target.as_uri()
        assert restored(StepSource(url=url), tmp_path / "exact.pt") == EXACT
        source = StepSource(url=url, allow_tainted=True)
        assert restored(source, tmp_path / "newest.pt") == TAINTED
        assert flowcheck.load(url, allow_tainted=True)["step"] == TAINTED


def test_of_another_run_in_the_folder_nothing_is(target: Path, tmp_path: Path) -> None:
    """Its steps may be behind this run's, and were saved before."""
    (tmp_path / "other").mkdir()
    replica = replica_in(tmp_path / "other" / "replica")
    take(replica, TAINTED + 4)
    config = PersistConfig(target=str(target), every_steps=1)
    saver_for(config, tmp_path, tmp_path / "other" / "replica", "other").save(replica.step)
    replica.close()
    (target / "latest").write_text(f"step-{EXACT}\n")
    assert flowcheck.load(target, allow_tainted=True)["step"] == TAINTED
    (target / checkpoint_ledger.LEDGER).unlink()
    assert flowcheck.load(target, allow_tainted=True)["step"] == TAINTED
