"""The process that starts captures, which is all that it does: python -m ... FD RUN SUPERVISOR.

It has the chain's user and the capabilities of its captures, which the supervisor and every other
stage lack. What a capture reads comes from whoever started the chain, not from files that the
chain's user writes. It ends with its supervisor, whose children the captures become.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence

from flowcheck.stages.stage_table import Position, stage_at

STAGE = stage_at(Position.HEAD).name
"""The one stage that is started with these rights: the one that captures frames. This room checks
that by itself: whatever else the table of stages says, nothing else is started here."""
CHANNEL = "FLOWCHECK_STARTER"
"""In the supervisor's environment: the descriptor of its end."""
SOURCES = "FLOWCHECK_SOURCES"
"""In a capture's environment: JSON of [[source]], as the job file had it."""
PYTHON_COMMAND = (sys.executable, "-P", "-s", "-m", "flowcheck")
"""Without the folder that it runs in and without the user's own packages: both may be written by
the chain's user."""
LOOK_S = 1.0
"""Seconds between two looks whether the supervisor is still there. A choice: longer leaves the
starter behind for longer."""
SINGLE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A stage's sums in numpy are of thousands of values: shared with threads, each waits for the one
a busy machine lets run last, 45 ms where one thread takes 0.2. An operator's own value holds."""


def stated_sources(stage: str) -> str | None:
    """Of a process with these rights: SOURCES, which hold in place of what the run directory says;
    None of any other stage."""
    return os.environ.get(SOURCES) if stage == STAGE else None


def serve(channel: socket.socket, run: str, supervisor: int) -> None:
    """Until the supervisor is gone. A request is the source's number, with a descriptor of the log;
    the answer a pid, or 0 where there is no such source."""
    import msgspec

    sources = len(msgspec.json.decode(os.environ[SOURCES]))
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
    """Starts it by a process between, which is gone before the capture begins."""
    told, tell = os.pipe()
    wait, hold = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            _become(command, log, wait, (told, tell, hold, channel.fileno()))
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    pid = int(os.read(told, 32) or b"0")
    for descriptor in (told, wait, hold):
        os.close(descriptor)
    return pid


def _become(command: Sequence[str], log: int, wait: int, others: Sequence[int]) -> None:
    """Of a session of its own: Ctrl-C is for the supervisor to pass on."""
    try:
        for descriptor in others:
            os.close(descriptor)
        os.read(wait, 1)  # ends once nobody holds the other end: the process between is gone
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.execve(command[0], list(command), SINGLE_BLAS_THREAD | os.environ)
    finally:
        os._exit(127)


def main() -> None:
    descriptor, run, supervisor = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as channel:
        os.set_inheritable(channel.fileno(), False)
        serve(channel, run, int(supervisor))


if __name__ == "__main__":
    main()
