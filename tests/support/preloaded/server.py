"""The process that commands are forked from: it has loaded what they are made of.

It has one thread, opens nothing and runs nothing of FlowCheck's, so that a command finds what it
would have loaded itself. It ends with the process that asks it for commands.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import NoReturn

from support.preloaded.asked import note_loaded
from support.preloaded.begun_again import Kept
from support.preloaded.fresh_process import become, run_program
from support.preloaded.request import GO, REQUEST_BYTES, Request

LEFT_OUT = ("flowcheck.hook", "flowcheck.lab.roce_backend")
"""They are for trainers, and change torch.distributed where they are imported."""
BY_COMMANDS = (
    "pydantic", "rich._emoji_codes", "rich.markdown", "rich.traceback", "typer._adapters",
    "typer.rich_utils", "zoneinfo",
)  # fmt: skip
"""What libraries import once a command line is read or told, where they are there."""
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def load() -> None:
    """What commands and stages import, and no thread of it."""
    gc.disable()  # what is loaded stays
    single = BLAS_THREADS not in os.environ
    os.environ.setdefault(BLAS_THREADS, "1")
    import flowcheck
    from flowcheck.stages import stage_table

    for found in walk_packages(flowcheck.__path__, "flowcheck."):
        if not found.name.endswith("__main__") and not found.name.startswith(LEFT_OUT):
            import_module(found.name)
    for name in BY_COMMANDS:
        with suppress(ImportError):
            import_module(name)
    if single:
        del os.environ[BLAS_THREADS]
    for stage in stage_table.STAGES:  # all are forked from what has loaded, as those with torch
        object.__setattr__(stage, "uses_torch", True)
    if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
        raise AssertionError("something that was loaded runs a thread")
    gc.freeze()
    gc.enable()


def serve(channel: socket.socket, asker: int, package: Path) -> NoReturn:
    """Forks what it is asked for until the asker is gone. package: the folder `flowcheck`."""
    from flowcheck.stages.supervisor.process_title import free_environment

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    asker_lives = os.pidfd_open(asker)
    base, sys.path[0] = sys.path[1:], str(package.parent)
    load()
    note_loaded()
    free_environment()
    kept = Kept.now(base)
    while os.getppid() == asker:
        ready, _, _ = select.select([channel.fileno(), asker_lives], [], [])
        if asker_lives in ready:
            break
        told, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 64)
        if not told:
            break
        request: Request = pickle.loads(told)
        wait = _forked(channel)
        if wait is not None:
            become(request, descriptors, wait, base)
            run_program(request.words, kept)
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def _forked(channel: socket.socket) -> int | None:
    """In the new process: the descriptor at which it hears that it may begin. A process between
    makes it, and ends, so that the asker adopts it."""
    told, tell = os.pipe()
    wait, hold = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(hold)
            return wait
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(tell)
    os.close(wait)
    os.waitpid(between, 0)
    with suppress(OSError):
        channel.send(os.read(told, 32) or b"0")
        if channel.recv(len(GO)) == GO:
            os.write(hold, GO)
    os.close(told)
    os.close(hold)
    return None


def main() -> None:
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]))
