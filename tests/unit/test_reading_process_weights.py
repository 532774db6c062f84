"""Initial weights and an empty shard go from a reading to the learned job's files without
passing the stage."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flowcheck.stages.extraction import extract_stage
from flowcheck.stages.job_learning import proved_job, reading_process
from flowcheck.stages.job_learning.stream_reading import ReadingOutcome

WEIGHTS = np.arange(4096, dtype="<f4").view(np.uint8)


def test_the_reading_writes_them_and_the_stage_names_them(tmp_path: Path) -> None:
    file = tmp_path / ".read-weights.bin"
    found = reading_process._with_file(ReadingOutcome(weights=WEIGHTS), file)
    assert found.weights == file and file.stat().st_mode & 0o777 == 0o600
    place = tmp_path / "weights.bin"
    proved_job._link_or_copy(file, place)
    assert place.read_bytes() == WEIGHTS.tobytes()
    assert place.stat().st_ino == file.stat().st_ino, "not copied"


def test_a_file_system_without_links_has_them_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    (tmp_path / "read").write_bytes(WEIGHTS.tobytes())
    proved_job._link_or_copy(tmp_path / "read", tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").read_bytes() == WEIGHTS.tobytes()


def test_weights_without_room_stay_with_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(reading_process, "write_atomically", full)
    found = reading_process._with_file(ReadingOutcome(weights=WEIGHTS), tmp_path / "file")
    assert found.weights is WEIGHTS


class Sized:
    """A learned job as far as its shard's size goes."""

    def __init__(self, gradient_bytes: int, element_bytes: int) -> None:
        self.gradient_bytes, self.module_buffer_bytes = gradient_bytes, 0
        self.reduced = [SimpleNamespace(element_bytes=element_bytes)]


def test_the_shard_that_a_reading_made_is_taken_as_it_is(shm: Path) -> None:
    job: Any = Sized(1 << 20, 4)
    prepared, place = shm / ".read", shm / "shard"
    extract_stage.create_shard(prepared, job).close()
    made = prepared.stat().st_ino
    taken = extract_stage.take_shard(prepared, place, job)
    assert taken is not None
    with taken:
        assert not prepared.exists() and place.stat().st_ino == made
        assert taken.gradient_bytes == 1 << 20 and not taken.gradient(0).any()
    assert extract_stage.take_shard(prepared, place, job) is None, "there is none"


@pytest.mark.parametrize("other", [Sized(1 << 19, 4), Sized(1 << 20, 2)])
def test_a_shard_that_was_made_for_another_job_is_not_taken(other: Any, shm: Path) -> None:
    prepared, place, job = shm / ".read", shm / "shard", Sized(1 << 20, 4)
    extract_stage.create_shard(prepared, other).close()
    assert extract_stage.take_shard(prepared, place, cast(Any, job)) is None
    assert not place.exists()
