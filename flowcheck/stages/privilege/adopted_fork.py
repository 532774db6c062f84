"""A fork whose new process another one adopts: how a process that starts stages makes children of
the supervisor, which waits for them and whose end they follow."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

GO = b"g"
"""What the new process waits for: the process between is gone then."""


def fork_adopted(
    output: int, closed: Sequence[int], is_wanted: Callable[[int], bool] = lambda _: True
) -> int | None:
    """As os.fork, but the new process is a child of the nearest ancestor that adopts orphans
    (`privilege_syscalls.adopt_orphans`), by way of a process between, which ends first. Returns its
    pid, 0 in the new process, None where there can be none. The caller has one thread.

    output: descriptor for what the new process says; it reads nothing, and has a session of its
    own, so that Ctrl-C reaches only the supervisor. closed: descriptors that it is to have no more.
    is_wanted: asked with its pid before it does anything; where it is not wanted it ends, and None
    is returned.
    """
    told, tell = os.pipe()
    wait, hold = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            _prepare(output, wait, (told, tell, hold, *closed))
            return 0
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32) or b"0")
    wanted = bool(pid) and is_wanted(pid)
    if wanted:
        os.write(hold, GO)
    for descriptor in (told, wait, hold):
        os.close(descriptor)
    return pid if wanted else None


def is_taken(channel: socket.socket, limit_s: float, pid: int) -> bool:
    """Tells the supervisor of a new process, which begins only once the supervisor has it: one that
    gave the process that starts it up may have started another, and there must not be two."""
    with suppress(OSError):
        channel.send(f"{pid} {os.getpid()}".encode())
        if select.select([channel], [], [], limit_s)[0]:
            return channel.recv(len(GO)) == GO
    return False


def _prepare(output: int, wait: int, others: Sequence[int]) -> None:
    try:
        for descriptor in others:
            os.close(descriptor)
        if os.read(wait, 1) != GO:  # who asked for it is told of none
            os._exit(127)
        os.close(wait)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        for descriptor in (nothing, output):
            os.close(descriptor)
    except BaseException:
        os._exit(127)
