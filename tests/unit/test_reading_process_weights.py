"""Initial weights go from a reading to the learned job's file without passing the stage."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

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
