"""File and checkpoint names that come from outside (manifests, listings, HTTP): validated once,
and opened without following links.

Nothing else in the package decides which names are valid. A name is checked once, where it comes
in, and opened by `open_below`, which follows no link: the file is below its folder even if somebody
replaces a folder by a link in the meantime.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog.untrusted_names import (
    A_LINK_BELOW,
    FILE_AND_FOLDER,
    KEPT_FOR_DOWNLOADS,
    LISTED_TWICE,
    NO_STEP_IN_NAME,
    NOT_A_CHECKPOINT_NAME,
    NOT_A_STEP,
    NOT_IN_A_CHECKPOINT,
    NOT_IN_THE_FOLDER,
    NOT_REGULAR,
    NOT_REGULAR_BELOW,
)
from flowcheck.private_files import PRIVATE_FILE_MODE, PRIVATE_FOLDER_MODE
from flowcheck.step_numbers import Step

NAME_BYTES_MAX = 255
"""Of one part between two slashes (limits.h, NAME_MAX)."""
PATH_BYTES_MAX = 1024
"""Of a whole name, with room for the folder before it (limits.h, PATH_MAX, is 4096)."""
DEPTH_MAX = 16
"""Folders within each other. A choice: no checkpoint format nests as deep; stops names made to
exhaust a file system."""
STEP_MAX = 10**18
"""A step has fewer digits than its neighbours in a signed word of 64 bits."""
_CHECKPOINT = re.compile(r"step-(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{1,64}))?", re.ASCII)
FETCH_LISTING, FETCH_DONE = ".fetch.json", ".fetch.done"
"""What a fetch notes in the folder that it fills: no file of a checkpoint has these names."""


def checked_checkpoint_name(told: object, where: str) -> str:
    """The name of a checkpoint's folder: step-N, or step-N-DIGEST. Raises StateError, which names
    `where` it came from, for anything else."""
    if not isinstance(told, str) or _CHECKPOINT.fullmatch(told) is None:
        raise StateError(NOT_A_CHECKPOINT_NAME(where=where, name=f"{told!r:.300}"))
    return told


def is_checkpoint_name(name: str) -> bool:
    """Whether it names a checkpoint's folder: step-N, or step-N-DIGEST."""
    return _CHECKPOINT.fullmatch(name) is not None


def step_in_name(name: str) -> int:
    """The step in a checkpoint's name. Raises StateError for another name."""
    found = _CHECKPOINT.fullmatch(name)
    if found is None:
        raise StateError(NO_STEP_IN_NAME(f"{name!r:.300}"))
    return int(found[1])


def digest_in_name(name: str) -> str:
    """The begin of a digest behind the step in a checkpoint's name; empty without one."""
    found = _CHECKPOINT.fullmatch(name)
    return (found[2] or "") if found is not None else ""


def step_number(told: object, where: str) -> Step:
    """A step number that came from outside. Raises StateError for any other value."""
    if type(told) is not int or not 0 <= told < STEP_MAX:
        raise StateError(NOT_A_STEP(where=where, step=f"{told!r:.60}"))
    return Step(told)


def checked_file_name(told: object, where: str) -> str:
    """The name of something that lies in a folder itself, not below another one. Raises
    StateError."""
    if not is_relative(told) or "/" in str(told):
        raise StateError(NOT_IN_THE_FOLDER(where=where, name=f"{told!r:.300}"))
    return str(told)


def checked_relative_path(told: object, where: str) -> str:
    """The name of a file below a folder, / between folders, each file in one way only. Raises
    StateError."""
    if not is_relative(told):
        raise StateError(NOT_IN_A_CHECKPOINT(where=where, name=f"{told!r:.300}"))
    return str(told)


def is_relative(told: object) -> bool:
    """Whether it names a file below a folder: text that every file system here takes, without
    control characters, none of whose parts is empty, "." or ".."."""
    if not isinstance(told, str) or not told.isprintable():
        return False
    try:
        parts = [part.encode() for part in told.split("/")]
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    if len(parts) > DEPTH_MAX or sum(map(len, parts)) + len(parts) > PATH_BYTES_MAX:
        return False
    return all(part not in (b"", b".", b"..") and len(part) <= NAME_BYTES_MAX for part in parts)


def refuse_conflicting_names(names: Iterable[str], where: str) -> None:
    """Names of all files of one checkpoint. Raises StateError if a name is listed twice, is also a
    folder of another name, or is one that a download uses for its own notes."""
    seen: set[str] = set()
    folders: set[str] = set()
    for name in names:
        checked_relative_path(name, where)
        if name in (FETCH_LISTING, FETCH_DONE) or name in seen:
            refused = LISTED_TWICE if name in seen else KEPT_FOR_DOWNLOADS
            raise StateError(refused(where=where, name=repr(name)))
        seen.add(name)
        parts = name.split("/")
        folders.update("/".join(parts[:count]) for count in range(1, len(parts)))
    if both := sorted(seen & folders):
        raise StateError(FILE_AND_FOLDER(where=where, name=repr(both[0])))


def open_below(
    folder: Path | int,
    name: str,
    flags: int = os.O_RDONLY,
    *,
    make: bool = False,
) -> int:
    """A descriptor of the regular file `name` below `folder` (a path, or a descriptor of it), which
    is opened part by part and through no link. make: folders on the way are made; what is made is
    for its owner alone.

    Raises StateError if the name is not valid or not that of a regular file; OSError.
    """
    parts = checked_relative_path(name, str(folder)).split("/")
    way = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    if isinstance(folder, int):
        at = os.dup(folder)
    else:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            if make:
                _made(part, at)
            below = os.open(part, way, dir_fd=at)
            os.close(at)
            at = below
        # A pipe that somebody put there must not be waited for.
        own = flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        found = os.open(parts[-1], own, PRIVATE_FILE_MODE, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StateError(A_LINK_BELOW(folder=str(folder), name=repr(name))) from error
        raise OSError(error.errno, os.strerror(error.errno or 0), f"{folder}/{name}") from error
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise StateError(NOT_REGULAR_BELOW(folder=str(folder), name=repr(name)))
    return found


def refuse_special_file(path: Path) -> None:
    """Raises StateError for a pipe, a socket or a device: reading one waits, or never ends."""
    with suppress(OSError):  # of what is not there its reader says more
        if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise StateError(NOT_REGULAR(path))


def _made(part: str, at: int) -> None:
    try:
        os.mkdir(part, PRIVATE_FOLDER_MODE, dir_fd=at)
    except FileExistsError:
        return
