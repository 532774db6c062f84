"""Owner and mode of files and folders: what FlowCheck creates is private to its owner, and what
it opens must belong to a trusted user, and nobody else may be allowed to write to it.

Files are made with mode 0600 and folders with 0700, whatever the umask. Where a group is to read
checkpoints, the folder says so: `install -d -g trainers -m 2750 DIR` (the set-group-id bit, and
read for the group) has everything below it made 0640 and 2750, of that group.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.untrusted_names import (
    A_LINK,
    LINK_OR_FILE,
    NOT_A_FILE,
    OTHER_OWNER,
    WRITABLE_BY_OTHERS,
)

PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE = 0o600, 0o700
GROUP_FILE, GROUP_FOLDER = 0o640, 0o2750
FOR_GROUP = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
"""Of a folder: what is made in it is for its group to read."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
UMASK = 0o077
_TRUSTED: set[int] = set()


def trust(uid: int) -> None:
    """What this user owns is taken over from here on as root's own is: the user that the stages of
    this process's chain run as."""
    from flowcheck._core import lib

    _TRUSTED.add(uid)
    tell(lib)


def tell(lib: Any) -> None:
    """Has one of the C modules, each of which maps files by itself, trust the same users."""
    for uid in _TRUSTED:
        if lib.fc_map_trust(uid) < 0:
            raise ValueError(f"too many users are trusted: {sorted(_TRUSTED)}")


def is_trusted(uid: int) -> bool:
    """Whether what this user owns is believed: root, this process's own user, and `trust`."""
    return uid in (0, os.geteuid()) or uid in _TRUSTED


def open_private_folder(path: Path) -> int:
    """A descriptor of a folder, which is made with its parents where it is not there. Raises
    ConfigError as `check_not_shared`, OSError."""
    make_folder(path)
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise ConfigError("folder", str(path), LINK_OR_FILE()) from error
    try:
        check_not_shared(os.fstat(held), path)
    except ConfigError:
        os.close(held)
        raise
    return held


def check_owner(path: Path) -> None:
    """Raises ConfigError as `check_not_shared` where the folder or file `path`, or what it
    links to, is somebody else's; nothing if it does not exist."""
    with suppress(FileNotFoundError):
        check_not_shared(path.stat(), path)


def is_privately_owned(path: Path) -> bool:
    """Whether nobody else owns what lies at `path`, or may write to it; of a link never. Raises
    OSError."""
    found = path.lstat()
    shared = found.st_mode & OTHERS_WRITE or stat.S_ISLNK(found.st_mode)
    return is_trusted(found.st_uid) and not shared


def check_not_shared(found: os.stat_result, path: Path, key: str = "folder") -> None:
    """Raises ConfigError where what was found at `path` belongs to somebody else, or others may
    write to it: what lies there could be theirs."""
    if not is_trusted(found.st_uid):
        right = OTHER_OWNER(owner=user_name(found.st_uid), user=user_name(os.geteuid()))
        raise ConfigError(key, str(path), right)
    if found.st_mode & OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        right = WRITABLE_BY_OTHERS(mode=f"{stat.S_IMODE(found.st_mode):04o}", path=path)
        raise ConfigError(key, str(path), right)


def user_name(uid: int) -> str:
    """A user for a sentence: name and number."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def make_folder(path: Path, *, new: bool = False) -> None:
    """Makes a folder, and what of its parents is missing, for its owner alone or as the folder that
    it comes into says. new: raises FileExistsError where it is there."""
    if not path.parent.exists():
        make_folder(path.parent)
    mode = modes_in(path.parent)[1]
    try:
        path.mkdir(mode=PRIVATE_FOLDER_MODE)
    except FileExistsError:
        if new or not path.is_dir():
            raise
        return
    path.chmod(mode)


def modes_in(folder: Path) -> tuple[int, int]:
    """(of a file, of a folder) that is made in `folder`."""
    for_group = folder.stat().st_mode & FOR_GROUP == FOR_GROUP
    return (GROUP_FILE, GROUP_FOLDER) if for_group else (PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE)


def make_private(place: Path, folder: Path) -> None:
    """Gives a file, or a folder and all that is in it, the modes of what is made in `folder`; links
    stay what they are."""
    file_mode, folder_mode = modes_in(folder)
    if place.is_symlink():
        return
    if not place.is_dir():
        place.chmod(file_mode)
        return
    place.chmod(folder_mode)
    for root, folders, files in os.walk(place):
        for names, mode in ((folders, folder_mode), (files, file_mode)):
            for name in names:
                path = Path(root, name)
                if not path.is_symlink():
                    path.chmod(mode)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file that is this process's own, made for its owner alone where `flags` say
    so; no link is followed, and no pipe waited for. Raises ConfigError as `check_not_shared`,
    also where it is not a regular file; OSError."""
    own = flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, own, PRIVATE_FILE_MODE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError("file", str(path), A_LINK()) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("file", str(path), NOT_A_FILE())
        check_not_shared(found, path, "file")
    except ConfigError:
        os.close(descriptor)
        raise
    return descriptor


def write_new(path: Path, data: bytes | memoryview) -> None:
    """A file that was not there, for its owner alone. Raises FileExistsError."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)


def write_private(path: Path, data: bytes) -> None:
    """A file of this process's own, in place of what it held. Raises as `open_private`."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)


APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND
"""Flags for `open_private` of a file that several append lines to."""


def append_private(path: Path, line: bytes) -> None:
    """Appends a line to a file of this process's own. Raises as `open_private`."""
    descriptor = open_private(path, APPENDING)
    try:
        append_to_open_file(descriptor, line)
    finally:
        os.close(descriptor)


def append_to_open_file(descriptor: int, line: bytes) -> None:
    """A line to a file that was opened with APPENDING; one that a kill tore is ended first."""
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    os.write(descriptor, b"\n" * torn + line + b"\n")


def set_private_umask() -> None:
    """What this process makes from here on, by itself or through libraries, is its owner's alone,
    whatever the umask was. For a program's main function."""
    os.umask(UMASK)
