"""What a system call that failed says of a file: what was expected there, and what to do."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flowcheck.errors import is_disk_full
from flowcheck.findings.catalog.refused_commands import (
    FILE_ERROR,
    FILE_EXPECTED,
    FILE_FAILED,
    FOLDER_EXPECTED,
    FOLDER_MISSING,
    NAME_TAKEN,
    NO_INODE_AT,
    NO_ROOM,
    NO_ROOM_AT,
    NO_SUCH_FILE,
    NOT_PERMITTED,
    NOTHING_MADE_THERE,
    READ_ONLY,
    TOO_LARGE,
    TOO_MANY_OPEN,
)
from flowcheck.findings.finding import Finding

KERNEL_FILE_SYSTEMS = frozenset(("debugfs", "devpts", "proc", "securityfs", "sysfs", "tracefs"))
"""Types of file systems in which no user creates files (Linux, Documentation/filesystems)."""


def tells_of_file(error: OSError) -> bool:
    """Whether it is for the operator: it names a file, or a disk is full."""
    return error.filename is not None or is_disk_full(error)


def file_error_finding(error: OSError) -> Finding:
    """What a system call said of a file: where it is full, with what is free there. Raises
    nothing, also where this user may not look at the path."""
    if not error.filename:
        return NO_ROOM()
    path = Path(os.fsdecode(error.filename))
    if is_disk_full(error):
        with suppress(OSError):
            return _no_room(path, error)
    told = {"path": path, "error": error.strerror or type(error).__name__}
    name = errno.errorcode.get(error.errno or 0, "")
    return FILE_ERROR(**told, errno=name, why=_reason(_target(path, error), error))


def _no_room(path: Path, error: OSError) -> Finding:
    there = _folder_of(path)
    found = os.statvfs(there)
    mount, free_mib = _mount(there), found.f_bavail * found.f_frsize >> 20
    if found.f_files and not found.f_favail:
        return NO_INODE_AT(path=path, mount=mount, free_mib=free_mib)
    return NO_ROOM_AT(
        path=path,
        mount=mount,
        error=error.strerror,
        free_mib=free_mib,
        total_mib=found.f_blocks * found.f_frsize >> 20,
    )


def _target(path: Path, error: OSError) -> Path:
    """Of what is renamed, or linked, the new name: what is there is in the way."""
    in_way = error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
    return Path(os.fsdecode(error.filename2)) if in_way and error.filename2 else path


def _reason(path: Path, error: OSError) -> Finding:
    reason = _REASONS.get(error.errno or 0)
    return FILE_FAILED(path) if reason is None else reason(path)


def _folder_expected(path: Path) -> Finding:
    """Of a path that leads through a file, or that is one where a folder is to be."""
    parts = (*reversed(path.absolute().parents), path)
    found = next((one for one in parts if _is_there(one) and not _is_folder(one)), path)
    return FOLDER_EXPECTED(found)


def _exists(path: Path) -> Finding:
    return NAME_TAKEN(path) if _is_folder(path) else FOLDER_EXPECTED(path)


def _missing(path: Path) -> Finding:
    folder = path.absolute().parent
    if not _is_folder(folder):
        return FOLDER_MISSING(folder)
    if _is_of_kernel(folder):
        return NOTHING_MADE_THERE(path=path, folder=folder)
    return NO_SUCH_FILE(path=path, folder=folder)


def _no_operation(path: Path) -> Finding:
    """Of a file system that lets nobody do this, or of a user who may not."""
    folder = _folder_of(path)
    if not _is_there(path) and _is_of_kernel(folder):
        return NOTHING_MADE_THERE(path=path, folder=folder)
    return _not_permitted(path)


def _not_permitted(path: Path) -> Finding:
    number = os.geteuid()
    user = str(number)
    with suppress(KeyError):
        user = pwd.getpwuid(number).pw_name
    return NOT_PERMITTED(user=user, path=path.absolute())


_REASONS: dict[int, Callable[[Path], Finding]] = {
    errno.EISDIR: FILE_EXPECTED,
    errno.ENOTDIR: _folder_expected,
    errno.EEXIST: _exists,
    errno.ENOTEMPTY: NAME_TAKEN,
    errno.ENOENT: _missing,
    errno.EACCES: _not_permitted,
    errno.EPERM: _no_operation,
    errno.EROFS: lambda path: READ_ONLY(path=path, folder=_folder_of(path)),
    errno.EFBIG: lambda path: TOO_LARGE(path=path, folder=_folder_of(path)),
    errno.EMFILE: lambda _: TOO_MANY_OPEN(),
    errno.ENFILE: lambda _: TOO_MANY_OPEN(),
}
"""{error: what it means for the path}"""


def _is_folder(path: Path) -> bool:
    """Whether it is one, as far as this user may look."""
    with suppress(OSError):
        return path.is_dir()
    return False


def _is_there(path: Path) -> bool:
    with suppress(OSError):
        return path.exists()
    return False


def _folder_of(path: Path) -> Path:
    """The innermost folder on the way to a path that exists: an output does not exist yet."""
    return next(one for one in (path, *path.absolute().parents) if _is_folder(one))


def _is_of_kernel(folder: Path) -> bool:
    """Whether a folder lies in a file system in which the kernel alone makes files."""
    with suppress(OSError):
        mount = os.fsencode(_mount(folder.resolve()))
        mounts = (line.split() for line in Path("/proc/mounts").read_bytes().splitlines())
        kinds = [os.fsdecode(words[2]) for words in mounts if words[1] == mount]
        return bool(kinds) and kinds[-1] in KERNEL_FILE_SYSTEMS
    return False


def _mount(folder: Path) -> Path:
    """Where the file system of a folder is mounted."""
    above = folder.absolute()
    while not above.is_mount():
        above = above.parent
    return above
