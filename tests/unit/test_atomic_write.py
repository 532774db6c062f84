"""What is written appears whole or not at all; a writer that was killed leaves nothing for good."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flowcheck.atomic_write import (
    atomic_path,
    atomic_path_per_process,
    temporary_path,
    write_atomically,
)

LEFTOVERS = ".step-*.tmp"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_in_one_instant_and_nothing_stays_beside_it(
    tmp_path: Path, durable: bool
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old", durable=durable)
    with atomic_path(path, durable=durable) as place:
        place.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and names(tmp_path) == ["file"]


def test_after_an_error_the_old_content_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="full"), atomic_path(tmp_path / "file") as place:
        place.write_bytes(b"ne")
        raise OSError("full")
    leftovers = ".file.*.tmp"
    with (
        pytest.raises(OSError, match="full"),
        atomic_path_per_process(tmp_path / "file", leftovers=leftovers),
    ):
        raise OSError("full")
    assert (tmp_path / "file").read_bytes() == b"old" and names(tmp_path) == ["file"]


def test_what_a_killed_writer_left_goes_before_the_next_one_writes(tmp_path: Path) -> None:
    left = temporary_path(tmp_path / "folder")
    left.mkdir()
    (left / "half").write_bytes(b"h")
    with atomic_path(tmp_path / "folder") as place:
        place.mkdir()
        (place / "whole").write_bytes(b"w")
    assert names(tmp_path) == ["folder"] and names(tmp_path / "folder") == ["whole"]


def test_a_place_of_its_own_is_taken_away_once_its_writer_is_dead_and_not_before(
    tmp_path: Path,
) -> None:
    ready, done = os.pipe()
    child = os.fork()
    if not child:
        try:
            with atomic_path_per_process(
                tmp_path / "step-1", leftovers=LEFTOVERS, folder=True
            ) as place:
                (place / "half").write_bytes(b"h")
                os.write(done, b"x")
                signal.pause()
        finally:
            os._exit(1)
    os.read(ready, 1)
    theirs = tmp_path / f".step-1.{child}.tmp"
    with atomic_path_per_process(tmp_path / "step-2", leftovers=LEFTOVERS, folder=True):
        assert (theirs / "half").exists(), "it is being written"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert theirs.exists()
    with atomic_path_per_process(tmp_path / "step-3", leftovers=LEFTOVERS, folder=True) as place:
        (place / "all").write_bytes(b"a")
    assert names(tmp_path) == ["step-2", "step-3"]
    assert names(tmp_path / "step-3") == ["all"]
    os.close(ready)
    os.close(done)
