"""What restore --warm leaves in memory, as util-linux' fincore sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.formatted import run, step_before

from flowcheck.replica.checkpoint import checkpoint_save
from flowcheck.vault import page_cache_warmup

pytestmark = pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore")
SIZE = 24 << 20


def cached(path: Path) -> int:
    """Bytes of a file in the page cache."""
    command = ["fincore", "--bytes", "--noheadings", "--raw", "--output", "RES", str(path)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def written(path: Path, size: int) -> Path:
    """On disk alone; skips where a file system keeps its files in memory."""
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path) > 0:
        pytest.skip("this file system's files stay in memory")
    return path


def test_all_of_a_folder_is_read_and_nothing_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single hint for all of a file brings a fraction of it."""
    (tmp_path / "out" / "sub").mkdir(parents=True)
    files = [written(tmp_path / "out" / "a", SIZE), written(tmp_path / "out" / "sub" / "b", 5000)]
    monkeypatch.setattr(page_cache_warmup, "available_bytes", lambda: SIZE + 5000)
    told = page_cache_warmup.warm_page_cache(tmp_path / "out")
    assert told == (0, "24 MiB are not read: 24 MiB of memory are free")
    assert [cached(path) for path in files] == [0, 0]
    monkeypatch.setattr(page_cache_warmup, "available_bytes", lambda: 2 * SIZE)
    assert page_cache_warmup.warm_page_cache(tmp_path / "out") == (SIZE + 5000, "")
    until_s = time.monotonic() + 60
    while [cached(path) for path in files] != [SIZE, 8192] and time.monotonic() < until_s:
        time.sleep(0.02)
    assert [cached(path) for path in files] == [SIZE, 8192]


def test_restore_says_that_it_does_so(tmp_path: Path) -> None:
    step = step_before()
    checkpoint_save.save_trainer_state(step.trainer_state, tmp_path / "kept", step.layout)
    words = ("restore", "--checkpoint", tmp_path / "kept", "--format", "dcp", "--out")
    code, said = run(*words, tmp_path / "out", "--warm")
    assert code == 0 and said.endswith("of it are being read into memory\n")
    assert "memory" not in run(*words, tmp_path / "other")[1]
