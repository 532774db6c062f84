"""Shared memory whose pages are at hand before packets come: writing takes no fault a page."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from flowcheck._core import ffi
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging

PAGES = 4096


def faults_of_writing(memory: Staging | FrameRing) -> int:
    """Page faults of this thread while every page is written to once."""
    base, size = memory.handle.map.base, int(memory.handle.map.bytes)
    view = ffi.buffer(base, size)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for at in range(0, size, mmap.PAGESIZE):
        view[at] = view[at]
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.parametrize("kind", ["ring", "staging"])
def test_writing_takes_no_faults(tmp_path: Path, kind: str) -> None:
    def make(name: str) -> Staging | FrameRing:
        if kind == "ring":
            return FrameRing.create(tmp_path / name, slots=PAGES)
        return Staging.create(tmp_path / name, messages=1 << 10, data_bytes=PAGES * mmap.PAGESIZE)

    with make("by faults") as memory:
        if faults_of_writing(memory) < PAGES / 2:
            pytest.skip("pages are larger here")
    with make("at hand") as memory:
        memory.map_pages()
        assert faults_of_writing(memory) < PAGES / 50
