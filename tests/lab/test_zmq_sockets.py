"""Real sockets: nothing waits without a limit, step messages arrive, nudges may be dropped."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.refused_as import refused_as

from flowcheck.errors import ConfigError, MessageError
from flowcheck.findings.catalog.chain_processes import SOCKET_PATH_TOO_LONG
from flowcheck.findings.catalog.how_chains_end import SIGNAL_TERM
from flowcheck.findings.catalog.refused_commands import NOT_A_MESSAGE
from flowcheck.messages import Hello, Message, ShardReady, SpanReady, StepApplied, Stop
from flowcheck.stages.zmq_sockets import INBOX_MESSAGES, StageSockets, ipc_address

LIMIT_S = 60.0


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Callable[[str], StageSockets]]:
    """Opens the links of a stage; closes whatever was opened."""
    opened: list[StageSockets] = []

    def link(name: str) -> StageSockets:
        opened.append(StageSockets(tmp_path, name))
        return opened[-1]

    yield link
    for links in opened:
        links.close()


def received(links: StageSockets, count: int, sender: StageSockets | None = None) -> list[Message]:
    """The next `count` messages; fails after LIMIT_S."""
    found: list[Message] = []
    until_s = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} messages came"
        if sender is not None:
            sender.flush()
        found += links.inbox.drain(limit=count - len(found), wait_ms=20)
    return found


def test_a_message_reaches_the_named_stage(linked: Callable[[str], StageSockets]) -> None:
    sender, receiver = linked("parse-0"), linked("extract")
    sender.send("extract", SpanReady(ring=0, parsed=17))
    assert received(receiver, 1) == [SpanReady(ring=0, parsed=17)]


def test_what_the_supervisor_broadcasts_reaches_every_stage(
    linked: Callable[[str], StageSockets],
) -> None:
    supervisor = linked(StageSockets.EVENTS)
    stages = [linked("update"), linked("extract")]
    assert supervisor.broadcast is not None
    heard: list[list[Message]] = [[], []]
    until_s = time.monotonic() + LIMIT_S
    while not all(heard):  # a subscriber that just connected may miss the first
        assert time.monotonic() < until_s
        supervisor.broadcast.send(Stop(reason=SIGNAL_TERM()))
        for stage, messages in zip(stages, heard, strict=True):
            messages.extend(stage.inbox.drain(limit=8, wait_ms=20))
    assert {type(m) for messages in heard for m in messages} == {Stop}


def test_an_empty_inbox_waits_as_long_as_told_and_no_longer(
    linked: Callable[[str], StageSockets],
) -> None:
    links = linked("update")
    began_s = time.monotonic()
    assert links.inbox.drain(limit=5, wait_ms=50) == []
    assert time.monotonic() - began_s > 0.04
    began_s = time.monotonic()
    for _ in range(100):
        links.inbox.drain(limit=5, wait_ms=0)
    assert time.monotonic() - began_s < 100 * 0.04, "what is told is not waited for"


def test_no_more_messages_are_handed_out_than_asked_for(
    linked: Callable[[str], StageSockets],
) -> None:
    sender, receiver = linked("parse-0"), linked("extract")
    for step in range(10):
        sender.send("extract", ShardReady(iteration=step, generation=0))
    assert [m.iteration for m in received(receiver, 4) if isinstance(m, ShardReady)] == [0, 1, 2, 3]
    assert len(received(receiver, 6)) == 6


def test_a_neighbour_that_is_away_stops_nobody_and_still_gets_every_step_message(
    linked: Callable[[str], StageSockets],
) -> None:
    sender = linked("extract")
    steps = [ShardReady(iteration=n, generation=0) for n in range(INBOX_MESSAGES + 500)]
    began_s = time.monotonic()
    for step in steps:
        sender.send("update", step)
    assert time.monotonic() - began_s < LIMIT_S
    assert received(linked("update"), len(steps), sender) == steps


def test_nudges_to_a_neighbour_that_is_away_are_dropped_not_piled_up(
    linked: Callable[[str], StageSockets],
) -> None:
    sender = linked("parse-0")
    for parsed in range(3 * INBOX_MESSAGES):
        sender.send("extract", SpanReady(ring=0, parsed=parsed))
    receiver = linked("extract")
    got = received(receiver, INBOX_MESSAGES // 2, sender)
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        got += receiver.inbox.drain(limit=10_000, wait_ms=20)
    assert len(got) <= 2 * INBOX_MESSAGES + 1


def test_a_restarted_neighbour_is_found_again(linked: Callable[[str], StageSockets]) -> None:
    sender = linked("update")
    first = linked("extract")
    sender.send("extract", StepApplied(step=1, seconds=0.1, digest=""))
    assert len(received(first, 1)) == 1
    first.close()
    second = linked("extract")
    until_s = time.monotonic() + LIMIT_S
    step, got = 1, []
    while not got:  # what was under way to the dead one may be lost: the shard is the truth
        assert time.monotonic() < until_s, "never found again"
        step += 1
        sender.send("extract", StepApplied(step=step, seconds=0.1, digest=""))
        got = second.inbox.drain(limit=8, wait_ms=50)


def test_closing_with_unsent_messages_takes_no_longer_than_its_linger(tmp_path: Path) -> None:
    links = StageSockets(tmp_path, "extract")
    for step in range(100):
        links.send("update", ShardReady(iteration=step, generation=0))
    links.report(Hello(stage="extract", pid=1, layout_version=1))
    began_s = time.monotonic()
    links.close()
    assert time.monotonic() - began_s < LIMIT_S


def test_a_foreign_message_is_an_error_of_its_own(
    linked: Callable[[str], StageSockets], tmp_path: Path
) -> None:
    import zmq

    receiver = linked("extract")
    with zmq.Context() as context, context.socket(zmq.PUSH) as foreign:
        foreign.connect(ipc_address(tmp_path, "extract"))
        foreign.send(b"not ours")
        with refused_as(NOT_A_MESSAGE, kind=MessageError, frame=re.compile("not ours")):
            received(receiver, 1)


def test_a_path_no_socket_can_have_is_refused_with_the_limit(tmp_path: Path) -> None:
    with refused_as(SOCKET_PATH_TOO_LONG, kind=ConfigError, bytes=107):
        ipc_address(tmp_path / ("x" * 100), "extract")
