"""Where shared-memory files lie: a hugetlbfs mount with room, else /dev/shm; and how much of the
machine's memory is free, as the kernel reports it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowcheck.findings.catalog import shared_memory_files as place
from flowcheck.findings.finding import Finding

HUGE_PAGE_BYTES = 2 * 1024 * 1024
MEMINFO = Path("/proc/meminfo")
AVAILABLE = "MemAvailable:"
HUGE_SIZES = Path("/sys/kernel/mm/hugepages")
SHM = Path("/dev/shm")
REMOUNT_SHM_COMMAND = "mount -o remount,huge=within_size /dev/shm"
"""What gives its files 2 MiB pages from then on."""


@dataclass(frozen=True, slots=True)
class MemoryFolder:
    """A folder for shared files, and whether 2 MiB pages back it."""

    folder: Path
    huge_pages: bool
    why: Finding
    """Why here."""


def hugetlbfs_mounts(mounts: Path = Path("/proc/mounts")) -> list[Path]:
    """Mount points of hugetlbfs whose page size is 2 MiB (the default size where none is named)."""
    found = []
    for line in mounts.read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "hugetlbfs" and ("pagesize=" not in options or "pagesize=2M" in options):
            found.append(Path(where))
    return found


def user_folder(mount: Path, user: int) -> Path:
    """Where in a mount of hugetlbfs, whose root is root's, an ordinary user has room: made by root
    when it starts a chain that runs as that user."""
    return mount / f"flowcheck.{user}"


def _with_room(mount: Path) -> Path:
    own = user_folder(mount, os.geteuid())
    return own if own.is_dir() else mount


def with_user_folders(mounts: Sequence[Path]) -> list[Path]:
    """Every folder of these mounts that shared memory of anybody's may lie in."""
    return [*mounts, *(own for mount in mounts for own in mount.glob("flowcheck.*"))]


def shm_has_hugepages(mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether files of SHM get 2 MiB pages by themselves, without any being reserved: it is mounted
    with huge=within_size or huge=always (tmpfs(5))."""
    found = ""
    for line in mounts.read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if where == str(SHM) and kind == "tmpfs":
            found = options
    return not {"huge=within_size", "huge=always"}.isdisjoint(found.split(","))


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """What can be taken without driving the machine out of memory: MemAvailable (proc(5)); 0 where
    nothing tells."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(AVAILABLE)), 0)


def huge_bytes_free(page_bytes: int = HUGE_PAGE_BYTES, sizes: Path = HUGE_SIZES) -> int:
    """Bytes of huge pages of one size that nobody has taken or reserved; 0 where the kernel has
    none of it (hugetlbpage.rst of its documentation: each size has a folder)."""
    folder = sizes / f"hugepages-{page_bytes >> 10}kB"
    try:
        free, reserved = (
            int((folder / f"{name}_hugepages").read_text()) for name in ("free", "resv")
        )
    except OSError:
        return 0
    return max(0, free - reserved) * page_bytes


def choose_memory_folder(need_bytes: int) -> MemoryFolder:
    """The best folder for `need_bytes` of shared files: huge pages where they are to be had."""
    free = huge_bytes_free()
    pages = (
        place.PAGES_AS_FOUND() if shm_has_hugepages() else place.PAGES_SMALL(REMOUNT_SHM_COMMAND)
    )
    for mount in map(_with_room, hugetlbfs_mounts()):
        if free >= need_bytes and os.access(mount, os.W_OK):
            return MemoryFolder(mount, True, place.ON_HUGE_PAGES(mount))
        few = place.TOO_FEW_HUGE_PAGES(
            mount=mount,
            free_mib=free >> 20,
            need_mib=need_bytes >> 20,
            folder=SHM,
            pages=pages,
        )
        return MemoryFolder(SHM, False, few)
    return MemoryFolder(SHM, False, place.NO_HUGETLBFS(folder=SHM, pages=pages))
