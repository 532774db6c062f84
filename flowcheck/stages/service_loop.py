"""What a stage is (Service), its signals, and the one loop that runs every stage."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Protocol

from flowcheck._core import lib
from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.chain_processes import BROKE
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.messages import Fault, Hello, Message, Stop
from flowcheck.stages.file_error import file_error_finding, tells_of_file
from flowcheck.stages.run_directory.process_liveness import die_with_parent
from flowcheck.stages.zmq_sockets import StageSockets

IDLE_MAX_MS = 20
"""Milliseconds. Longest wait of an idle stage: what a lost nudge costs. A choice: shorter costs
idle processor time."""
MESSAGES_PER_TURN = 64
"""Messages taken in one turn. A choice: more delays the stage's own work, fewer let a full inbox
wait."""
ORPHAN_S = 10
"""Seconds in which a stage whose supervisor is gone ends its turn, or is killed: what it leaves
behind is all in files and shared memory anyway. A choice: longer leaves it beside a new chain."""


class Service(Protocol):
    """One stage. `work` does a bounded amount, well under a second, and says how much."""

    name: str

    def start(self, links: StageSockets) -> None:
        """Opens what the stage works on. Operator errors are FlowCheckError."""

    def work(self) -> int:
        """Slots, messages or bytes done; 0 is idle."""

    def on_message(self, message: Message) -> None:
        """One message; nudges need no answer, the next `work` looks anyway."""

    def drained(self) -> bool:
        """Nothing is left to do and nothing more can come."""

    def stop(self) -> None:
        """Closes everything; called once, also after a failed start."""


class IdleBackoff:
    """Milliseconds to wait for a message: 0 when busy, then doubling."""

    def __init__(self, max_ms: int = IDLE_MAX_MS) -> None:
        self.max_ms, self._ms = max_ms, 0

    def next_ms(self, done: int) -> int:
        self._ms = 0 if done else min(max(1, self._ms * 2), self.max_ms)
        return self._ms


class Signals:
    """SIGTERM, SIGINT and SIGHUP as a flag; `hard` after the second one. May be entered again.

    A terminal that goes away ends a chain like Ctrl-C, unless nohup has said otherwise.
    """

    def __init__(self, parent: int | None = None) -> None:
        """parent: the process this one is to end with."""
        self._parent = parent
        self.received = 0
        self.hard = False
        self._before: list[dict[int, Any]] = []

    def __enter__(self) -> Signals:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before.append({n: signal.signal(n, self._note) for n in numbers})
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.pop().items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.hard = bool(self.received)
        self.received = number
        if self._parent is not None and os.getppid() != self._parent:
            signal.setitimer(signal.ITIMER_REAL, ORPHAN_S)  # SIGALRM ends it


def run_service(service: Service, links: StageSockets, *, parent: int | None = None) -> int:
    """A stage's whole life. The exit code: 0, or 2 for what the operator can mend."""
    try:
        run_until_stopped(service, links, parent=parent)
    except FlowCheckError:
        return 2
    return 0


def run_until_stopped(
    service: Service,
    links: StageSockets,
    *,
    parent: int | None = None,
    until_drained: bool = False,
    signals: Signals | None = None,
) -> None:
    """Runs `service` until Stop, a signal, or the end of its parent. The only loop there is.

    parent: pid to end with; until_drained: leave as soon as the service says so. Whatever the
    service raises is reported as its Fault before it is raised again.
    """
    with signals or Signals(parent) as heard:
        try:
            if parent is not None and not die_with_parent(parent):
                return
            service.start(links)
            links.report(
                Hello(stage=service.name, pid=os.getpid(), layout_version=lib.FC_LAYOUT_VERSION)
            )
            _loop(service, links, heard, partial(_parent_lives, parent), draining=until_drained)
        except FlowCheckError as error:
            links.report(Fault(stage=service.name, finding=error.finding))
            raise
        except Exception as error:
            links.report(Fault(stage=service.name, finding=_broken(error)))
            raise
        finally:
            try:
                service.stop()
            finally:
                links.close()


def _broken(error: Exception) -> Finding:
    if isinstance(error, OSError) and tells_of_file(error):
        return file_error_finding(error)
    return BROKE(kind=type(error).__name__, text=plain_error_text(error))


def _parent_lives(parent: int | None) -> bool:
    return parent is None or os.getppid() == parent


def _loop(
    service: Service,
    links: StageSockets,
    signals: Signals,
    parent_lives: Callable[[], bool],
    *,
    draining: bool,
) -> None:
    idle = IdleBackoff()
    while not signals.received and parent_lives():
        done = service.work()
        links.flush()
        if draining and not done and service.drained():
            return
        for message in links.inbox.drain(limit=MESSAGES_PER_TURN, wait_ms=idle.next_ms(done)):
            if isinstance(message, Stop):
                if not message.drain:
                    return
                draining = True
            else:
                service.on_message(message)
