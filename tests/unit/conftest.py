"""A replica of two steps, and a folder with a checkpoint of it; a test module may have its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.persisting import kept_at, stepped

from flowcheck.replica.model_replica import Replica


@pytest.fixture
def replica(shm: Path) -> Iterator[Replica]:
    with stepped(shm / "state") as made:
        yield made


@pytest.fixture
def kept(replica: Replica, shm: Path, tmp_path: Path) -> Path:
    return kept_at(tmp_path / "kept", shm / "state", replica.step)
