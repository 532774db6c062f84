"""The one loop: busy stages do not wait, idle ones wait longer, every end closes the stage."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, cast

import pytest
from support.chain import wait_until

from flowcheck.errors import StateError
from flowcheck.findings.catalog.chain_processes import BROKE
from flowcheck.messages import Fault, Hello, Message, SpanReady, Stop
from flowcheck.stages.run_directory.process_liveness import process_identity
from flowcheck.stages.service_loop import (
    IDLE_MAX_MS,
    IdleBackoff,
    Signals,
    run_service,
    run_until_stopped,
)
from flowcheck.stages.zmq_sockets import StageSockets


class FakeInbox:
    """Hands out one prepared batch per drain; the last one for ever."""

    def __init__(self, batches: Iterable[list[Message]]) -> None:
        self.batches = list(batches)
        self.waits_ms: list[int] = []

    def drain(self, *, limit: int, wait_ms: int) -> list[Message]:
        assert limit > 0
        self.waits_ms.append(wait_ms)
        return self.batches.pop(0) if len(self.batches) > 1 else self.batches[0]


class FakeLinks:
    def __init__(self, *batches: list[Message]) -> None:
        self.inbox = FakeInbox(batches or [[Stop(reason="test")]])
        self.reported: list[Message] = []
        self.closed = 0

    def report(self, message: Message) -> None:
        self.reported.append(message)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


class FakeService:
    name = "fake"

    def __init__(self, work: Iterable[int] = ()) -> None:
        self.amounts = list(work)
        self.received: list[Message] = []
        self.stopped = 0
        self.empty = False

    def start(self, links: StageSockets) -> None:
        pass

    def work(self) -> int:
        return self.amounts.pop(0) if self.amounts else 0

    def on_message(self, message: Message) -> None:
        self.received.append(message)

    def drained(self) -> bool:
        return self.empty

    def stop(self) -> None:
        self.stopped += 1


def lives(service: FakeService, links: FakeLinks, **how: Any) -> int:
    return run_service(service, cast(StageSockets, links), **how)


NOTHING: list[Message] = []
LEAVE: list[Message] = [Stop(reason="test")]
NUDGE = SpanReady(ring=0, parsed=1)


def test_idle_waits_double_up_to_their_limit_and_start_over_after_work() -> None:
    idle = IdleBackoff(10)
    assert [idle.next_ms(done) for done in (0, 0, 0, 0, 0, 0, 7, 0)] == [1, 2, 4, 8, 10, 10, 0, 1]


def test_a_busy_stage_never_waits_for_messages() -> None:
    links = FakeLinks(NOTHING, NOTHING, NOTHING, LEAVE)
    assert lives(FakeService([5, 5, 5, 5]), links) == 0
    assert links.inbox.waits_ms == [0, 0, 0, 0]


def test_no_wait_of_an_idle_stage_is_longer_than_the_limit() -> None:
    links = FakeLinks(*[NOTHING] * 30, LEAVE)
    lives(FakeService(), links)
    assert max(links.inbox.waits_ms) == IDLE_MAX_MS


def test_a_stage_says_hello_after_its_start_and_closes_once() -> None:
    service, links = FakeService(), FakeLinks()
    assert lives(service, links) == 0
    hello = links.reported[0]
    assert isinstance(hello, Hello)
    assert (hello.stage, hello.pid) == ("fake", os.getpid())
    assert (service.stopped, links.closed) == (1, 1)


def test_messages_reach_the_stage_and_stop_does_not() -> None:
    service = FakeService()
    lives(service, FakeLinks([NUDGE, NUDGE], LEAVE))
    assert service.received == [NUDGE, NUDGE]


def test_a_draining_stage_leaves_only_when_nothing_is_left() -> None:
    service = FakeService([0, 3, 3])
    links = FakeLinks([Stop(reason="end", drain=True)], NOTHING)
    service.empty = True
    assert lives(service, links) == 0
    assert service.amounts == [], "it worked off what there was before it left"


def test_a_stage_that_leaves_by_itself_is_asked_for_nothing() -> None:
    service = FakeService([2, 0])
    service.empty = True
    run_until_stopped(service, cast(StageSockets, FakeLinks(NOTHING)), until_drained=True)
    assert service.amounts == []


def test_what_the_operator_can_mend_is_told_in_one_sentence_with_exit_code_2() -> None:
    class Broken(FakeService):
        def start(self, links: StageSockets) -> None:
            raise StateError("no ring there")

    service, links = Broken(), FakeLinks()
    assert lives(service, links) == 2
    assert links.reported == [Fault(stage="fake", finding=StateError("no ring there").finding)]
    assert (service.stopped, links.closed) == (1, 1)


def test_our_own_mistake_is_told_and_leaves_its_traceback() -> None:
    class Wrong(FakeService):
        def work(self) -> int:
            raise AssertionError("parsed ran ahead of head")

    service, links = Wrong(), FakeLinks()
    with pytest.raises(AssertionError):
        lives(service, links)
    last = links.reported[-1]
    assert isinstance(last, Fault)
    wrong = {"kind": "AssertionError", "text": "parsed ran ahead of head"}
    assert last.finding == BROKE(**wrong)
    assert (service.stopped, links.closed) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_loop_cleanly(number: signal.Signals) -> None:
    class Signalled(FakeService):
        def work(self) -> int:
            os.kill(os.getpid(), number)
            return 0

    service, links = Signalled(), FakeLinks(NOTHING)
    outside = signal.signal(number, signal.SIG_DFL)  # a hangup is ignored under nohup
    try:
        assert lives(service, links) == 0
        assert (service.stopped, links.closed) == (1, 1)
        assert signal.getsignal(number) is signal.SIG_DFL, "handlers are put back"
    finally:
        signal.signal(number, outside)


def test_a_signal_behind_the_loop_is_noted_where_somebody_still_listens() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        with signals:
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM and not signals.hard
        os.kill(os.getpid(), signal.SIGTERM)  # would be the end of this process
        assert signals.hard
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.received
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stage_whose_parent_is_gone_does_not_even_start() -> None:
    # In a process of its own: the kernel's promise to end it with its parent cannot be taken back.
    script = (
        "import sys; sys.path[:0] = ['tests', 'tests/unit']\n"
        "from test_service_loop import FakeLinks, FakeService, lives\n"
        "service, links = FakeService(), FakeLinks()\n"
        "service.start = None\n"
        "sys.exit(10 + lives(service, links, parent=1))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 10


def test_a_stage_amid_a_long_turn_does_not_outlive_its_parent() -> None:
    """It cannot look at a flag; nor is anybody left to kill it."""
    stage = (
        "import os, sys, time\n"
        "sys.path[:0] = ['tests', 'tests/unit']\n"
        "from test_service_loop import FakeLinks, FakeService\n"
        "from flowcheck.stages import service_loop\n"
        "service_loop.ORPHAN_S = 0.2\n"
        "def work(self):\n"
        "    print(os.getpid(), flush=True)\n"
        "    while True: pass\n"
        "FakeService.work = work\n"
        "service_loop.run_service(FakeService(), FakeLinks([]), parent=int(sys.argv[1]))\n"
    )
    parent = (
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, stage], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as one:
        assert one.stdout is not None
        pid = int(one.stdout.readline())
        one.kill()
        one.wait(60)
        wait_until(lambda: process_identity(pid) == "0 0", 60, "the end of the stage")
