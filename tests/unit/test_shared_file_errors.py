"""Files of shared memory that are refused: the sentence tells what to do, not an errno."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowcheck.errors import RingError
from flowcheck.findings.catalog import shared_memory_files as files
from flowcheck.findings.catalog.shared_file_reasons import OTHER_LAYOUT_VERSION
from flowcheck.findings.finding import Entry, Finding
from flowcheck.plane.shared_memory import shared_file_errors
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.staging_file import Staging


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mount -t tmpfs needs root")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def refused(make: Callable[[], object]) -> Finding:
    with pytest.raises(RingError) as caught:
        make()
    found = caught.value.finding
    assert str(caught.value) == str(found) and "(E" not in str(found)
    return found


def test_memory_that_is_full_is_told_with_what_is_free_and_what_holds_it(small: Path) -> None:
    (small / "filler").write_bytes(bytes(512 << 10))
    found = refused(lambda: FrameRing.create(small / "ring-0", slots=1 << 12))
    assert found.is_any_of(files.NO_MEMORY_LEFT)
    there = os.statvfs(small)
    assert found.arguments["free_mib"] == there.f_bavail * there.f_frsize >> 20
    assert found.arguments["folder"] == str(small) and "ring-0" in str(found.arguments["what"])
    assert "--leftovers" in found.remedy and not (small / "ring-0").exists()


def test_huge_pages_that_are_gone_are_told_with_how_to_reserve_more(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file_errors, "hugetlbfs_mounts", lambda: [small])
    monkeypatch.setattr(shared_file_errors, "huge_bytes_free", lambda: 6 << 20)
    found = refused(
        lambda: Staging.create(small / "staging-0", messages=1 << 16, data_bytes=8 << 20)
    )
    assert found.is_any_of(files.NO_HUGE_PAGES_LEFT) and found.arguments["free_mib"] == 6
    assert "scripts/hugepages reserve" in found.remedy


@pytest.mark.parametrize(
    ("make", "entry"),
    [
        (lambda there: FrameRing.create(there / "r", slots=1000), files.SIZES_REFUSED),
        (lambda there: FrameRing.create(there / "ring", slots=64), files.THERE_ALREADY),
        (lambda there: FrameRing.open(there / "none"), files.NOT_THERE),
        (lambda there: FlowTable.open(there / "ring"), files.DAMAGED),
        (lambda there: Staging.open(there / "cut"), files.DAMAGED),
    ],
)
def test_each_refusal_says_what_to_do(
    shm: Path, make: Callable[[Path], object], entry: Entry
) -> None:
    FrameRing.create(shm / "ring", slots=64).close()
    (shm / "cut").write_bytes(bytes(64))
    (shm / "cut").chmod(0o600)
    assert refused(lambda: make(shm)).is_any_of(entry)


def test_a_ring_of_another_release_is_told_from_one_that_is_damaged(shm: Path) -> None:
    FrameRing.create(shm / "ring", slots=64).close()
    content = bytearray((shm / "ring").read_bytes())
    content[8] += 1  # the layout version behind the magic (fc_ring.h)
    (shm / "ring").write_bytes(content)
    found = refused(lambda: FrameRing.open(shm / "ring"))
    error = found.arguments["error"]
    assert found.is_any_of(files.OTHER_LAYOUT)
    assert isinstance(error, Finding) and error.is_any_of(OTHER_LAYOUT_VERSION)
