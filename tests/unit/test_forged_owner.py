"""Packets that a stranger makes up beside a genuine sender: its bytes and numbers stay right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import (
    ACK,
    FIRST,
    LAST,
    MIDDLE,
    ONLY,
    SEND_FIRST,
    SEND_ONLY,
    Packet,
    Run,
    parsed,
    parsing,
    write,
)
from support.writes import frames, payload

from flowcheck._core import lib

SIZES = (700, 2000, 100, 1500, 600)
FOREIGN = b"\xee" * 256


def genuine() -> list[Packet]:
    """Five messages of one connection, two keys by turns."""
    packets: list[Packet] = []
    for nth, size in enumerate(SIZES):
        data = payload(size, nth)
        packets += write(data, psn=len(packets), va=(nth + 1) << 16, rkey=7 + nth % 2)
    return packets


def forged(kind: str, psn: int) -> list[Packet]:
    """One packet, or a burst of two whole messages, that nobody but a stranger sent."""
    made = {
        "first": [Packet(FIRST, psn, FOREIGN, va=9, rkey=99, length=5000)],
        "huge first": [Packet(FIRST, psn, FOREIGN, va=9, rkey=99, length=1 << 28)],
        "only": [Packet(ONLY, psn, FOREIGN, va=9, rkey=99, length=256)],
        "middle of another size": [Packet(MIDDLE, psn, FOREIGN * 2)],
        "last too long": [Packet(LAST, psn, FOREIGN[:255])],
        "send": [Packet(SEND_ONLY, psn, FOREIGN)],
        "send first": [Packet(SEND_FIRST, psn, FOREIGN)],
        "nak": [
            Packet(ACK, psn, syndrome=0x62, dest_qp=5, source="10.0.0.2", destination="10.0.0.1")
        ],
        "ack": [Packet(ACK, psn, msn=99)],
        "burst": [
            *write(FOREIGN * 3, psn=psn, rkey=99),
            *write(FOREIGN * 2, psn=psn + 3, rkey=99),
        ],
    }
    return made[kind]


def check_genuine(run: Run, packets: list[Packet], kind: str) -> None:
    """Marks of the genuine packets alone give what was sent, all of it in one flow."""
    first_psn = sum(len(write(payload(size), psn=0)) for size in SIZES)
    assert first_psn == len(packets)
    flow = run.table.flows()[0]
    assert not flow["retired"]
    messages = [m for m in run.table.messages() if m.flow == 0]
    assert [m.length_bytes for m in sorted(messages, key=lambda m: m.first_psn)] == list(SIZES)
    assert sorted(m.number for m in messages) == list(range(len(SIZES)))
    if kind != "nak":
        assert all(m.packets_seen == m.packets for m in messages)


KINDS = (
    "first",
    "huge first",
    "only",
    "middle of another size",
    "last too long",
    "send",
    "send first",
    "nak",
    "ack",
)


@pytest.mark.parametrize("port", [50000, 50001])
@pytest.mark.parametrize("kind", KINDS)
def test_one_packet_of_an_old_psn_costs_a_genuine_sender_nothing(
    kind: str, port: int, shm: Path
) -> None:
    """Whenever it comes, and whatever PSN that was sent before it has."""
    packets = genuine()
    for at in range(4, len(packets), 3):
        for psn in range(1, at, 2):
            made = [replace(packet, port=port) for packet in forged(kind, psn)]
            with parsed(shm, frames([*packets[:at], *made, *packets[at:]])) as run:
                check_genuine(run, packets, kind)
                marks = run.marks()
                own = marks[:at] + marks[at + len(made) :]
                assert {mark.flow for mark in own} == {0}, (at, psn)
                assert all(mark.message for mark in own), (at, psn)


@pytest.mark.parametrize("port", [50000, 50001])
def test_a_burst_between_two_messages_does_not_end_a_sender(port: int, shm: Path) -> None:
    packets = genuine()
    at = 3 + 8 + 1
    for psn in (0, 3, 5):
        made = [replace(packet, port=port) for packet in forged("burst", psn)]
        with parsed(shm, frames([*packets[:at], *made, *packets[at:]])) as run:
            check_genuine(run, packets, "burst")
            assert [m.packets_seen for m in run.table.messages() if m.flow == 1] == [3, 2]


def test_every_owner_of_a_key_that_changes_hands_often_is_found_whole(shm: Path) -> None:
    """Nothing of a later life is dropped, however soon it follows the one before."""
    lives = [[replace(p, rkey=p.rkey + 10 * n) for p in genuine()] for n in range(4)]
    for cut in (1, 2, 3, 5, 7, 12):
        sent = [*lives[0][:cut], *lives[1], *lives[2], *lives[3]]
        with parsed(shm, frames(sent)) as run:
            flows = [mark.flow for mark in run.marks()]
            wanted = [0] * cut + [n for n in (1, 2, 3) for _ in lives[0]]
            assert flows == wanted, cut
            for owner in (1, 2, 3):
                own = [m for m in run.table.messages() if m.flow == owner]
                assert [m.number for m in own] == list(range(len(SIZES)))
                assert all(m.packets_seen == m.packets for m in own), (cut, owner)


def whole_and_counted(run: Run, packets: list[Packet], at: int) -> None:
    """All that was sent is one flow's: whole, counted, with its own bytes."""
    flows = [mark.flow for mark in run.marks()]
    assert set(flows[:at] + flows[at + 1 :]) == {0}
    told = [
        m for m in run.table.messages() if m.flow == 0 and m.standing != lib.FC_STANDING_UNPROVEN
    ]
    assert [m.number for m in sorted(told, key=lambda m: m.first_psn)] == list(range(len(SIZES)))
    for nth, m in enumerate(sorted(told, key=lambda m: m.first_psn)):
        assert m.packets_seen == m.packets and m.flags & lib.FC_MESSAGE_COUNTED
        marks = [(n, mark) for n, mark in enumerate(run.marks()) if mark.message == m.position]
        pieces = {mark.offset_bytes: run.payload(n) for n, mark in marks}
        assert b"".join(pieces[offset] for offset in sorted(pieces)) == payload(SIZES[nth], nth)


@pytest.mark.parametrize("kind", ["first", "huge first", "only"])
def test_a_key_never_used_does_not_take_the_psns_of_what_is_still_to_come(
    kind: str, shm: Path
) -> None:
    """Where the next packet belongs, or anywhere ahead of it, once both keys are known."""
    packets = genuine()
    for at in range(4, len(packets)):
        starts = [n for n, p in enumerate(packets) if p.opcode in (FIRST, ONLY)]
        for psn in range(at, len(packets)):
            # A key that was never seen is told from another one only by what came before.
            if psn == at and at not in starts:
                continue
            with parsed(shm, frames([*packets[:at], *forged(kind, psn), *packets[at:]])) as run:
                whole_and_counted(run, packets, at)


def test_what_goes_on_with_a_forged_first_is_never_whole(shm: Path) -> None:
    """The genuine First comes last: its message lacks what the forged one took."""
    packets = genuine()
    late = [*packets[:12], *packets[13:], packets[12]]
    for at, length in ((10, 1500), (11, 1500)):
        made = [Packet(FIRST, 12, FOREIGN, va=9, rkey=99, length=length)]
        with parsed(shm, frames([*late[:at], *made, *late[at:]])) as run:
            messages = [m for m in run.table.messages() if m.length_bytes == 1500]
            forgery, own = messages
            assert forgery.standing == lib.FC_STANDING_UNPROVEN and forgery.packets_seen == 0
            assert own.number == 3 and own.packets_seen == 1 and own.flow == 0


def test_a_new_key_that_comes_out_of_order_costs_its_own_message_alone(shm: Path) -> None:
    """Its First overtook the packet before it."""
    packets = genuine()
    new = write(payload(600, 8), psn=21, va=0x90000, rkey=55)
    after = write(payload(700, 9), psn=24, va=0x10000, rkey=7)
    more = write(payload(500, 10), psn=27, va=0xA0000, rkey=55)
    sent = [*packets[:20], new[0], packets[20], *new[1:], *after, *more]
    with parsed(shm, frames(sent)) as run:
        assert {mark.flow for mark in run.marks()} == {0}
        told = sorted(run.table.messages(), key=lambda m: m.first_psn)
        assert [m.number for m in told] == list(range(8))
        standing = [lib.FC_STANDING_KNOWN] * 8
        standing[1] = lib.FC_STANDING_FRESH
        standing[5] = lib.FC_STANDING_UNPROVEN
        standing[7] = lib.FC_STANDING_FRESH
        assert [m.standing for m in told] == standing
        assert all(m.packets_seen == m.packets for m in told)


def test_a_queue_pair_that_begins_anew_after_all_records_of_it_are_gone(shm: Path) -> None:
    """Other queue pairs overwrote them: its messages are counted from its own first one."""
    old = [p for n in range(3) for p in write(payload(2000, n), psn=8 * n)]
    others = [Packet(ONLY, n, FOREIGN, va=1, rkey=3, length=256, dest_qp=0x55) for n in range(600)]
    new = [p for n in range(5) for p in write(payload(2000, n + 9), psn=8 * n, rkey=0x77)]
    with parsing(shm) as run:
        for batch in (old, *(others[n : n + 100] for n in range(0, 600, 100)), new):
            run.put(frames(batch))
            while run.parser.parse(1 << 20):
                continue
            start = run.ring.parsed - len(batch)
            marks = [run.mark(n) for n in range(start, run.ring.parsed)]
            run.ring.handle.reader.tail = run.ring.parsed
        assert [flow["incarnation"] for flow in run.table.flows()] == [0, 0, 1]
        assert {(mark.flow, mark.said) for mark in marks} == {(2, "write")}
        told = [m for m in run.table.messages() if m.flow == 2]
        assert [m.number for m in told] == list(range(5))


def test_a_new_key_behind_records_that_are_gone_goes_on_with_no_count(shm: Path) -> None:
    old = [p for n in range(3) for p in write(payload(2000, n), psn=8 * n)]
    others = [Packet(ONLY, n, FOREIGN, va=1, rkey=3, length=256, dest_qp=0x55) for n in range(600)]
    for rkey, number in ((7, 3), (0x77, 2**64 - 1)):
        new = write(payload(2000, 9), psn=24, rkey=rkey)
        with parsing(shm) as run:
            for batch in (old, *(others[n : n + 100] for n in range(0, 600, 100)), new):
                run.put(frames(batch))
                while run.parser.parse(1 << 20):
                    continue
                run.ring.handle.reader.tail = run.ring.parsed
            assert [m.number for m in run.table.messages()][-1] == number
