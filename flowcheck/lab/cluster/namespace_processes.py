"""Finds and ends the processes in network namespaces; pidfds protect against reused pids."""

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
"""Seconds between SIGTERM and SIGKILL. A choice: a longer time delays `down`, a shorter one kills
processes that are cleaning up."""
KILL_LIMIT_S = 5.0
"""Seconds for a killed process to disappear. A choice: a longer limit delays the error, a shorter
one fails on a busy machine."""
ROUNDS = 20
"""How often processes are listed and signalled, since one may start another while it is ended. A
choice: more only delays the error for one that forks forever."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: its pid and start time, which together are unique."""

    pid: int
    start: int
    """Start time in clock ticks since boot (proc(5), stat field 22)."""
    what: str


def find_process(pid: int) -> ProcessIdentity | None:
    """The process with this pid now; None: there is none, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    fields = rest.split()
    return None if fields[0] in "ZX" else ProcessIdentity(pid, int(fields[19]), name)


def is_running(process: ProcessIdentity) -> bool:
    """Whether the process still runs."""
    now = find_process(process.pid)
    return now is not None and now.start == process.start


def processes_in(namespaces: Iterable[str]) -> list[ProcessIdentity]:
    """All processes in the namespaces, except this one."""
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
        process = find_process(int(entry.name))
        if process is not None and _namespace(process.pid) in wanted:
            found.append(process)
    return found


def end_processes_in(
    namespaces: Sequence[str], others: Sequence[ProcessIdentity] = ()
) -> list[ProcessIdentity]:
    """Ends `others`, all processes in the namespaces, and those that they start meanwhile; returns
    the ended ones. Raises FlowCheckError if one does not end."""
    ended: list[ProcessIdentity] = []
    todo = [process for process in others if is_running(process)]
    for _ in range(ROUNDS):
        todo += [process for process in processes_in(namespaces) if process not in todo]
        if not todo:
            return ended
        end_processes(todo)
        ended += todo
        todo = []
    raise FlowCheckError(PROCESSES_KEEP_STARTING(list(namespaces)))


def end_processes(processes: Iterable[ProcessIdentity]) -> None:
    """Sends SIGTERM, then SIGKILL, and waits. Raises FlowCheckError if a process does not end."""
    held: dict[int, ProcessIdentity] = {}
    try:
        for process in processes:
            try:
                descriptor = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            held[descriptor] = process
            # Asked after the pidfd was taken: from here on it means this life of the pid.
            if not is_running(process):
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
