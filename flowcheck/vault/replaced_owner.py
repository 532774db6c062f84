"""Whose an output is that replaces an earlier one with `--force`: root leaves it to the owner of
what it replaces, as `cp` onto a file does. A user who asks for his file anew would else not be able
to read it any more.

In a folder where others may write anybody may have put a file of that name before root comes: what
root writes would be theirs. There root replaces nobody else's output.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import ConfigError
from flowcheck.findings.catalog.output_paths import OTHERS_OUTPUT
from flowcheck.private_files import OTHERS_WRITE, PRIVATE_FILE_MODE, user_name

ROOT = 0
FILE_MODE = 0o644
"""Bits of an earlier file's mode that are kept: others may have read it, and never write it."""


@dataclass(frozen=True, slots=True)
class EarlierOutput:
    """What an output replaces."""

    user: int
    group: int
    file_mode: int | None
    """None: it is a folder, in which files are private as in a new one."""

    def pass_on(self, place: Path) -> None:
        """Gives owner and mode to a file, or the owner to a folder with all that is below it, which
        this process just wrote. Raises OSError, also for what somebody put in its place: who may
        write to the folder could have root give away any file."""
        if place.is_dir() and not place.is_symlink():
            for _, folders, files, at in os.fwalk(place):
                for name in (*folders, *files):
                    if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                        os.chown(name, self.user, self.group, dir_fd=at, follow_symlinks=False)
                    else:
                        self._pass_on(name, at)
        self._pass_on(str(place))

    def _pass_on(self, name: str, at: int | None = None) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=at)
        try:
            found = os.fstat(descriptor)
            is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
            if found.st_uid != os.geteuid() or not (is_file or stat.S_ISDIR(found.st_mode)):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
            if os.geteuid() == ROOT:
                os.fchown(descriptor, self.user, self.group)
            elif self.user == os.geteuid():
                with suppress(PermissionError):  # a group that this user left
                    os.fchown(descriptor, -1, self.group)
            if is_file and self.file_mode is not None:
                os.fchmod(descriptor, self.file_mode)
        finally:
            os.close(descriptor)


def earlier_output(out: Path) -> EarlierOutput | None:
    """What an output replaces; None: nothing whose owner it would have to keep, or could."""
    try:
        found = out.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        mode = stat.S_IMODE(found.st_mode) & FILE_MODE | PRIVATE_FILE_MODE
        known = os.geteuid() in (ROOT, found.st_uid)
        return EarlierOutput(found.st_uid, found.st_gid, mode) if known else None
    of_another = os.geteuid() == ROOT and found.st_uid != ROOT
    return EarlierOutput(found.st_uid, found.st_gid, None) if of_another else None


def check_owner_of_replaced(out: Path, key: str) -> None:
    """Raises ConfigError where root would replace another user's output in a folder that others
    may write to. key: the option that names it."""
    earlier = earlier_output(out)
    if os.geteuid() != ROOT or earlier is None or earlier.user == ROOT:
        return
    around = out.absolute().parent.stat()
    if around.st_mode & OTHERS_WRITE:
        owner = user_name(earlier.user)
        raise ConfigError(key, str(out), OTHERS_OUTPUT(owner=owner, folder=out.absolute().parent))
