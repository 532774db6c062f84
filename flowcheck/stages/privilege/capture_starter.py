"""The process that starts captures and does nothing else: python -m ... FD RUN SUPERVISOR.

It runs as the chain's user and has the capabilities for captures, which the supervisor and the
other stages do not have. The sources of a capture come from the command that started the chain, not
from files that the chain's user can write. The process ends with its supervisor; the captures
become the supervisor's children.

Nobody else in the chain could give these capabilities again. So there are two of it: one answers,
the other is its child and waits for its end. Whichever is killed, the one that is left makes
another.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from flowcheck.stages.privilege.adopted_fork import fork_adopted, is_taken
from flowcheck.stages.stage_table import Position, stage_at

STAGE = stage_at(Position.HEAD).name
"""The only stage that is started with these capabilities: the one that captures frames. Nothing
else is started here, whatever the table of stages says."""
STARTER_SOCKET_VARIABLE = "FLOWCHECK_STARTER"
"""Variable in the supervisor's environment: the descriptor of its end of the socket."""
SOURCES_VARIABLE = "FLOWCHECK_SOURCES"
"""Variable in a capture's environment: [[source]] of the job file, as JSON."""
PYTHON_COMMAND = (sys.executable, "-P", "-s", "-m", "flowcheck")
"""Starts FlowCheck without the current folder and without the user's own packages on the import
path, since the chain's user may be able to write to both."""
LOOK_S = 1.0
"""Seconds between two checks whether the supervisor still lives. A choice: longer leaves the
starter behind for longer."""
ANSWER_LIMIT_S = 60.0
"""Seconds for an answer of either side. A start forks twice, which takes long on a machine that
swaps. A choice: longer delays the error."""
SINGLE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a stage: numpy uses one thread. A stage sums thousands of values; with several
threads on a busy machine a sum waits for the slowest, 45 ms where one thread takes 0.2 ms. A value
that the operator has set takes precedence."""


def stated_sources(stage: str) -> str | None:
    """[[source]] as JSON, for the capture stage, which uses it in place of the run directory's
    settings; None for other stages."""
    return os.environ.get(SOURCES_VARIABLE) if stage == STAGE else None


def serve(channel: socket.socket, run: str, supervisor: int) -> None:
    """Answers requests until the supervisor is gone.

    A request is the number of a source, with descriptors of the log file and of a socket for the
    answer: the pid of the capture, or 0 where there can be none, and that of this process. The
    capture begins once the supervisor says so there. A process that is killed amid a request closes
    that socket: the supervisor asks again.
    """
    import msgspec

    sources = len(msgspec.json.decode(os.environ[SOURCES_VARIABLE]))
    spare: _Spare | None = None
    while os.getppid() == supervisor:
        if spare is None or spare.has_ended():
            spare = _Spare.fork()
        ends: list[socket.socket | _Spare] = [channel] if spare is None else [channel, spare]
        if channel not in select.select(ends, [], [], LOOK_S)[0]:
            continue
        request, descriptors, _, _ = socket.recv_fds(channel, 64, 2)
        if not request:
            break
        log, its = descriptors
        with socket.socket(fileno=its) as answer:
            words = ["stage", STAGE, "--number", request.decode(), "--run", run]
            command = [*PYTHON_COMMAND, *words, "--parent", str(supervisor)]
            known = request.isdigit() and int(request) < sources
            if not known or not _start(command, log, (channel.fileno(), its), answer):
                with suppress(OSError):
                    answer.send(b"0")
        os.close(log)
    if spare is not None:
        spare.end()


class _Spare:
    """The process beside the one that answers, as that one sees it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._watched = pid, os.pidfd_open(pid)

    @classmethod
    def fork(cls) -> _Spare | None:
        """None: this is the spare, and the one that answered is gone; or there can be none now."""
        answers = os.pidfd_open(os.getpid())
        try:
            if pid := os.fork():
                return cls(pid)
            os.setsid()
            select.select([answers], [], [])
        except OSError:
            pass  # of fork: tried again at the next look
        finally:
            os.close(answers)
        return None

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._watched

    def has_ended(self) -> bool:
        if not select.select([self._watched], [], [], 0)[0]:
            return False
        os.waitpid(self._pid, 0)
        os.close(self._watched)
        return True

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


def _start(command: Sequence[str], log: int, held: Sequence[int], answer: socket.socket) -> bool:
    """Starts a command as a child of the supervisor, where that one takes it."""
    pid = fork_adopted(log, held, partial(is_taken, answer, ANSWER_LIMIT_S))
    if pid == 0:
        try:
            os.execve(command[0], list(command), SINGLE_BLAS_THREAD | os.environ)
        finally:
            os._exit(127)
    return pid is not None


def main() -> None:
    descriptor, run, supervisor = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as channel:
        os.set_inheritable(channel.fileno(), False)
        serve(channel, run, int(supervisor))


if __name__ == "__main__":
    main()
