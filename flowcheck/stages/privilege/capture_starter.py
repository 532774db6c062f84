"""The process that starts captures and does nothing else: python -m ... FD RUN SUPERVISOR.

It runs as the chain's user and has the capabilities for captures, which the supervisor and the
other stages do not have. The sources of a capture come from the command that started the chain, not
from files that the chain's user can write. The process ends with its supervisor; the captures
become the supervisor's children.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence

from flowcheck.stages.privilege.adopted_fork import fork_adopted
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
SINGLE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Environment of a stage: numpy uses one thread. A stage sums thousands of values; with several
threads on a busy machine a sum waits for the slowest, 45 ms where one thread takes 0.2 ms. A value
that the operator has set takes precedence."""


def stated_sources(stage: str) -> str | None:
    """[[source]] as JSON, for the capture stage, which uses it in place of the run directory's
    settings; None for other stages."""
    return os.environ.get(SOURCES_VARIABLE) if stage == STAGE else None


def serve(channel: socket.socket, run: str, supervisor: int) -> None:
    """Answers requests until the supervisor is gone. A request is the number of a source, with a
    descriptor of the log file; the answer is the pid of the capture, or 0 without such a source."""
    import msgspec

    sources = len(msgspec.json.decode(os.environ[SOURCES_VARIABLE]))
    while os.getppid() == supervisor:
        if not select.select([channel], [], [], LOOK_S)[0]:
            continue
        request, descriptors, _, _ = socket.recv_fds(channel, 64, 1)
        if not request:
            return
        number = int(request) if request.isdigit() else sources
        pid = 0
        if number < sources and len(descriptors) == 1:
            words = ["stage", STAGE, "--number", str(number), "--run", run]
            pid = _start(
                [*PYTHON_COMMAND, *words, "--parent", str(supervisor)], descriptors[0], channel
            )
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(pid).encode())


def _start(command: Sequence[str], log: int, channel: socket.socket) -> int:
    """Starts a command as a child of the supervisor. Returns the command's pid, 0 where there can
    be none."""
    pid = fork_adopted(log, (channel.fileno(),))
    if pid == 0:
        try:
            os.execve(command[0], list(command), SINGLE_BLAS_THREAD | os.environ)
        finally:
            os._exit(127)
    return pid or 0


def main() -> None:
    descriptor, run, supervisor = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as channel:
        os.set_inheritable(channel.fileno(), False)
        serve(channel, run, int(supervisor))


if __name__ == "__main__":
    main()
