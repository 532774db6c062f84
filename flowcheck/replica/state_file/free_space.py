"""Whether a state file fits: free bytes of its file system and of memory, checked before
anything is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog.replica_state_errors import (
    AND_MEMORY,
    MORE_HUGE_PAGES,
    NO_ROOM_FOR_IT,
)
from flowcheck.plane.shared_memory.shared_memory_location import available_bytes, huge_bytes_free

IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are the machine's own memory (huge pages are reserved beforehand)."""
HUGETLBFS = "hugetlbfs"


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Bytes that are free where files of a folder lie, and of the machine's memory where those are
    one; None where they are not."""

    file_system: int
    memory: int | None


def free_space_of(folder: Path) -> FreeSpace:
    """As the kernel tells: statvfs, and what is available of memory. A hugetlbfs that was mounted
    without a size tells 0 bytes of everything (linux/fs/hugetlbfs/inode.c, hugetlbfs_statfs): its
    files take the huge pages of its size that nobody has."""
    told, kind = os.statvfs(folder), _kind(folder)
    free = told.f_bavail * told.f_frsize
    if kind == HUGETLBFS:
        untaken = huge_bytes_free(told.f_bsize)
        return FreeSpace(min(free, untaken) if told.f_blocks else untaken, None)
    return FreeSpace(free, available_bytes() if kind in IN_MEMORY else None)


def in_memory(folder: Path) -> bool:
    """Whether the pages of files in this folder are the machine's memory for as long as they are
    there."""
    return _kind(folder) in (*IN_MEMORY, HUGETLBFS)


def check_space(folder: Path, needed: int, account: str, space: FreeSpace) -> None:
    """Raises StateError, with the sum, where `needed` bytes are more than there are.

    account: how `needed` comes about."""
    short = needed > space.file_system or (space.memory is not None and needed > space.memory)
    if not short:
        return
    memory = None if space.memory is None else AND_MEMORY(space.memory)
    pages = MORE_HUGE_PAGES() if _kind(folder) == HUGETLBFS else None
    sizes = {"needed": needed, "account": account, "free": space.file_system}
    raise StateError(NO_ROOM_FOR_IT(folder=folder, **sizes, memory=memory, pages=pages))


def _kind(folder: Path) -> str:
    """Of the file system: the last mount at the longest path above the folder."""
    where, best, kind = str(folder.resolve()), -1, ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, at, named = line.split(" ")[:3]
        own = at.encode().decode("unicode_escape").rstrip("/")
        if (where == own or where.startswith(own + "/")) and len(own) >= best:
            best, kind = len(own), named
    return kind
