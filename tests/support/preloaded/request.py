"""What a process that asks for a command tells the process that forks it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REQUEST_BYTES = 1 << 17
"""Longest request, most of it the environment: what a socket takes as one message by default."""
GO = b"g"
"""What a new process waits for: then it is its asker's child."""
NAMESPACES = {"mnt": 0x00020000, "net": 0x40000000}
"""Those that the fork may enter, with their flags of setns(2) (linux/sched.h)."""
LIMITS = tuple(sorted({getattr(resource, n) for n in dir(resource) if n.startswith("RLIMIT_")}))
SET_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that python ignores, and that subprocess restores for what it executes."""


@dataclass(frozen=True)
class Inherited:
    """What a process has from the one that makes it, apart from files."""

    umask: int
    ignored: int
    blocked: int
    """Masks of signals; bit 0 is signal 1."""
    limits: tuple[tuple[int, int], ...]
    niceness: int
    processors: frozenset[int]

    @classmethod
    def of_caller(cls) -> Inherited:
        """Of the calling thread, as what it executed would have it."""
        text = Path("/proc/thread-self/status").read_text()
        told = dict(line.split(":", 1) for line in text.splitlines())
        restored = sum(1 << (number - 1) for number in SET_BY_PYTHON)
        return cls(
            umask=int(told["Umask"], 8),
            ignored=int(told["SigIgn"], 16) & ~restored,
            blocked=int(told["SigBlk"], 16),
            limits=tuple(resource.getrlimit(limit) for limit in LIMITS),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            processors=frozenset(os.sched_getaffinity(0)),
        )


@dataclass(frozen=True)
class Request:
    """A command. Descriptors come along: the working directory, one for each of `files`, and one
    for each of `namespaces`."""

    words: Sequence[str]
    """Behind `python`."""
    environment: dict[bytes, bytes]
    files: Sequence[int]
    """Which numbers these files have in the new process: 0, 1, 2 and others."""
    namespaces: Sequence[str]
    """Those to enter."""
    new_session: bool
    inherited: Inherited


def environment_of_c() -> dict[bytes, bytes]:
    """What a program is executed with where no environment is stated: libraries may have added to
    os.environ, as readline does."""
    every = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    lines: list[bytes] = []
    while (line := every[len(lines)]) is not None:
        lines.append(line)
    return {name: value for name, _, value in (line.partition(b"=") for line in lines)}


def mask(numbers: int) -> set[int]:
    """The signals of a mask."""
    return {bit + 1 for bit in range(64) if numbers >> bit & 1}
