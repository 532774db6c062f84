"""A mirror that was blind for exactly as many packets as there are PSNs: what comes next has the
PSN that would have come next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.extraction import SIMPLE, Send, bench, packets_of, plan_of
from support.transport import Packet, Run, parsing, write
from support.writes import ll_payload, payload

from flowcheck._core import lib
from flowcheck.plane.shared_memory.flow_table import psn_missing
from flowcheck.stages.extraction.installed_flow_plans import InstalledPlans

PSN_COUNT = 1 << 24
PACKETS = 8
"""Of each message: all PSNs are 2^21 of them."""
BEFORE, BEHIND = 800, 6
PACKET_NS = 1000
RKEY = 7


def message(number: int, flag: int | None) -> list[Packet]:
    """Message `number` of the flow, with LL's lines where it has a flag."""
    lines = ll_payload(128, flag) if flag is not None else payload(2048, number)
    return write(lines, psn=PACKETS * number % PSN_COUNT, va=number % 8 << 16, rkey=RKEY)


def put(run: Run, packets: Sequence[Packet], from_ns: int) -> None:
    commit = run.ring.capture_commit()
    for nth, packet in enumerate(packets):
        frame, position = packet.frame(), run.ring.head + nth
        stamp = from_ns + nth * PACKET_NS if from_ns else 0
        code = lib.fc_ring_put(run.ring.handle, nth, frame, len(frame), len(frame), stamp, position)
        assert code == 0
    lib.fc_ring_publish(run.ring.handle, len(packets), commit)
    run.parser.parse(1 << 20)


def numbers(
    shm: Path, *, lost: int, pause_ns: int, ll: bool = True, from_ns: int = 10**9
) -> tuple[list[int], Run, int, int]:
    """Numbers of the messages behind a pause in which so many messages passed unseen, packets
    missing by then, and pauses of which nothing tells."""
    first = [p for n in range(BEFORE) for p in message(n, n + 1 if ll else None)]
    then = [BEFORE + lost + n for n in range(BEHIND)]
    rest = [p for n in then for p in message(n, n + 1 if ll else None)]
    with parsing(shm, slots=8192) as run:
        put(run, first, from_ns)
        put(run, rest, from_ns and from_ns + len(first) * PACKET_NS + pause_ns)
        (flow,) = run.table.flows()
        told = [int(m.number) for m in run.table.messages()][-BEHIND:]
        return told, run, psn_missing(flow), int(flow["unproven_pauses"])


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_flags_of_lines_tell_that_all_psns_were_missed_once(rounds: int, shm: Path) -> None:
    lost = rounds * PSN_COUNT // PACKETS
    told, _, missing, unproven = numbers(shm, lost=lost, pause_ns=60 * 10**9)
    assert told == [BEFORE + lost + n for n in range(BEHIND)]
    assert missing == PSN_COUNT and unproven == 0


def test_a_pause_without_a_loss_is_none(shm: Path) -> None:
    told, _, missing, unproven = numbers(shm, lost=0, pause_ns=60 * 10**9)
    assert told == [BEFORE + n for n in range(BEHIND)]
    assert missing == unproven == 0


@pytest.mark.parametrize(("lost", "unproven"), [(0, 1), (PSN_COUNT // PACKETS, 1)])
def test_where_nothing_tells_the_pause_is_counted(lost: int, unproven: int, shm: Path) -> None:
    """Simple's payloads have no flags: with a loss and without one all that is seen is the same."""
    assert numbers(shm, lost=lost, pause_ns=60 * 10**9, ll=False)[2:] == (0, unproven)


@pytest.mark.parametrize("pause_ns", [0, 10**6, 10**9])
def test_a_pause_too_short_for_a_lap_is_not_counted(pause_ns: int, shm: Path) -> None:
    """A million packets a second: eight seconds at least, were it eight times as fast."""
    assert numbers(shm, lost=0, pause_ns=pause_ns, ll=False)[2:] == (0, 0)
    assert numbers(shm, lost=0, pause_ns=pause_ns)[2:] == (0, 0)


def test_without_time_stamps_nothing_is_said(shm: Path) -> None:
    assert numbers(shm, lost=0, pause_ns=0, ll=False, from_ns=0)[2:] == (0, 0)


def test_data_that_looks_like_flags_shows_no_missed_psns(shm: Path) -> None:
    """Behind lines that counted: a message of Simple, all of one number."""
    first = [p for n in range(BEFORE) for p in message(n, n + 1)]
    ones = write(b"\x00\x00\x80\x3f" * 512, psn=PACKETS * BEFORE, va=0, rkey=RKEY)
    with parsing(shm, slots=8192) as run:
        put(run, first, 10**9)
        put(run, ones, 100 * 10**9)
        *_, last = run.table.messages()
        (flow,) = run.table.flows()
        assert last.number == BEFORE and psn_missing(flow) == 0
        assert flow["unproven_pauses"] == 1


@pytest.mark.parametrize("followed", [True, False])
def test_what_is_followed_says_what_it_rests_on(followed: bool, shm: Path) -> None:
    """Of flows with a plan alone: a stranger's pauses are its own affair."""
    job = [Send(bytes([n % 251]) * 2048, SIMPLE) for n in range(BEFORE + 1)]
    packets = packets_of(job, immediate=False)
    with bench(shm, slots=8192) as run:
        now_ns = 10**9
        for nth, packet in enumerate(packets):
            now_ns += PACKET_NS if nth < PACKETS * BEFORE else 60 * 10**9 // PACKETS
            frame, commit = packet.frame, run.ring.capture_commit()
            assert not lib.fc_ring_put(
                run.ring.handle, 0, frame, len(frame), len(frame), now_ns, nth
            )
            lib.fc_ring_publish(run.ring.handle, 1, commit)
        run.parser.parse(1 << 20)
        if followed:
            assert run.extractor.install_plan(plan_of(job[:1], each=job[1:2]))
        planned = SimpleNamespace(_extractors=[run.extractor])
        assert InstalledPlans.unproven_pauses(planned) == followed
