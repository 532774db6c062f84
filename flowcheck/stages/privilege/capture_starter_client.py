"""The supervisor's end of the process that starts captures (capture_starter.py)."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from flowcheck.errors import StateError
from flowcheck.findings.catalog.chain_processes import CAPTURE_STARTER_FAILED, CAPTURE_STARTER_GONE
from flowcheck.stages.privilege import privilege_syscalls
from flowcheck.stages.privilege.adopted_fork import GO
from flowcheck.stages.privilege.capture_starter import (
    ANSWER_LIMIT_S,
    STAGE,
    STARTER_SOCKET_VARIABLE,
)

MOST_LOST = 8
"""Answers of one request that may be lost with the process that gave it. A choice: more delays the
error where something kills each."""
HANGS_S = 15.0
"""Seconds after which a process that answered before and answers no more, as one that is stopped,
is ended, so that the one beside it takes its place. The supervisor does nothing else meanwhile. A
choice: less ends one that only waits for memory."""


class ProcessHandle(Protocol):
    """The methods that the supervisor needs of a stage's process; subprocess.Popen has them."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class AdoptedProcess:
    """A child of this process that another process started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._watched = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the process; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                os.close(self._watched)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code. Raises subprocess.TimeoutExpired."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._watched], [], [], left_s)[0] and self.poll() is None:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watched, number)


class CaptureStarterClient:
    """Asks the process capture_starter.py to start captures. Killed, it is replaced by another; it
    is killed if it hangs."""

    def __init__(self, channel: socket.socket) -> None:
        privilege_syscalls.adopt_orphans()
        self._channel = channel
        self._starter = 0
        """Who answered last."""
        self._watched = -1
        """Descriptor of that process, whose number another one may have by now."""

    def start(self, source: int, log: int) -> ProcessHandle:
        """Starts the capture of source number `source`. log: descriptor for its output. Raises
        StateError if nobody is left that starts captures, or none can be started."""
        try:
            for _ in range(MOST_LOST):
                known = self._watched != -1
                try:
                    if capture := self._ask(source, log, HANGS_S if known else ANSWER_LIMIT_S):
                        return capture
                except TimeoutError:
                    if not known:
                        raise
                    self._end_starter()
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise StateError(CAPTURE_STARTER_GONE()) from error
            raise StateError(CAPTURE_STARTER_FAILED(error.strerror or str(error))) from error
        raise StateError(CAPTURE_STARTER_GONE())

    def _ask(self, source: int, log: int, limit_s: float) -> ProcessHandle | None:
        """None: whoever took the request was killed. Raises TimeoutError if nobody answers."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            mine.settimeout(limit_s)
            with its:
                socket.send_fds(self._channel, [str(source).encode()], [log, its.fileno()])
            with suppress(ConnectionError):
                pid, _, starter = mine.recv(64).partition(b" ")
                if pid == b"0":
                    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                if pid:
                    capture = AdoptedProcess(int(pid))
                    mine.send(GO)  # if this is lost it ends, and is started again as one that died
                    self._replaced_by(int(starter))
                    return capture
        return None

    def _end_starter(self) -> None:
        """Kills the one that answered last, if it is still there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._watched, signal.SIGKILL)
        self._forget()

    def _replaced_by(self, starter: int) -> None:
        if starter == self._starter:
            return
        self._forget()
        with suppress(ProcessLookupError):  # it was killed since it answered
            self._starter, self._watched = starter, os.pidfd_open(starter)

    def _forget(self) -> None:
        """It is gone, or was just killed: what is left of it is taken away, as its parent does."""
        if self._watched == -1:
            return
        select.select([self._watched], [], [], 1.0)  # a killed one ends at once
        with suppress(ChildProcessError):
            os.waitpid(self._starter, os.WNOHANG)
        os.close(self._watched)
        self._starter, self._watched = 0, -1


_inherited: list[CaptureStarterClient] = []


def inherit(environment: Mapping[str, str] = os.environ) -> None:
    """Takes over the socket that the command was started with. Called once, at its start."""
    descriptor = environment.get(STARTER_SOCKET_VARIABLE, "")
    if descriptor.isdecimal():
        os.environ.pop(STARTER_SOCKET_VARIABLE, None)
        os.set_inheritable(int(descriptor), False)
        _inherited.append(CaptureStarterClient(socket.socket(fileno=int(descriptor))))


def capture_starter(stage: str) -> CaptureStarterClient | None:
    """The client that starts this stage with capabilities that the supervisor does not have; None:
    the supervisor starts the stage itself."""
    return _inherited[0] if _inherited and stage == STAGE else None
