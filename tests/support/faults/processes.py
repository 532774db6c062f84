"""The command line in processes of its own, that need not load torch again: forked, not begun.

A chain takes five seconds of processor time to load what it is made of. Here it is loaded once; the
command and each of its stages is a fork that does what `python -m flowcheck` would with the same
words. `begun` begins them in earnest.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

import msgspec
from support.faults.inflicted import Plan, afflict, afflict_supervisor

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def load() -> None:
    """What commands and stages import, and no thread of it."""
    import torch

    import flowcheck.cli.main
    import flowcheck.ops.lifecycle.replay_command
    import flowcheck.ops.lifecycle.shutdown_checkpoint
    import flowcheck.replica.checkpoint.checkpoint_save
    import flowcheck.stages.extraction.extract_stage
    import flowcheck.stages.job_learning.reading_process
    import flowcheck.stages.packet_capture.capture_stage
    import flowcheck.stages.packet_capture.parse_stage
    import flowcheck.stages.replica_update.update_stage
    import flowcheck.stages.supervisor.stage_main
    import flowcheck.vault.trainer_checkpoint.flat_arrays_of_checkpoint  # noqa: F401
    from flowcheck.replica.torch_without_compiler import load_torch

    torch.set_num_threads(1)  # a fork of a process with threads of torch's own waits for them
    load_torch(steps=True)


class Forked:
    """What subprocess.Popen gives of `python -m flowcheck ...`, without a new interpreter."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: BinaryIO,
        stderr: BinaryIO,
        env: dict[str, str],
        start_new_session: bool,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            alone(stdout.fileno(), pass_fds, lambda: _main(command[3:]))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = time.monotonic() + (timeout if timeout is not None else 600.0)
        while self.poll() is None:
            if time.monotonic() > until_s:
                raise subprocess.TimeoutExpired("flowcheck", timeout or 600.0)
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(words: Sequence[str]) -> int:
    from flowcheck.__main__ import main

    sys.argv = ["flowcheck", *words]
    main()
    return 0


def alone(out: int, keeps: Sequence[int], main: Callable[[], int], *, err: int = -1) -> NoReturn:
    """The rest of a fork's life: a session of its own, none of its parent's files but `keeps`."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out if err < 0 else err, 2)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - it is gone once it is read
            if int(name) > 2 and int(name) not in keeps:
                with suppress(OSError):
                    os.close(int(name))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115
        code = main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def command(words: Sequence[str], plan: Plan, folder: Path, *, begun: bool) -> int:
    """Forks `flowcheck WORDS`, its words to out.txt and err.txt in `folder`; its pid."""
    with (folder / "out.txt").open("wb") as out, (folder / "err.txt").open("wb") as err:
        pid = os.fork()
        if not pid:
            alone(out.fileno(), (), lambda: _supervise(words, plan, begun), err=err.fileno())
    return pid


def _supervise(words: Sequence[str], plan: Plan, begun: bool) -> int:
    from flowcheck.stages.supervisor import stage_process

    afflict(plan)
    afflict_supervisor(plan)
    popen: Any = Forked
    if begun:
        popen = _begun(plan)
    stage_process.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    return _main(words)


def _begun(plan: Plan) -> Callable[..., subprocess.Popen[bytes]]:
    """Stages as processes begun anew, which are told the plan by their surroundings."""

    def popen(command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        more["env"] = dict(more["env"]) | {
            "FAULT_PLAN": msgspec.json.encode(plan).decode(),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        words = [command[0], "-m", "support.faults.stage", *command[3:]]
        return subprocess.Popen(words, **more)

    return popen


def adopt_orphans() -> None:
    """Descendants whose parents die become this process's children, so that it can end them."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Of this process: those it made, and those it adopted."""
    told = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in told.split()]


def end_children(limit_s: float = 5.0) -> None:
    """Kills every descendant, generation by generation."""
    until_s = time.monotonic() + limit_s
    while (pids := children()) and time.monotonic() < until_s:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
