"""Owner and mode of files and folders. FlowCheck creates them private to their owner. It opens only
files and folders that belong to a trusted user and that other users may not write to.

Files get mode 0600 and folders 0700, whatever the umask. To let a group read checkpoints, make the
folder with `install -d -g trainers -m 2750 DIR` (set-group-id bit, and read permission for the
group). Files and folders below it then get modes 0640 and 2750 and belong to the group.
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
GROUP_READ_BITS = stat.S_ISGID | stat.S_IRGRP | stat.S_IXGRP
"""Mode bits of a folder that all have if the folder's group may read what is created in it."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
UMASK = 0o077
_TRUSTED: set[int] = set()


def trust_user(uid: int) -> None:
    """Trusts files of user `uid` like root's from now on. For the user that the stages of this
    process's chain run as."""
    from flowcheck._core import lib

    _TRUSTED.add(uid)
    pass_trusted_users_to_c(lib)


def pass_trusted_users_to_c(lib: Any) -> None:
    """Tells a C module, which maps files by itself, the trusted users."""
    for uid in _TRUSTED:
        if lib.fc_map_trust(uid) < 0:
            raise ValueError(f"too many users are trusted: {sorted(_TRUSTED)}")


def is_trusted(uid: int) -> bool:
    """Whether a user is trusted: root, this process's own user, and users given to `trust_user`."""
    return uid in (0, os.geteuid()) or uid in _TRUSTED


def open_private_folder(path: Path) -> int:
    """A descriptor of a folder, which is created with its parents if it does not exist. Raises
    ConfigError as `check_not_shared` does, and for a link or file; OSError."""
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
    """Checks the owner and mode of the file or folder that `path` is or links to. Raises
    ConfigError as `check_not_shared` does. Does nothing if it does not exist."""
    with suppress(FileNotFoundError):
        check_not_shared(path.stat(), path)


def is_privately_owned(path: Path) -> bool:
    """Whether `path` belongs to a trusted user and no other user may write to it. False for a link.
    Raises OSError."""
    found = path.lstat()
    shared = found.st_mode & OTHERS_WRITE or stat.S_ISLNK(found.st_mode)
    return is_trusted(found.st_uid) and not shared


def check_not_shared(found: os.stat_result, path: Path, key: str = "folder") -> None:
    """Raises ConfigError if a file or folder belongs to an untrusted user, or if other users may
    write to it. found: its stat result. key: the setting's name in the error."""
    if not is_trusted(found.st_uid):
        right = OTHER_OWNER(owner=user_name(found.st_uid), user=user_name(os.geteuid()))
        raise ConfigError(key, str(path), right)
    if found.st_mode & OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        right = WRITABLE_BY_OTHERS(mode=f"{stat.S_IMODE(found.st_mode):04o}", path=path)
        raise ConfigError(key, str(path), right)


def user_name(uid: int) -> str:
    """A user's name and number, for messages."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def make_folder(path: Path, *, new: bool = False) -> None:
    """Creates a folder and its missing parents, with the mode that `modes_for_new_entries`
    gives for their parent. new: raises FileExistsError if the folder exists."""
    if not path.parent.exists():
        make_folder(path.parent)
    mode = modes_for_new_entries(path.parent)[1]
    try:
        path.mkdir(mode=PRIVATE_FOLDER_MODE)
    except FileExistsError:
        if new or not path.is_dir():
            raise
        return
    path.chmod(mode)


def modes_for_new_entries(folder: Path) -> tuple[int, int]:
    """(mode of files, mode of folders) that are created in `folder`."""
    for_group = folder.stat().st_mode & GROUP_READ_BITS == GROUP_READ_BITS
    return (GROUP_FILE, GROUP_FOLDER) if for_group else (PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE)


def make_private(place: Path, folder: Path) -> None:
    """Gives a file, or a folder and everything below it, the modes of
    `modes_for_new_entries(folder)`. Links are not changed."""
    file_mode, folder_mode = modes_for_new_entries(folder)
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
    """A descriptor of a regular file of a trusted user. With O_CREAT in `flags` a new file gets
    mode 0600. Follows no link and does not wait for a pipe. Raises ConfigError as
    `check_not_shared` does, and for a link or anything but a regular file; OSError."""
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
    """Writes a new file with mode 0600. Raises FileExistsError, and as `open_private` does."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(data)


def write_private(path: Path, data: bytes) -> None:
    """Replaces the content of a file, or creates it with mode 0600. Raises as `open_private`
    does."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)


APPEND_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
"""Flags for `open_private` of a file to which several processes append lines."""


def append_private(path: Path, line: bytes) -> None:
    """Appends a line to a file, which is created if it does not exist. Raises as `open_private`
    does."""
    descriptor = open_private(path, APPEND_FLAGS)
    try:
        append_to_open_file(descriptor, line)
    finally:
        os.close(descriptor)


def append_to_open_file(descriptor: int, line: bytes) -> None:
    """Appends a line to a file that was opened with APPEND_FLAGS. If a kill left the last line
    incomplete, a newline ends it first."""
    size = os.fstat(descriptor).st_size
    torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    added = b"\n" * torn + line + b"\n"
    if os.write(descriptor, added) < len(added):  # what was written stays, as a torn line
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def set_private_umask() -> None:
    """Sets the umask so that all files that this process or its libraries create are private to
    their owner. For a program's main function."""
    os.umask(UMASK)
