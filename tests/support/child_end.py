"""Waits for a forked child, with a limit."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path


def ended(child: int, limit_s: float = 60.0) -> int:
    """The wait status of `child`; one that does not end is killed, and where it hung is told."""
    watched = os.pidfd_open(child)
    try:
        done, _, _ = select.select([watched], [], [], limit_s)
    finally:
        os.close(watched)
    if not done:
        proc = Path("/proc", str(child))
        where = [f"{name}: {(proc / name).read_text()}" for name in ("wchan", "syscall", "status")]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError("\n".join([f"the child did not end in {limit_s} s", *where]))
    return os.waitpid(child, 0)[1]
