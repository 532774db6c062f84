"""`flowcheck up` on the lab's checkpoint node, started as an operator does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.lab_runs import SERVICES_ENDED, SERVICES_NOT_UP
from flowcheck.findings.named_run import set_named_run
from flowcheck.ops.watch.state.chain_state import ChainState
from flowcheck.ops.watch.state.state_reader import StateReader
from flowcheck.stages.chain_events.event_log import EventKind
from flowcheck.stages.run_directory.run_dir import RunDir
from flowcheck.stages.stage_table import stage_named

START_LIMIT_S = 300.0
"""Seconds for the processes to start. At load 15 on two CPUs they took 65 s."""
STOP_LIMIT_S = 30.0
"""Seconds for the supervisor to end after SIGTERM; its stages end within 5 s (supervisor.py,
GRACE_S). A choice: a longer limit delays the error."""
LOOK_S = 0.1
"""Seconds between two readings of the chain's state. A choice: a shorter time costs CPU time, a
longer one reacts later."""
AUTOGROUP_NICE = -10
"""Nice value of the session (sched(7), autogroup); by default sessions share the CPUs equally. In
a real cluster the checkpoint node is another machine, which trainers do not slow down. Half of the
range is a choice."""


class FlowCheckServices:
    """One `flowcheck up` in a process of its own."""

    def __init__(self, job: Path, run: Path, log: Path, *, enter: Sequence[str]) -> None:
        """Starts it. enter: command prefix that runs what follows on the checkpoint node."""
        self.run, self.log = RunDir(run), log
        self._reader = StateReader(run, LOOK_S)
        set_named_run(run)
        command = [*enter, sys.executable, "-m", "flowcheck", "up", str(job), "--run", str(run)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_listening(self) -> None:
        """Waits until all capture processes are up. Raises FlowCheckError if they are not after
        START_LIMIT_S, or end."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._captures():
            self.check()
            if time.monotonic() > deadline_s:
                said = self.output().strip() or "they printed nothing"
                limit_s = round(START_LIMIT_S)
                what = SERVICES_NOT_UP(limit_s=limit_s, log=self.log, said=said)
                raise FlowCheckError(what)
            Event().wait(LOOK_S)
        for pid in self.run.stage_pids().values():
            with suppress(OSError):  # a kernel without autogroups
                Path(f"/proc/{pid}/autogroup").write_text(str(AUTOGROUP_NICE))

    def _captures(self) -> bool:
        """Every capture process has said that it is up: training may start."""
        state = self._reader.state()
        captures = {one.name for one in state.stages if stage_named(one.name).spec.brings_frames}
        up = {event.stage for event in state.events if event.kind is EventKind.UP}
        return bool(captures) and captures <= up

    @property
    def pid(self) -> int:
        """Pid of the supervisor."""
        return self._process.pid

    def output(self) -> str:
        """Everything that the process printed."""
        return self.log.read_text(errors="replace")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raises FlowCheckError if the process has ended, since the job is not followed any
        more."""
        code = self._process.poll()
        if code is not None:
            said = "\n".join(self.output().strip().splitlines()[-5:]) or "they printed nothing"
            raise FlowCheckError(SERVICES_ENDED(code=code, log=self.log, said=said))

    def chain_state(self) -> ChainState | None:
        """The chain's state; None: it cannot be read yet."""
        told = self._reader.state()
        return told if told.jobs and told.rings else None

    def stop(self) -> None:
        """Ends the chain with SIGTERM; kills it after STOP_LIMIT_S."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
