"""Finds and ends the processes in a namespace, safe against reused pids (pidfd)."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import NOT_KILLED, PROCESSES_KEEP_STARTING
from flowcheck.lab.cluster.network_namespaces import FOLDER

TERM_LIMIT_S = 3.0
"""Seconds between SIGTERM and SIGKILL. A choice: longer delays `down`, shorter kills who would have
cleaned up."""
KILL_LIMIT_S = 5.0
"""Seconds a killed process may take to be gone. A choice: longer delays the error, shorter fails on
a busy machine."""
ROUNDS = 20
"""Times the processes are listed and signalled: one may have started another while it was being
ended. A choice: more only delays the error for one that always forks."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One life of a pid."""

    pid: int
    start: int
    """Clock ticks since boot (proc(5), stat field 22)."""
    what: str


def look(pid: int) -> ProcessIdentity | None:
    """The process that has `pid` now; None if there is none, or one that only waits to be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    fields = rest.split()
    return None if fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]), name)


def alive(process: ProcessIdentity) -> bool:
    now = look(process.pid)
    return now is not None and now.start == process.start


def members(namespaces: Iterable[str]) -> list[ProcessIdentity]:
    """Every process in one of the namespaces, except this one."""
    wanted = set()
    for name in namespaces:
        try:
            status = (FOLDER / name).stat()
        except OSError:
            continue
        wanted.add((status.st_dev, status.st_ino))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        process = look(int(entry.name))
        if process is not None and _namespace(process.pid) in wanted:
            found.append(process)
    return found


def end_members(
    namespaces: Sequence[str], others: Sequence[ProcessIdentity] = ()
) -> list[ProcessIdentity]:
    """Ends `others` and every process in the namespaces, and what these start; who was ended.

    Raises FlowCheckError where they outlive it.
    """
    ended: list[ProcessIdentity] = []
    todo = [process for process in others if alive(process)]
    for _ in range(ROUNDS):
        todo += [process for process in members(namespaces) if process not in todo]
        if not todo:
            return ended
        end(todo)
        ended += todo
        todo = []
    raise FlowCheckError(PROCESSES_KEEP_STARTING(list(namespaces)))


def end(processes: Iterable[ProcessIdentity]) -> None:
    """SIGTERM, then SIGKILL, and wait. Raises FlowCheckError for one that outlives it."""
    held: dict[int, ProcessIdentity] = {}
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            held[descriptor] = process
            # Asked after the pidfd was taken: from here on it means this life of the pid.
            if not alive(process):
                os.close(descriptor)
                del held[descriptor]
        left = _signal(set(held), signal.SIGTERM, TERM_LIMIT_S)
        left = _signal(left, signal.SIGKILL, KILL_LIMIT_S)
        if left:
            names = ", ".join(f"{held[one].what} ({held[one].pid})" for one in left)
            raise FlowCheckError(NOT_KILLED(names))
    finally:
        for descriptor in held:
            os.close(descriptor)


def _signal(descriptors: set[int], number: signal.Signals, limit_s: float) -> set[int]:
    """Which of the processes are left after `limit_s`."""
    left = set(descriptors)
    poll = select.poll()
    for one in descriptors:
        poll.register(one, select.POLLIN)
        try:
            signal.pidfd_send_signal(one, number)
        except ProcessLookupError:
            continue
    deadline_s = time.monotonic() + limit_s
    while left and (wait_s := deadline_s - time.monotonic()) > 0:
        for one, _ in poll.poll(wait_s * 1000):
            poll.unregister(one)
            left.discard(one)
    return left


def _namespace(pid: int) -> tuple[int, int] | None:
    try:
        status = Path(f"/proc/{pid}/ns/net").stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
