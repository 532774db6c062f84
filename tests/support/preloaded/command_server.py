"""This process's end of the process that commands are forked from."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from support.preloaded.asked import may_differ, note_loaded
from support.preloaded.request import GO, NAMESPACES, REQUEST_BYTES, Inherited, Request

import flowcheck
from flowcheck.stages.privilege.privilege_syscalls import adopting_orphans

TESTS = Path(__file__).resolve().parents[2]
START = (
    "import sys; sys.path.insert(1, sys.argv.pop(1)); "
    "from support.preloaded.server import main; del sys.path[1]; main()"
)
LOAD_LIMIT_S, ANSWER_LIMIT_S = 120.0, 30.0
"""Seconds, on a machine that tests keep busy."""
STARTS_MAX = 3
"""More would be in vain: commands are executed from then on."""
OTHER_NAMESPACES = ("user", "pid", "cgroup", "ipc", "uts", "time")


@dataclass(frozen=True)
class Wanted:
    """A command as subprocess.Popen is asked for it."""

    words: Sequence[str]
    """Behind `python`."""
    environment: dict[bytes, bytes]
    folder: str
    files: Mapping[int, int]
    """Number in the new process: descriptor here."""
    new_session: bool


def _users() -> object:
    return os.getresuid(), os.getresgid(), os.getgroups()


class CommandServer:
    """Started with the first command. May be killed at any instant."""

    def __init__(self) -> None:
        self._owner, self._users, self._loaded = os.getpid(), _users(), False
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        note_loaded()
        atexit.register(self.end)
        with other:
            words = [str(TESTS), str(other.fileno()), str(self._owner)]
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, *words, *flowcheck.__path__],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def can_fork(self, wanted: Wanted) -> bool:
        """Whether the fork would be as the executed one."""
        if not Path(wanted.folder).is_dir() or not may_differ(wanted.environment):
            return False
        left = OTHER_NAMESPACES if os.geteuid() == 0 else (*OTHER_NAMESPACES, *NAMESPACES)
        return _users() == self._users and not any(map(self._is_elsewhere, left))

    def _is_elsewhere(self, namespace: str) -> bool:
        """Whether the calling thread is in another one than the server."""
        own, its = (Path(f"/proc/{p}/ns/{namespace}") for p in ("thread-self", self.process.pid))
        return own.readlink() != its.readlink()

    def fork(self, wanted: Wanted) -> int | None:
        """The pid of a child of this process; None: it is to be executed. OSError: the server is
        gone."""
        namespaces = [name for name in NAMESPACES if self._is_elsewhere(name)]
        request = Request(
            words=wanted.words,
            environment=wanted.environment,
            files=list(wanted.files),
            namespaces=namespaces,
            new_session=wanted.new_session,
            inherited=Inherited.of_caller(),
        )
        told = pickle.dumps(request)
        if len(told) > REQUEST_BYTES:
            return None
        with ExitStack() as opened:
            passed = []
            for place in (wanted.folder, *(f"/proc/thread-self/ns/{name}" for name in namespaces)):
                passed.append(os.open(place, os.O_RDONLY))
                opened.callback(os.close, passed[-1])
            passed[1:1] = wanted.files.values()
            self._channel.settimeout(ANSWER_LIMIT_S if self._loaded else LOAD_LIMIT_S)
            with adopting_orphans():
                socket.send_fds(self._channel, [told], passed)
                pid = int(self._channel.recv(32) or b"0")
                self._loaded = True
        if not pid:
            raise OSError("the server of commands is gone")
        self._channel.send(GO)
        return pid

    def end(self) -> None:
        if os.getpid() == self._owner:
            self._channel.close()
            self.process.kill()
            self.process.wait()


_lock = Lock()
_servers: list[CommandServer] = []


def forked(wanted: Wanted) -> int | None:
    """The pid of a command, a child of this process. None: it is to be executed."""
    with _lock:
        if _servers and _servers[-1]._owner != os.getpid():
            return None  # another process's
        if not _servers or _servers[-1].process.poll() is not None:
            if len(_servers) == STARTS_MAX:
                return None
            _servers.append(CommandServer())
        server = _servers[-1]
        try:
            return server.fork(wanted) if server.can_fork(wanted) else None
        except OSError:
            server.end()
            return None
        except BaseException:  # a test whose time is over, say
            server.end()  # its answer would be taken for the next one's
            raise
