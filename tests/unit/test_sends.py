"""SENDs: no length but their Last; whatever is lost in between is never called complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import SEND_MIDDLE, Packet, parsed, send, write
from support.writes import frames, payload

from flowcheck._core import lib
from flowcheck.plane.shared_memory.flow_table import PSN_ORIGIN, psn_missing


@pytest.mark.parametrize("end", ["", "imm", "invalidate"])
@pytest.mark.parametrize("size", [0, 100, 256, 257, 1500])
def test_a_send_is_whole_in_any_order(end: str, size: int, shm: Path) -> None:
    data = payload(size)
    packets = send(data, psn=7, end=end)
    for order in (packets, packets[::-1], packets[1::2] + packets[::2], packets * 2):
        with parsed(shm, frames(order)) as run:
            assert run.sends() == {PSN_ORIGIN + 7: data}
            assert run.verdicts() == {"send": len(order)}
            assert psn_missing(run.table.flows()[0]) == 0
            assert run.table.flows()[0]["duplicate_packets"] == len(order) - len(packets)
            [record] = [m for m in run.table.messages() if m.packets]
            assert record.number == 2**64 - 1 and not record.flags & lib.FC_MESSAGE_COUNTED
            assert bool(record.flags & lib.FC_MESSAGE_IMMEDIATE) == (end == "imm")
            assert end != "imm" or record.immediate == 0xABCD


def test_a_lost_end_and_a_lost_start_do_not_make_one_send_of_two(shm: Path) -> None:
    one, two = send(payload(1000), psn=0), send(payload(1000, 2), psn=4)
    kept = one[:3] + two[1:]
    with parsed(shm, frames(kept)) as run:
        assert run.sends() == {}
        assert psn_missing(run.table.flows()[0]) == 2
    with parsed(shm, frames([*kept, two[0], one[3]])) as run:
        assert run.sends() == {PSN_ORIGIN: payload(1000), PSN_ORIGIN + 4: payload(1000, 2)}


def test_writes_and_sends_share_the_psns_and_keep_their_places(shm: Path) -> None:
    data = [payload(700, n) for n in range(4)]
    packets = [
        *write(data[0], psn=0xFFFFFC),
        *send(data[1], psn=0xFFFFFF),
        *write(data[2], psn=2, va=0x2000),
        *send(data[3], psn=5),
    ]
    with parsed(shm, frames([packets[i] for i in (0, 2, 1, 5, 4, 3, 6, 8, 7, 9, 11, 10)])) as run:
        wrap = PSN_ORIGIN + 0xFFFFFF
        assert run.sends() == {wrap: data[1], wrap + 6: data[3]}
        placed = [bytes(found) for found, seen in run.reassembled().values() if all(seen)]
        assert sorted(placed) == sorted([data[0], data[2]])
        assert psn_missing(run.table.flows()[0]) == 0
        assert run.counters()["incarnations"] == 0


def test_a_send_takes_no_number_and_ends_the_count_of_writes(shm: Path) -> None:
    packets = [
        *write(payload(600), psn=0),
        *send(payload(9), psn=3),
        *write(payload(600, 3), psn=4),
    ]
    with parsed(shm, frames(packets)) as run:
        told = {m.first_psn - PSN_ORIGIN: int(m.number) for m in run.table.messages()}
        assert told == {0: 0, 3: 2**64 - 1, 4: 2**64 - 1}
    with parsed(shm, frames([*send(payload(9), psn=0), *write(payload(600), psn=1)])) as run:
        assert all(m.number == 2**64 - 1 for m in run.table.messages())


def test_what_no_send_can_be_is_malformed_and_places_nothing(shm: Path) -> None:
    packets = send(payload(1000), psn=0)
    wrong = [
        replace(packets[1], opcode=packets[3].opcode),  # an end in the middle
        replace(packets[3], payload=payload(9)),  # another length
        Packet(SEND_MIDDLE, 4, payload(256)),  # goes on behind the end
        Packet(SEND_MIDDLE, 9, payload(512)),  # another path MTU
        Packet(SEND_MIDDLE, 9, payload(100)),  # no path MTU
    ]
    for packet in wrong:
        with parsed(shm, frames([*packets, packet])) as run:
            assert run.verdicts() == {"send": 4, "malformed": 1}
            assert run.sends() == {PSN_ORIGIN: payload(1000)}


def test_a_send_where_a_write_was_is_another_owner(shm: Path) -> None:
    new = send(payload(1000, 4), psn=0)
    with parsed(shm, frames([*write(payload(1000), psn=0), *new])) as run:
        assert [int(f["incarnation"]) for f in run.table.flows()] == [0, 1]
        assert run.sends() == {PSN_ORIGIN: payload(1000, 4)}
    with parsed(shm, frames([*send(payload(1000), psn=0), *write(payload(1000), psn=0)])) as run:
        assert [int(f["incarnation"]) for f in run.table.flows()] == [0, 1]
