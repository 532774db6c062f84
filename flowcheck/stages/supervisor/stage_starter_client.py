"""The supervisor's end of the process that stages are forked from (stage_starter.py)."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from flowcheck.stages.privilege.adopted_fork import GO
from flowcheck.stages.privilege.capture_starter_client import AdoptedProcess, ProcessHandle
from flowcheck.stages.privilege.privilege_syscalls import adopting_orphans
from flowcheck.stages.supervisor.process_progress import ProgressTimeout

LOADED = b"loaded"
"""What the process says once it can fork stages."""
REQUEST_BYTES = 1 << 16
"""Longest request; a path has at most 4096 bytes (PATH_MAX)."""
LOAD_STILL_S, LOAD_LIMIT_S = 20.0, 600.0
"""Seconds that it may stand still while it loads, and that loading may take: stages are executed
behind that. A choice: longer delays a chain beside a process that hangs, shorter loads torch twice
on a slow machine."""
ANSWER_LIMIT_S = 5.0
"""Seconds for its answer, in which the supervisor does nothing else. It forks twice. A choice:
longer lets a process that hangs hold up the chain, shorter loads torch again on a machine that
swaps."""


class StartRequest(msgspec.Struct, frozen=True):
    """A stage's words behind `flowcheck`. Its log comes along as a descriptor, and the socket for
    checkpoint requests as a second one where it serves them."""

    words: list[str]


class StageStarter:
    """Asks it for stages. It may be killed at any instant: stages are executed from then on."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        channel.settimeout(ANSWER_LIMIT_S)
        self._pid, self._channel = pid, channel
        self._patience = ProgressTimeout(pid, still_s=LOAD_STILL_S, limit_s=LOAD_LIMIT_S)
        self._loaded = self._ended = False

    def is_loading(self) -> bool:
        """Whether it is worth while to wait for it. Never blocks."""
        if self._loaded or self._ended:
            return False
        if select.select([self._channel], [], [], 0)[0]:
            with suppress(OSError):
                self._loaded = self._channel.recv(len(LOADED)) == LOADED
            if not self._loaded:
                self.end()
        elif self._patience.is_over():
            self.end()
        return not (self._loaded or self._ended)

    def start(self, words: Sequence[str], *descriptors: int) -> ProcessHandle | None:
        """Starts a stage, a child of this process. descriptors: as of StartRequest. None: it is to
        be executed."""
        if self.is_loading() or self._ended:
            return None
        try:
            with adopting_orphans():
                request = msgspec.json.encode(StartRequest(list(words)))
                socket.send_fds(self._channel, [request], descriptors)
                pid, _, _ = self._channel.recv(64).partition(b" ")
                if pid.isdigit():
                    stage = AdoptedProcess(int(pid))
                    self._channel.send(GO)  # it begins now, and not where nobody waits for it
                    return stage
        except OSError:
            pass
        self.end()
        return None

    def end(self) -> None:
        """Ends the process; its stages go on."""
        if not self._ended:
            self._ended = True
            self._channel.close()
            with suppress(ProcessLookupError, ChildProcessError):  # where SIGCHLD is ignored
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


_kept: list[StageStarter] = []


def keep_starter(starter: StageStarter) -> None:
    """Keeps it for the chain that this process will run."""
    _kept.append(starter)


def stage_starter() -> StageStarter | None:
    """That of this process's chain; None: stages are executed."""
    return _kept[0] if _kept else None


def end_starter() -> None:
    """Ends it with the chain."""
    while _kept:
        _kept.pop().end()
