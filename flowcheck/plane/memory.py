"""Where named shared memory lies: a hugetlbfs mount with room, else /dev/shm."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HUGE_PAGE_BYTES = 2 * 1024 * 1024
SHM = Path("/dev/shm")


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
    for mount in huge_mounts():
        if free >= need_bytes and os.access(mount, os.W_OK):
            return Place(mount, True, f"2 MiB pages on {mount}")
        return Place(
            SHM,
            False,
            f"{mount} has {free >> 20} MiB of 2 MiB pages free and {need_bytes >> 20} MiB are "
            f"needed: using {SHM}, correct but slower (scripts/hugepages reserve N)",
        )
    return Place(
        SHM,
        False,
        f"no hugetlbfs with 2 MiB pages is mounted: using {SHM}, correct but slower "
        "(scripts/hugepages reserve N)",
    )
