"""`check_shared_memory()`: why C made or opened no file of shared memory, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from flowcheck.errors import RingError, core_finding
from flowcheck.findings.catalog import shared_memory_files as files
from flowcheck.findings.finding import Finding
from flowcheck.plane.shared_memory.shared_memory_location import huge_bytes_free, hugetlbfs_mounts
from flowcheck.private_files import user_name

NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)


def check_shared_memory(code: int, what: str, path: Path, *, new: bool) -> int:
    """`code`, or RingError where it is a negative errno. what: was tried, "create ring"; new: the
    file was to be made."""
    if code >= 0:
        return code
    tried = f"{what} {path.name}"
    raise RingError(-code, _refusal(-code, tried, core_finding(-code, tried), path, new=new))


def _refusal(code: int, what: str, error: Finding, path: Path, *, new: bool) -> Finding:
    """error: C's reason; it says all where its errno has no row here."""
    if code in NO_ROOM:
        return _no_room(what, error, path.parent)
    if code == errno.EACCES:
        return files.NOT_PERMITTED(
            what=what, error=error, owner=_owner(path), user=user_name(os.geteuid())
        )
    row = {
        errno.ENOENT: files.NOT_THERE,
        errno.EEXIST: files.THERE_ALREADY,
        errno.EPROTO: files.OTHER_LAYOUT,
        errno.EINVAL: files.SIZES_REFUSED if new else files.DAMAGED,
    }.get(code)
    return error if row is None else row(what=what, error=error)


def _no_room(what: str, error: Finding, folder: Path) -> Finding:
    if any(folder.is_relative_to(mount) for mount in hugetlbfs_mounts()):
        return files.NO_HUGE_PAGES_LEFT(what=what, error=error, free_mib=huge_bytes_free() >> 20)
    there = os.statvfs(folder)
    free_mib = there.f_bavail * there.f_frsize >> 20
    return files.NO_MEMORY_LEFT(what=what, error=error, folder=folder, free_mib=free_mib)


def _owner(path: Path) -> str:
    for there in (path, path.parent):
        try:
            return user_name(there.stat().st_uid)
        except OSError:
            continue
    return "another user"
