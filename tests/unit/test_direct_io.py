"""Files written past the page cache: what lies there, and what a disk that refuses or lies does."""

from __future__ import annotations

import ctypes
import os
from mmap import MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path

import numpy as np
import pytest
from support.refused_as import refused_as

from flowcheck.findings.catalog.unloadable_checkpoints import NOT_READ_BACK
from flowcheck.replica.checkpoint_files.direct_io import (
    ALIGN_BYTES,
    DIRECT_BYTES,
    aligned_memory,
    open_direct,
)

PAST = 3 * ALIGN_BYTES + 17
"""Bytes behind the first block."""


@pytest.fixture
def blocks() -> list[tuple[np.ndarray, int]]:
    """Two, and how much of them is written."""
    found = [(aligned_memory(DIRECT_BYTES), DIRECT_BYTES), (aligned_memory(DIRECT_BYTES), PAST)]
    for seed, (block, _) in enumerate(found):
        block[:] = np.random.default_rng(seed).integers(0, 256, block.size, np.uint8)
    return found


def _cached_pages(path: Path) -> int:
    """How many of the file's pages the kernel holds, by mincore(2)."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file, mmap(file.fileno(), size_bytes, MAP_PRIVATE) as mapped:
        own = np.frombuffer(mapped, np.uint8)
        told = (ctypes.c_uint8 * -(-size_bytes // PAGESIZE))()
        address = ctypes.c_void_p(own.ctypes.data)
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size_bytes), told) == 0
        del own
        return sum(one & 1 for one in told)


@pytest.mark.parametrize("backwards", [False, True])
def test_blocks_of_any_order_lie_where_they_belong_and_few_pages_of_them_are_kept(
    tmp_path: Path, blocks: list[tuple[np.ndarray, int]], backwards: bool
) -> None:
    whole = blocks[0][0].tobytes() + blocks[1][0][:PAST].tobytes()
    with open_direct(tmp_path / "own", len(whole)) as file:
        for number, (block, count) in sorted(enumerate(blocks), reverse=backwards):
            file.put(block, count, number * DIRECT_BYTES, reads_back=True)
        direct = file.direct
    if direct:
        assert _cached_pages(tmp_path / "own") <= 1  # that of its cut end
    assert (tmp_path / "own").read_bytes() == whole


def test_a_file_system_that_takes_no_such_write_is_written_to_through_the_page_cache(
    tmp_path: Path, blocks: list[tuple[np.ndarray, int]]
) -> None:
    """Refused by the kernel itself: the memory does not lie as a disk needs it."""
    crooked = aligned_memory(DIRECT_BYTES + ALIGN_BYTES)[1:]
    crooked[:DIRECT_BYTES] = blocks[0][0]
    with open_direct(tmp_path / "own", DIRECT_BYTES + PAST) as file:
        asked = file.direct
        file.put(crooked, DIRECT_BYTES, 0, reads_back=True)
        assert not file.direct
        file.put(blocks[1][0], PAST, DIRECT_BYTES, reads_back=True)
    written = (tmp_path / "own").read_bytes()
    assert written == blocks[0][0].tobytes() + blocks[1][0][:PAST].tobytes()
    if not asked:
        pytest.skip(f"{tmp_path} takes no O_DIRECT: nothing was refused")


def test_a_disk_that_loses_a_write_is_told_of(
    tmp_path: Path, blocks: list[tuple[np.ndarray, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(descriptor: int, data: memoryview, first: int) -> int:
        os.ftruncate(descriptor, first + len(data))
        return len(data)

    with open_direct(tmp_path / "own", DIRECT_BYTES) as file:
        monkeypatch.setattr(os, "pwrite", lost)
        with refused_as(NOT_READ_BACK, file="own"):
            file.put(blocks[0][0], DIRECT_BYTES, 0, reads_back=True)
