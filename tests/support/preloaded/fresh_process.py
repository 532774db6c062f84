"""Makes a fork what `python -m MODULE WORDS` is when it begins, and ends it as python ends."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import resource
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Sequence
from io import BufferedReader, BufferedWriter, TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from support.preloaded.request import GO, LIMITS, NAMESPACES, SET_BY_PYTHON, Request, mask

from flowcheck.stages.supervisor.process_title import set_command_line

if TYPE_CHECKING:
    from support.preloaded.begun_again import Kept

FLUSH_FAILED = 120
"""Exit code of python where it could not write all at its end."""
_libc = ctypes.CDLL(None, use_errno=True)


def become(request: Request, descriptors: Sequence[int], wait: int, base: Sequence[str]) -> None:
    """This process is the command's from here on. descriptors: as of Request. wait: where it hears
    that it may begin. base: the path of imports but its first folder."""
    try:
        if os.read(wait, 1) != GO:  # nobody knows of it
            os._exit(127)
        folder, *others = descriptors
        files, spaces = others[: len(request.files)], others[len(request.files) :]
        for name, descriptor in zip(request.namespaces, spaces, strict=True):
            if _libc.setns(descriptor, NAMESPACES[name]) != 0:
                raise OSError(ctypes.get_errno(), f"namespace {name}")
        os.fchdir(folder)
        _inherit(request)
        if request.new_session:
            os.setsid()
        _take_files(dict(zip(request.files, files, strict=True)))
        surround(request.environment)
        set_signals(request.inherited.ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask(request.inherited.blocked))
        open_streams()
        name_program(request.words, [str(Path.cwd()), *base])
    except BaseException:
        traceback.print_exc()
        os._exit(127)


def _inherit(request: Request) -> None:
    told = request.inherited
    os.umask(told.umask)
    os.sched_setaffinity(0, told.processors)
    if os.getpriority(os.PRIO_PROCESS, 0) != told.niceness:
        os.setpriority(os.PRIO_PROCESS, 0, told.niceness)
    for limit, values in zip(LIMITS, told.limits, strict=True):
        if resource.getrlimit(limit) != values:
            resource.setrlimit(limit, values)


def _take_files(files: dict[int, int]) -> None:
    """Gives these files the numbers they are to have, and closes all others."""
    above = max([*files, *files.values()]) + 1
    for number, descriptor in files.items():
        os.dup2(descriptor, above + number, inheritable=False)
    for number in files:
        os.dup2(above + number, number)
    kept = sorted(files)
    for before, number in zip([-1, *kept], [*kept, 1 << 20], strict=True):
        if before + 1 < number:
            os.closerange(before + 1, number)


def surround(environment: Any) -> None:
    """The environment, and what was read of it when python began."""
    for name in list(os.environb):
        if name not in environment:
            del os.environb[name]
    os.environb.update(environment)
    time.tzset()
    tempfile.tempdir = None
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # `random` itself is seeded where it is forked


def set_signals(ignored: int) -> None:
    """All that python handles as it begins."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        left = number in SET_BY_PYTHON or ignored >> (number - 1) & 1
        signal.signal(number, signal.SIG_IGN if left else signal.SIG_DFL)
    if not ignored >> (signal.SIGINT - 1) & 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_streams() -> None:
    """sys.stdin, sys.stdout and sys.stderr as python opens them (pylifecycle.c, create_stdio)."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, name)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(number: int, name: str) -> IO[str] | None:
    try:
        os.fstat(number)
    except OSError:
        return None
    before, writes = getattr(sys, f"__{name}__"), number > 0
    unbuffered = writes and before.write_through  # python -u
    raw = open(number, "wb" if writes else "rb", buffering=0, closefd=False)  # noqa: SIM115
    raw.name = f"<{name}>"
    buffer: Any = raw if unbuffered else (BufferedWriter if writes else BufferedReader)(raw)
    stream = TextIOWrapper(
        buffer,
        encoding=before.encoding,
        errors=before.errors,
        newline="\n",
        line_buffering=not unbuffered and (number == 2 or raw.isatty()),
        write_through=before.write_through,
    )
    stream.mode = "w" if writes else "r"  # type: ignore[misc]
    return stream


def name_program(words: Sequence[str], path: Sequence[str]) -> None:
    """words: behind `python`; path: of imports."""
    sys.orig_argv[:] = [sys.executable, *words]
    sys.path[:] = path
    importlib.invalidate_caches()
    set_command_line(sys.orig_argv)


def run_program(words: Sequence[str], kept: Kept) -> NoReturn:
    """Runs `python WORDS`, which are some options, `-m`, a module and the words for it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]  # no command knows of it
    at = words.index("-m")
    sys.argv[:] = ["-m", *words[at + 2 :]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.execve = kept.execute  # type: ignore[assignment]
    code = 0
    try:
        runpy._run_module_as_main(words[at + 1])  # type: ignore[attr-defined]
    except SystemExit as ended:
        code = _code(ended.code)
    except BaseException as error:
        trace = error.__traceback__
        error.__traceback__ = trace.tb_next if trace is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    end(code)


def _code(said: object) -> int:
    """As sys.exit takes it (pythonrun.c, _Py_HandleSystemExit)."""
    if said is None:
        return 0
    if isinstance(said, int):
        return said & 0xFF
    sys.stdout.flush()
    print(said, file=sys.stderr)
    return 1


def end(code: int) -> NoReturn:
    """What python does at its end but for taking away what it loaded. code: negative, a signal that
    the process ends by."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except OSError as error:
        told = f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}"
        print(told, file=sys.stderr)
        code = FLUSH_FAILED
    try:
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.flush()
    except OSError:
        code = FLUSH_FAILED
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
