"""What tests of the lab that run side by side must not share."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[1] / "lab"
LONGEST = "test_lab_train.py", "test_kill_", "test_unseen_scripts.py", "test_up_end.py"
"""Begun first, so that no worker is left alone with one of them."""
CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_REC, MS_SLAVE = 0x4000, 0x80000  # linux/mount.h
_libc = ctypes.CDLL(None, use_errno=True)


def begins_late(item: pytest.Item) -> bool:
    return not (item.path.parent == LAB and item.path.name.startswith(LONGEST))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        pytest.exit(f"no mounts of a worker's own: {name}: {reason}; run with -n 0", 2)


@cache
def own_shared_memory() -> None:
    """Gives a worker of several a /dev/shm, and mounts, which no other sees.

    `flowcheck down` takes away what killed chains left there, of whichever test. Clusters need
    nothing of the kind: they are named after the process that makes them.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        _call("unshare", CLONE_NEWNS)
        _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
        _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
