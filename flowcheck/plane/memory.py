"""Where named shared memory lies: a hugetlbfs mount with room, else /dev/shm."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HUGE_PAGE_BYTES = 2 * 1024 * 1024
SHM = Path("/dev/shm")
SHM_HUGE = "mount -o remount,huge=within_size /dev/shm"
"""What gives its files 2 MiB pages from then on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for shared files, and whether 2 MiB pages back it."""

    folder: Path
    huge_pages: bool
    why: str
    """One sentence for the operator: why here."""


def huge_mounts(mounts: Path = Path("/proc/mounts")) -> list[Path]:
    """Mount points of hugetlbfs whose page size is 2 MiB (the default size where none is named)."""
    found = []
    for line in mounts.read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "hugetlbfs" and ("pagesize=" not in options or "pagesize=2M" in options):
            found.append(Path(where))
    return found


def shm_is_huge(mounts: Path = Path("/proc/mounts")) -> bool:
    """Whether files of SHM get 2 MiB pages by themselves, without any being reserved: it is mounted
    with huge=within_size or huge=always (tmpfs(5))."""
    found = ""
    for line in mounts.read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if where == str(SHM) and kind == "tmpfs":
            found = options
    return not {"huge=within_size", "huge=always"}.isdisjoint(found.split(","))


def huge_bytes_free(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes of 2 MiB pages nobody has taken or reserved."""
    values = {line.split(":")[0]: line.split()[1] for line in meminfo.read_text().splitlines()}
    if int(values.get("Hugepagesize", "0")) * 1024 != HUGE_PAGE_BYTES:
        return 0
    free = int(values.get("HugePages_Free", "0")) - int(values.get("HugePages_Rsvd", "0"))
    return max(0, free) * HUGE_PAGE_BYTES


def choose(need_bytes: int) -> Place:
    """The best folder for `need_bytes` of shared files: huge pages where they are to be had."""
    free = huge_bytes_free()
    if shm_is_huge():
        slower = "with 2 MiB pages as the kernel finds them"
    else:
        slower = f"correct but slower (scripts/hugepages reserve N, or {SHM_HUGE})"
    for mount in huge_mounts():
        if free >= need_bytes and os.access(mount, os.W_OK):
            return Place(mount, True, f"2 MiB pages on {mount}")
        return Place(
            SHM,
            False,
            f"{mount} has {free >> 20} MiB of 2 MiB pages free and {need_bytes >> 20} MiB are "
            f"needed: using {SHM}, {slower}",
        )
    return Place(
        SHM,
        False,
        f"no hugetlbfs with 2 MiB pages is mounted: using {SHM}, {slower}",
    )
