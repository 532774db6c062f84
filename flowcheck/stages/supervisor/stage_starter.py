"""The process that stages are forked from that make values with torch.

Loading torch takes seconds, each time a stage is started, and hundreds of megabytes in each of
them. This process loads it while the command that starts a chain still reads its job file, and the
stages share its pages. Nothing is done in it but loading: it has one thread, opens nothing, and no
operation of torch's runs, so that a stage finds what it would have loaded itself. A stage runs the
words that another one is executed with, and ends as any other program.

It ends with its supervisor. What it cannot do the supervisor does without it, by executing the
stage.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import msgspec

from flowcheck.stages.privilege.adopted_fork import fork_adopted, is_taken
from flowcheck.stages.privilege.capture_starter import SINGLE_BLAS_THREAD, STARTER_SOCKET_VARIABLE
from flowcheck.stages.privilege.drop_privileges import is_program
from flowcheck.stages.privilege.privilege_syscalls import rights_of
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.stages.supervisor.process_title import free_environment, set_command_line
from flowcheck.stages.supervisor.stage_starter_client import (
    ANSWER_LIMIT_S,
    LOADED,
    REQUEST_BYTES,
    StageStarter,
    StartRequest,
    keep_starter,
)

VERBS = ("up", "replay")
"""Commands that run a chain."""
LOADED_MODULES = (
    "flowcheck.stages.replica_update.update_stage",
    "flowcheck.stages.supervisor.stage_main",
    "flowcheck.stages.privilege.drop_privileges",
)
"""What every stage that makes values with torch loads, or the updater, which every chain has."""
LOOK_S = 1.0
"""Seconds between two checks whether the supervisor still lives. A choice: longer leaves this
process behind for longer where the kernel does not end it."""


def start_ahead(words: Sequence[str], program: Callable[[], None]) -> None:
    """Called once, before a command line does anything: starts the process where these words run a
    chain as this very process. In a stage it does not return: the stage has ended then.

    program: runs the words of sys.argv as `python -m flowcheck` does.

    There is none where the words only ask for help, where privileges are still to be dropped (the
    command is then executed again as another user, and this is called again), where this process is
    another program's, or where something runs in it that a fork would cut short.
    """
    if words[:1] not in [[verb] for verb in VERBS] or "--help" in words:
        return
    if not is_program() or rights_of().above_ordinary or not _has_one_thread():
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        its.close()
        keep_starter(StageStarter(pid, mine))
        return
    try:
        mine.close()
        stage = _serve(its, parent)
    except BaseException:
        os._exit(1)
    if stage is None:
        os._exit(0)
    _become(stage)
    program()
    sys.exit()


def _has_one_thread() -> bool:
    with suppress(OSError):
        return len(list(Path("/proc/self/task").iterdir())) == 1
    return threading.active_count() == 1


def _serve(channel: socket.socket, parent: int) -> list[str] | None:
    """Loads, and answers requests until the supervisor is gone: None. In a stage that it was asked
    for: the stage's words."""
    _let_go(channel)
    if not die_with_parent(parent):
        return None
    os.environ.update(SINGLE_BLAS_THREAD | os.environ)  # numpy reads it as it is loaded
    gc.disable()  # what is loaded stays
    for module in LOADED_MODULES:
        import_module(module)
    gc.freeze()
    gc.enable()
    if not _has_one_thread():
        return None
    channel.send(LOADED)
    while os.getppid() == parent:
        if not select.select([channel], [], [], LOOK_S)[0]:
            continue
        request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not request:
            return None
        wanted = msgspec.json.decode(request, type=StartRequest)
        log, *passed = descriptors
        pid = fork_adopted(log, (channel.fileno(),), partial(is_taken, channel, ANSWER_LIMIT_S))
        if pid == 0:
            channel.detach()
            option = ["--checkpoint-socket", str(passed[0])] if passed else []
            return [*wanted.words, *option]
        for descriptor in descriptors:
            os.close(descriptor)
        if pid is None:
            return None
    return None


def _let_go(channel: socket.socket) -> None:
    """Of everything of the command's that a stage is not to have."""
    os.setsid()
    os.environ.pop(STARTER_SOCKET_VARIABLE, None)
    free_environment()
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    kept = channel.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _become(words: list[str]) -> None:
    """This process is the stage's from here on, and leaves as the end of a program does."""
    sys.argv = [sys.argv[0], *words]
    sys.orig_argv = [sys.executable, "-m", "flowcheck", *words]
    set_command_line(sys.orig_argv)
