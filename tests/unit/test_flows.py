"""Messages from packets: lost, late, repeated, wrapped, numbered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.transport import (
    ACK,
    FIRST,
    LAST_IMM,
    MIDDLE,
    ONLY,
    READ_REQUEST,
    SEND_ONLY,
    Packet,
    Run,
    parsed,
    write,
)
from support.writes import frames, little, ll_payload, payload

from flowcheck._core import lib
from flowcheck.plane.shared_memory.flow_table import (
    NO_FLOW,
    NUMBER_UNKNOWN,
    PSN_ORIGIN,
    psn_missing,
)

RETH, INFERRED, COUNTED = lib.FC_MESSAGE_RETH, lib.FC_MESSAGE_INFERRED, lib.FC_MESSAGE_COUNTED


def numbers(run: Run) -> list[int | None]:
    found = sorted(run.table.messages(), key=lambda m: m.first_psn)
    return [None if m.number == NUMBER_UNKNOWN else int(m.number) for m in found]


def test_late_packets_fill_the_holes_they_left(shm: Path) -> None:
    data = payload(2000)
    packets = write(data, psn=0)
    order = [0, 1, 5, 4, 7, 3, 2, 6]
    with parsed(shm, frames([packets[i] for i in order])) as run:
        assert run.verdicts() == {"write": 8}
        [(position, (found, seen))] = run.reassembled().items()
        assert bytes(found) == data and all(seen)
        assert run.table.message(position).packets_seen == 8
        assert psn_missing(run.table.flows()[0]) == 0
        assert not any(mark.again for mark in run.marks())


def test_what_never_came_is_counted_with_the_tail(shm: Path) -> None:
    packets = write(payload(2000), psn=0)
    with parsed(shm, frames([packets[i] for i in (0, 1, 4)])) as run:
        flow = run.table.flows()[0]
        assert psn_missing(flow) == 5
        holes = [(int(h["start"]) - PSN_ORIGIN, int(h["stop"]) - PSN_ORIGIN) for h in flow["holes"]]
        assert holes[0] == (2, 4) and flow["holes_used"] == 1
        assert next(run.table.messages()).packets_seen == 3


def test_a_repeated_packet_is_marked_again_with_the_same_place(shm: Path) -> None:
    packets = write(payload(1000), psn=7)
    with parsed(shm, frames([*packets, *packets[1:]])) as run:
        marks = run.marks()
        assert [mark.again for mark in marks] == [0, 0, 0, 0, 1, 1, 1]
        for first, second in zip(marks[1:4], marks[4:], strict=True):
            assert (first.message, first.offset_bytes) == (second.message, second.offset_bytes)
        assert run.table.flows()[0]["duplicate_packets"] == 3
        assert run.table.flows()[0]["payload_bytes"] == 1000


def test_more_holes_than_the_list_holds_stay_a_count(shm: Path) -> None:
    packets = write(payload(256 * 100), psn=0)
    with parsed(shm, frames(packets[::2])) as run:
        flow = run.table.flows()[0]
        assert flow["holes_used"] == 16 and flow["lost_holes"] == 33
        assert psn_missing(flow) == 50


def test_a_lost_start_is_inferred_from_the_immediate_in_either_byte_order(shm: Path) -> None:
    before, data = payload(600, 2), payload(1500, 3)
    for immediate in (len(data), little(len(data))):
        packets = write(before, psn=0) + write(data, psn=3, immediate=immediate)
        with parsed(shm, frames(packets[:3] + packets[4:])) as run:
            assert run.verdicts() == {"write": 4, "orphan": 4}
            message = run.table.message(2)
            assert message.flags & INFERRED and not message.flags & RETH
            assert (message.first_psn, message.packets) == (PSN_ORIGIN + 3, 6)
            assert (message.length_bytes, message.packets_seen) == (1500, 5)
            orphan = run.mark(3)
            assert (orphan.message, orphan.flow, orphan.psn) == (0, 0, PSN_ORIGIN + 4)
            assert psn_missing(run.table.flows()[0]) == 1


def test_an_inferred_message_becomes_known_when_its_start_comes_late(shm: Path) -> None:
    data = payload(1500, 3)
    packets = write(payload(600), psn=0) + write(data, psn=3, va=0x77000, immediate=little(1500))
    with parsed(shm, frames([*packets[:3], *packets[4:], packets[3]])) as run:
        message = run.table.message(2)
        assert message.flags & RETH and not message.flags & INFERRED
        assert (message.va, message.packets_seen, message.number) == (0x77000, 6, 1)
        assert message.flags & COUNTED
        assert psn_missing(run.table.flows()[0]) == 0


@pytest.mark.parametrize(
    ("size", "immediate"),
    [
        (1500, little(1501)),
        (1500, little(1500 + 256 * 4)),
        (1500, 0),
    ],
)
def test_an_immediate_that_cannot_be_the_length_infers_nothing(
    size: int, immediate: int, shm: Path
) -> None:
    packets = write(payload(600), psn=0) + write(payload(size), psn=3, immediate=immediate)
    with parsed(shm, frames(packets[:3] + packets[4:])) as run:
        assert run.verdicts()["orphan"] == 5
        assert run.table.newest_message == 1


def test_a_length_whose_start_was_seen_as_another_packet_is_not_inferred(shm: Path) -> None:
    packets = write(payload(256 * 4), psn=0)
    last = Packet(LAST_IMM, 12, payload(256), immediate=256 * 3)
    middles = [Packet(MIDDLE, psn, payload(256)) for psn in (8, 9, 10, 11)]
    with parsed(shm, frames([*packets, *middles, last])) as run:
        assert run.verdicts() == {"write": 4, "orphan": 5}


def test_a_start_that_comes_after_its_packets_adopts_them(shm: Path) -> None:
    packets = write(payload(256 * 5), psn=0) + write(payload(256 * 5, 4), psn=5)
    with parsed(shm, frames([*packets[:5], *packets[6:], packets[5]])) as run:
        assert run.verdicts() == {"write": 6, "orphan": 4}
        assert run.table.message(2).packets_seen == 5
        assert [mark.psn - PSN_ORIGIN for mark in run.marks()[5:9]] == [6, 7, 8, 9]


def test_psns_wrap_inside_a_message(shm: Path) -> None:
    data = payload(256 * 40)
    packets = write(data, psn=0xFFFFF0) + write(payload(100), psn=24)
    with parsed(shm, frames(packets)) as run:
        found = run.reassembled()
        assert bytes(found[1][0]) == data and all(found[1][1])
        assert run.table.message(2).first_psn == PSN_ORIGIN + 0xFFFFF0 + 40
        assert numbers(run) == [None, None], "PSN 0 after a wrap is no beginning"


def test_numbers_count_from_psn_0_while_nothing_is_missing(shm: Path) -> None:
    packets = [p for n in range(5) for p in write(payload(500, n), psn=2 * n, va=n << 16)]
    with parsed(shm, frames(packets)) as run:
        assert numbers(run) == [0, 1, 2, 3, 4]
        assert all(m.flags & COUNTED for m in run.table.messages())
    with parsed(shm, frames([replace(p, psn=p.psn + 9) for p in packets])) as run:
        assert numbers(run) == [None] * 5


def test_after_a_gap_the_line_flag_numbers_again_and_a_filled_gap_counts_again(shm: Path) -> None:
    sends = [write(ll_payload(40, n + 1), psn=3 * n, va=n << 16) for n in range(6)]
    lost = [p for n in (0, 1, 4, 5) for p in sends[n]]
    with parsed(shm, frames(lost)) as run:
        assert numbers(run) == [0, 1, 4, 5]
        counted = [bool(m.flags & COUNTED) for m in run.table.messages()]
        assert counted == [True, True, False, False]
    late = lost + sends[2] + sends[3]
    with parsed(shm, frames(late)) as run:
        assert numbers(run) == [0, 1, 2, 3, 4, 5]
        assert all(m.flags & COUNTED for m in run.table.messages())


def test_a_line_flag_that_is_no_count_numbers_nothing(shm: Path) -> None:
    sends = [write(ll_payload(40, 0x3F800000), psn=3 * n, va=n << 16) for n in range(6)]
    with parsed(shm, frames([p for n in (0, 1, 4) for p in sends[n]])) as run:
        assert numbers(run) == [0, 1, None]


def test_packets_that_contradict_their_message_are_malformed(shm: Path) -> None:
    packets = write(payload(1500), psn=0)
    wrong = [
        Packet(MIDDLE, 5, payload(256)),
        Packet(MIDDLE, 1, payload(512)),
        Packet(LAST_IMM, 2, payload(9)),
        Packet(LAST_IMM, 5, payload(221)),
        Packet(ONLY, 6, payload(300), length=300, rkey=7),
        Packet(FIRST, 6, payload(512), length=4000, rkey=7),
    ]
    with parsed(shm, frames([*packets, *wrong])) as run:
        assert run.verdicts() == {"write": 6, "malformed": 6}
        assert psn_missing(run.table.flows()[0]) == 0


def test_requests_of_other_kinds_share_the_psns(shm: Path) -> None:
    packets = [
        *write(payload(600), psn=0),
        Packet(SEND_ONLY, 3, payload(20)),
        Packet(READ_REQUEST, 4, length=256 * 4),
        *write(payload(600), psn=8),
        Packet(ACK, 77, msn=5, dest_qp=0x11),
    ]
    with parsed(shm, frames(packets)) as run:
        [flow] = run.table.flows()
        assert psn_missing(flow) == 0 and flow["ack_packets"] == 1
        assert (flow["last_ack_psn"], flow["last_ack_msn"]) == (77, 5)
        assert run.marks()[3].flow == 0
    with parsed(shm, [Packet(0x64, 1, bytes(16), dest_qp=1).frame()]) as run:
        assert len(run.table.flows()) == 0 and run.mark(0).flow == NO_FLOW


def test_a_start_that_contradicts_an_inferred_length_gives_way(shm: Path) -> None:
    before = write(payload(600), psn=0)
    packets = write(payload(1500, 3), psn=3, immediate=little(1500))
    wrong = Packet(FIRST, 4, payload(256), rkey=7, length=1244)
    with parsed(shm, frames([*before, *packets[2:], wrong, packets[0]])) as run:
        assert run.mark(6).said == "write" and run.mark(8).said == "write"
        assert run.verdicts()["malformed"] == 1
        assert run.counters()["incarnations"] == 0


def runs(run: Run) -> list[tuple[int, int]]:
    """[message] (PSN its run begins with, place in the run)."""
    found = sorted(run.table.messages(), key=lambda m: m.first_psn)
    return [(int(m.run_psn) - PSN_ORIGIN, int(m.nth)) for m in found]


def test_messages_are_counted_in_runs_that_nothing_lacks_in(shm: Path) -> None:
    parts = [write(payload(600, at), psn=100 + 3 * at, va=0x9000 + 0x1000 * at) for at in range(5)]
    told = [100, 100, 109, 109, 109]
    with parsed(shm, frames([*parts[0], *parts[1], *parts[3], *parts[4]])) as run:
        assert runs(run) == [(100, 0), (100, 1), (109, 0), (109, 1)]
        assert numbers(run) == [None] * 4
    with parsed(shm, frames([p for at in (0, 3, 4, 1) for p in parts[at]])) as run:
        assert [psn for psn, _ in runs(run)] == [100, 100, *told[3:]]
    with parsed(shm, frames([p for at in (0, 1, 3, 4, 2) for p in parts[at]])) as run:
        assert runs(run) == [(100, at) for at in range(5)]


def test_a_pause_of_more_than_half_of_all_psns_is_one_ahead(shm: Path) -> None:
    lap = 1 << 24
    before = write(payload(600), psn=lap - 9)
    after = write(payload(256 * 16), psn=lap // 2 + 884)
    after += write(payload(600, 2), psn=lap // 2 + 900, va=0x9000)
    with parsed(shm, frames([*before, *after])) as run:
        assert [m.packets_seen for m in run.table.messages()] == [3, 3]
        first, second = run.table.messages()
        assert second.first_psn - first.first_psn == lap // 2 + 909
    foreign = [replace(packet, rkey=99) for packet in after]
    with parsed(shm, frames([*before, *foreign])) as run:
        assert run.counters()["incarnations"] == 1
