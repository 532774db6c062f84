"""One stage process as the supervisor sees it: started, restarted, deaths counted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog.chain_processes import (
    EXITED,
    KILLED,
    LOG_EMPTY,
    LOG_EMPTY_DISK_FULL,
    LOG_ENDS,
    OPTIONAL_STAGE_RESTARTED,
    OPTIONAL_STAGE_WAITS,
    STAGE_KEEPS_DYING,
    STAGE_NOT_UP,
    STAGE_RESTARTED,
    STAGE_STOOD_STILL,
)
from flowcheck.findings.finding import Finding
from flowcheck.private_files import open_private
from flowcheck.stages.privilege.capture_starter import SINGLE_BLAS_THREAD
from flowcheck.stages.privilege.capture_starter_client import ProcessHandle, capture_starter
from flowcheck.stages.run_directory.disk_full import is_full
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import StageSpec, WaitsFor, stage_named
from flowcheck.stages.supervisor.checkpoint_helper import CheckpointHelper
from flowcheck.stages.supervisor.process_progress import ProgressTimeout
from flowcheck.stages.supervisor.stage_starter_client import stage_starter

FRUITLESS_MAX, FRUITLESS_WITHIN_S = 8, 60.0
"""Deaths within so many seconds without a moved position, after which a stage is not started again.
A choice: more delays the report of a fault that stays, fewer gives up at a passing one."""
STILL_LIMIT_S = 60.0
"""Seconds that a stage which comes up may stand still: loading torch takes seconds of processor
time, on a machine that gives it a tenth of one many of the clock. A choice: longer delays the
error."""
HELLO_LIMIT_S = 1800.0
"""Seconds. Longest start of a stage that moves all the time. A choice: longer waits for one that
moves in circles, shorter fails for a large replica on a slow machine."""
RESTART_WAIT_MAX_S = 60.0
"""Seconds. Longest wait before an optional stage is started again; one that lived longer begins at
once. A choice: longer leaves a mended fault unnoticed, shorter costs starts in vain."""


@dataclass
class StageProcess:
    """One stage's process."""

    stage: str
    """Its name, of which its row in the table of stages and its number follow."""
    process: ProcessHandle | None = None
    greeted: bool = False
    """Whether this process has said Hello."""
    patience: ProgressTimeout | None = None
    """With its start."""
    started_s: float = 0.0
    reached: int = 0
    """Where its position was when it last died."""
    fruitless_s: deque[float] = field(default_factory=lambda: deque(maxlen=FRUITLESS_MAX))
    """Deaths since it last moved."""
    deaths: int = 0
    """In a row, of an optional stage."""
    rests_until_s: float = 0.0
    serves_checkpoints: bool = False
    """Whether its process writes checkpoints once the stage has ended (checkpoint_helper.py)."""
    checkpoint_helper: CheckpointHelper | None = None
    spec: StageSpec = field(init=False)
    number: int = field(init=False)
    """Of the source, or the ring."""

    def __post_init__(self) -> None:
        self.spec, self.number = stage_named(self.stage)

    @property
    def is_up(self) -> bool:
        """Whether it works, as far as it is to say so."""
        return self.greeted if self.spec.says_hello else self.process is not None

    def may_start(self, everyone: Sequence[StageProcess]) -> bool:
        """everyone: all processes of the chain, those of further jobs among them."""
        if self.spec.uses_torch and (ahead := stage_starter()) is not None and ahead.is_loading():
            return False  # it loads what this stage would load as well
        match self.spec.waits_for:
            case WaitsFor.NOTHING:
                return True
            case WaitsFor.FRAME_TAKERS:
                return all(child.is_up for child in everyone if child.spec.takes_frames)
            case WaitsFor.WHOLE_CHAIN:
                # Without those that wait as this one does: each would wait for the other.
                last = WaitsFor.WHOLE_CHAIN
                return all_up(child for child in everyone if child.spec.waits_for is not last)

    def spawn(self, run: RunDir) -> None:
        """Starts it, in a session of its own: Ctrl-C is for the supervisor to pass on."""
        if self.checkpoint_helper is not None:
            self.checkpoint_helper.close()  # of one that died
        with ExitStack() as files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            log = files.enter_context(os.fdopen(open_private(run.log(self.stage), flags), "ab"))
            if (starter := capture_starter(self.spec.name)) is not None:
                self._started(run, starter.start(self.number, log.fileno()))
                return
            words = [*self.spec.command(self.number), "--run", str(run.root)]
            words += ["--parent", str(os.getpid())]
            own: socket.socket | None = None
            passed: tuple[int, ...] = ()
            if self.serves_checkpoints:
                own, other = socket.socketpair()
                passed = (files.enter_context(other).fileno(),)
            process = self._forked(words, log.fileno(), *passed) or _executed(words, log, passed)
        if own is not None:
            self.checkpoint_helper = CheckpointHelper(process, own)
        self._started(run, process)

    def _forked(self, words: Sequence[str], *descriptors: int) -> ProcessHandle | None:
        """From a process that has loaded what the stage needs; None: there is none."""
        ahead = stage_starter() if self.spec.uses_torch else None
        return ahead.start(words, *descriptors) if ahead is not None else None

    def _started(self, run: RunDir, process: ProcessHandle) -> None:
        self.process = process
        self.greeted, self.started_s = False, time.monotonic()
        pid = process.pid
        self.patience = ProgressTimeout(pid, still_s=STILL_LIMIT_S, limit_s=HELLO_LIMIT_S)
        run.note_pid(self.stage, pid)

    def ask_to_leave(self) -> bool:
        """Whether there is a process that can be asked."""
        if self.process is not None:
            self.process.terminate()
        return self.process is not None

    def has_left(self) -> bool:
        """Whether its stage has ended, be it that the process lives on."""
        assert self.process is not None
        helping = self.checkpoint_helper is not None and self.checkpoint_helper.is_ready
        return helping or self.process.poll() is not None

    def end(self, run: RunDir) -> None:
        """At once, except a process that writes checkpoints now: it is no longer a stage."""
        assert self.process is not None
        if (
            self.process.poll() is None
            and self.checkpoint_helper is not None
            and self.checkpoint_helper.is_ready
        ):
            (run.pids / self.stage).unlink(missing_ok=True)
            return
        self.process.kill()
        self.process.wait()
        if self.checkpoint_helper is not None:
            self.checkpoint_helper.close()
            self.checkpoint_helper = None

    def check_start(self, run: RunDir) -> None:
        """Raises StateError where it runs and does not come up in time."""
        if self.is_up or self.patience is None or not self.patience.is_over():
            return
        waited_s = round(time.monotonic() - self.started_s)
        named = {"stage": self.stage, "seconds": waited_s, "log": self.last_log_line(run)}
        if waited_s >= HELLO_LIMIT_S:
            raise StateError(STAGE_NOT_UP(**named))
        raise StateError(STAGE_STOOD_STILL(**named, still_s=round(STILL_LIMIT_S)))

    def note_death(self, run: RunDir, code: int, reached: int) -> Finding:
        """How it ended; reached: slots, or steps, it has finished so far.

        Raises StateError when it keeps dying without progress: it would for ever.
        """
        now, ended = time.monotonic(), _ended(code)
        if reached != self.reached:
            self.reached = reached
            self.fruitless_s.clear()
        full = len(self.fruitless_s) == FRUITLESS_MAX
        if full and now - self.fruitless_s[0] < FRUITLESS_WITHIN_S:
            raise StateError(
                STAGE_KEEPS_DYING(
                    stage=self.stage,
                    deaths=FRUITLESS_MAX + 1,
                    seconds=round(FRUITLESS_WITHIN_S),
                    ended=ended,
                    log=self.last_log_line(run),
                )
            )
        self.fruitless_s.append(now)
        return STAGE_RESTARTED(stage=self.stage, ended=ended)

    def restart_if_dead(self, run: RunDir) -> Finding | None:
        """Of an optional stage: starts it again once it has died, later each time. How it ended,
        when it has; else None."""
        assert self.process is not None
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            return None
        if self.rests_until_s:
            if now >= self.rests_until_s:
                self.rests_until_s = 0.0
                self.spawn(run)
            return None
        self.deaths = 1 if now - self.started_s > RESTART_WAIT_MAX_S else self.deaths + 1
        rest_s = 0.0 if self.deaths == 1 else min(RESTART_WAIT_MAX_S, 2.0 ** (self.deaths - 1))
        self.rests_until_s = now + rest_s
        named = {"stage": self.stage, "ended": _ended(code), "log": self.last_log_line(run)}
        if not rest_s:
            return OPTIONAL_STAGE_RESTARTED(**named)
        return OPTIONAL_STAGE_WAITS(**named, seconds=round(rest_s))

    def last_log_line(self, run: RunDir) -> Finding:
        """What the last lines of its log say."""
        log = run.log(self.stage)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        if said := last_said(lines):
            return LOG_ENDS(log=log, line=said)
        return (
            LOG_EMPTY_DISK_FULL(log=log, folder=run.root) if is_full(run.root) else LOG_EMPTY(log)
        )


def _executed(
    words: Sequence[str], log: BinaryIO, passed: Sequence[int]
) -> subprocess.Popen[bytes]:
    """passed: the socket for checkpoint requests, where the stage serves them."""
    option = ["--checkpoint-socket", str(passed[0])] if passed else []
    return subprocess.Popen(
        [sys.executable, "-m", "flowcheck", *words, *option],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=SINGLE_BLAS_THREAD | os.environ,
        start_new_session=True,
        pass_fds=passed,
    )


def last_said(lines: Sequence[str]) -> str:
    """What a log says last, without what stands below it: cause and remedy of an error, or of a
    note, are lines of their own that begin with spaces, as the places of a traceback do. Of a line
    in JSON (`[log] format`) its message. "": it holds nothing."""
    held = [line for line in lines if line.strip()]
    told = next((line for line in reversed(held) if not line[0].isspace()), "")
    line = (told or (held[-1] if held else "")).strip()
    if line.startswith("{"):
        with suppress(*DECODE_ERRORS):
            return msgspec.json.decode(line, type=_JsonLine).message
    return line


class _JsonLine(msgspec.Struct):
    """A line of a log in JSON; it has more keys."""

    message: str


def _ended(code: int) -> Finding:
    return KILLED(-code) if code < 0 else EXITED(code)


def all_up(processes: Iterable[StageProcess]) -> bool:
    """All that the chain needs."""
    return all(child.is_up for child in processes if not child.spec.optional)
