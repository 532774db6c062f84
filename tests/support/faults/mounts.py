"""Mounts that no other process sees: shared memory of a schedule's own, small disks."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_REC, MS_SLAVE = 0x4000, 0x80000  # linux/mount.h
SHARED_MEMORY_MIB = 1024
_libc = ctypes.CDLL(None, use_errno=True)


def may_mount() -> bool:
    """Whether this process is allowed to; without, schedules leave small disks out."""
    return os.geteuid() == 0


def own_mounts(memory_mib: int) -> None:
    """A /dev/shm for this process and its children alone. Raises OSError."""
    _call("unshare", CLONE_NEWNS)
    _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    size = memory_mib or SHARED_MEMORY_MIB
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}m".encode())


def small_disk(folder: Path, kib: int) -> None:
    """A file system of so many KiB in a new folder. Raises OSError."""
    folder.mkdir()
    _call("mount", b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={kib}k".encode())


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
