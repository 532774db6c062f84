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
"""Prefix of folders of shared memory. flowcheck-<pid>-<start time>-<count>-<random> names the
process that owns the folder."""
RUN_DIR_LINK_PREFIX = "run-"
"""Prefix of an empty file in a folder of shared memory, whose name encodes the run directory:
hugetlbfs stores names, but neither text nor links."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2): signal at the parent's death (linux/prctl.h)."""


def stale_memory(mounts: Iterable[Path]) -> list[Path]:
    """Folders of shared memory whose owning process is dead and that this user may lock."""
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
    """The run directory of a folder of shared memory. None: no run directory links to the folder,
    or an untrusted user owns it, who could have created any name in it."""
    with suppress(OSError):
        if not is_privately_owned(memory):
            return None
    for file in memory.glob(f"{RUN_DIR_LINK_PREFIX}*"):
        with suppress(ValueError, OSError):  # none of ours
            told = base64.urlsafe_b64decode(file.name.removeprefix(RUN_DIR_LINK_PREFIX))
            root = Path(os.fsdecode(told))
            if (root / "memory").resolve() == memory.resolve():
                return root
    return None


def link_run_dir(run: Path, memory: Path) -> None:
    """Notes the run directory in its folder of shared memory, for `run_dir_of_memory`."""
    name = RUN_DIR_LINK_PREFIX + base64.urlsafe_b64encode(os.fsencode(run.resolve())).decode()
    with suppress(OSError):  # too long a path; sockets will refuse it with a sentence
        (memory / name).touch(mode=PRIVATE_FILE_MODE)


def lock_folder(folder: Path) -> int:
    """A descriptor that holds the folder's exclusive lock. Raises OSError if another process holds
    the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def process_identity(pid: int) -> str:
    """The text "<pid> <start time>", which identifies a process although pids are reused. The start
    time is in clock ticks, field 22 of /proc/<pid>/stat (proc(5)). "0 0": the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "0 0"
    state, *fields = stat.rpartition(")")[2].split()
    return "0 0" if state in "ZX" else f"{pid} {fields[18]}"


def live_pid(told: str) -> int | None:
    """The pid of a process if it still lives; None if it is gone, also if its pid is reused.

    told: the `process_identity` of the process.
    """
    pid = told.partition(" ")[0]
    return (
        int(pid) if pid.isdecimal() and pid != "0" and process_identity(int(pid)) == told else None
    )


def die_with_parent(parent: int) -> bool:
    """Asks the kernel to end this process when its parent ends. False: the parent is gone
    already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent
