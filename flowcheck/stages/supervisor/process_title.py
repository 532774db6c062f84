"""The words of a process as `ps` shows them and /proc/PID/cmdline holds them, for a process that
was forked and never executed a program of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

ARG_START, ARG_END, ENV_START, ENV_END = (field - 3 for field in (48, 49, 50, 51))
"""Of /proc/PID/stat (proc(5)), among the fields behind the name, which begin with the third."""


def free_environment() -> None:
    """Moves this process's environment to memory that belongs to no command line. Once, before
    `set_command_line`."""
    for name, value in os.environb.items():
        os.putenv(name, value)  # setenv(3) copies


def set_command_line(words: Sequence[str]) -> None:
    """Puts these words in place of the command line that the process was started with. Where they
    are longer they take the place of the environment too, which `free_environment` has moved, and
    have spaces between them: the kernel then shows one string (fs/proc/base.c, get_mm_proctitle).
    What finds no room there is left out."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end, env_start, env_end = (
        int(fields[at]) for at in (ARG_START, ARG_END, ENV_START, ENV_END)
    )
    told = [os.fsencode(word) for word in words]
    title, room = b"\0".join(told) + b"\0", end - start
    if len(title) > room and env_start == end:
        title, room = b" ".join(told), env_end - start
    if start and room > 1:
        ctypes.memmove(start, title[: room - 1].ljust(room, b"\0"), room)
