"""Whether a process (pid and start time) still lives, and which process owns a shared memory
folder."""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from flowcheck.private_files import PRIVATE_FILE_MODE, is_privately_owned

MEMORY_PREFIX = "flowcheck-"
"""Of folders of shared memory: flowcheck-<pid>-<its start>-<count> names their owner."""
LEADS_TO = "run-"
"""Begins the name of an empty file in a folder of shared memory that tells its run directory:
hugetlbfs holds names, but neither text nor links."""
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def stale_memory(mounts: Iterable[Path]) -> list[Path]:
    """Folders of shared memory whose owner is dead: this user's, and others' that he may lock."""
    found = []
    for folder in (folder for mount in mounts for folder in mount.glob(f"{MEMORY_PREFIX}*-*-*")):
        pid, start, *_ = folder.name.removeprefix(MEMORY_PREFIX).split("-")
        if not (pid.isdecimal() and start.isdecimal()) or live_pid(f"{pid} {start}") is not None:
            continue
        with suppress(OSError):  # another user's, a link, or gone meanwhile
            os.close(lock_folder(folder))  # held by an owner whose number is another container's
            found.append(folder)
    return sorted(found)


def run_dir_of_memory(memory: Path) -> Path | None:
    """The run directory of a folder of shared memory; None if none leads to it any more, or the
    folder is somebody else's, who may have put any name there."""
    with suppress(OSError):
        if not is_privately_owned(memory):
            return None
    for file in memory.glob(f"{LEADS_TO}*"):
        with suppress(ValueError, OSError):  # none of ours
            told = base64.urlsafe_b64decode(file.name.removeprefix(LEADS_TO))
            root = Path(os.fsdecode(told))
            if (root / "memory").resolve() == memory.resolve():
                return root
    return None


def lead_to(run: Path, memory: Path) -> None:
    """Makes `run_dir_of_memory` find the run directory of a folder of shared memory."""
    name = LEADS_TO + base64.urlsafe_b64encode(os.fsencode(run.resolve())).decode()
    with suppress(OSError):  # too long a path; sockets will refuse it with a sentence
        (memory / name).touch(mode=PRIVATE_FILE_MODE)


def lock_folder(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises OSError where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def process_identity(pid: int) -> str:
    """ "<pid> <clock tick it was started at>", field 22 of /proc/<pid>/stat (proc(5)); "0 0" for
    a process that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "0 0"
    state, *fields = stat.rpartition(")")[2].split()
    return "0 0" if state in "ZX" else f"{pid} {fields[18]}"


def live_pid(told: str) -> int | None:
    """The pid of exactly this process, or None when it is gone or its number is another's.

    told: its `process_identity` while it lived.
    """
    pid = told.partition(" ")[0]
    return (
        int(pid) if pid.isdecimal() and pid != "0" and process_identity(int(pid)) == told else None
    )


def die_with_parent(parent: int) -> bool:
    """Asks the kernel to end this process with its parent; False if that is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent
