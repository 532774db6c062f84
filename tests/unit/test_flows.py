"""Messages from packets: lost, late, repeated, wrapped, and a key that changes hands."""

from __future__ import annotations

import struct
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
    parsing,
    write,
)

from flowcheck._core import lib
from flowcheck.errors import RingError
from flowcheck.plane.flows import (
    NO_FLOW,
    NUMBER_UNKNOWN,
    PSN_ORIGIN,
    FlowTable,
    flow_key,
    psn_missing,
)

RETH, INFERRED, COUNTED = lib.FC_MESSAGE_RETH, lib.FC_MESSAGE_INFERRED, lib.FC_MESSAGE_COUNTED


def payload(size: int, seed: int = 1) -> bytes:
    return bytes((seed * 37 + i * 11 + (i >> 8)) & 0xFF for i in range(size))


def ll_payload(lines: int, flag: int) -> bytes:
    return b"".join(struct.pack("<IIII", i, flag, i + 7, flag) for i in range(lines))


def frames(packets: list[Packet]) -> list[bytes]:
    return [packet.frame() for packet in packets]


def little(size: int) -> int:
    """NCCL's immediate: the size, its bytes reversed on the wire."""
    return int.from_bytes(size.to_bytes(4, "little"), "big")


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
        assert run.table.messages_made == 1


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


CHANGES = {
    "rkey": {"rkey": 99},
    "address": {"va": 0x9000},
    "length": {"payload": payload(700)},
    "first bytes": {"payload": b"x" * 600},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_that_comes_back_with_something_else_is_a_new_flow(change: str, shm: Path) -> None:
    told = {"payload": payload(600), "rkey": 7, "va": 0x1000}
    old = write(**told, psn=0) + write(payload(600, 5), psn=3)
    new = write(**{**told, **CHANGES[change]}, psn=0)
    with parsed(shm, frames(old + new)) as run:
        first, second = run.table.flows()
        assert (first["retired"], second["retired"]) == (1, 0)
        assert (flow_key(first).incarnation, flow_key(second).incarnation) == (0, 1)
        assert not any(mark.again for mark in run.marks())
        assert [mark.flow for mark in run.marks()] == [0] * 6 + [1] * len(new)
        assert run.table.message(3).flags & COUNTED and run.table.message(3).number == 0
        assert run.counters()["incarnations"] == 1


def test_going_back_n_is_never_a_new_owner(shm: Path) -> None:
    sends = [write(payload(700, n), psn=3 * n, va=0x1000 + (n % 4) * 0x1000) for n in range(9)]
    sent = [p for send in sends for p in send]
    order = sent[:20] + sent[4:24] + sent[2:]
    with parsed(shm, frames(order)) as run:
        assert run.counters()["incarnations"] == 0
        assert run.verdicts() == {"write": len(order)}
        assert len(run.table.flows()) == 1 and run.table.messages_made == 9


def test_a_far_psn_is_a_new_flow_only_at_a_fresh_start_with_a_key_never_used(
    shm: Path,
) -> None:
    old, far = write(payload(600), psn=0), 0x400000
    late = write(payload(600), psn=0xC00000)
    with parsed(shm, frames(late + write(payload(600), psn=0, rkey=8))) as run:
        assert [int(f["incarnation"]) for f in run.table.flows()] == [0, 1]
        assert psn_missing(run.table.flows()[0]) == 0
    with parsed(shm, frames(late + write(payload(600), psn=0, va=5))) as run:
        assert len(run.table.flows()) == 1
    # A capture that paused while the next protocol, with a key of its own, began.
    with parsed(shm, frames(old + write(payload(600), psn=far, rkey=8))) as run:
        [flow] = run.table.flows()
        assert psn_missing(flow) == far - 3
    with parsed(shm, frames(old + write(payload(600, 2), psn=far, va=5))) as run:
        [flow] = run.table.flows()
        assert psn_missing(flow) == far - 3
    stray = Packet(MIDDLE, far, payload(256))
    with parsed(shm, frames([*old, stray, *write(payload(256), psn=3)])) as run:
        assert run.verdicts() == {"write": 4, "orphan": 1}
        assert psn_missing(run.table.flows()[0]) == 0


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


def test_a_full_table_counts_what_it_cannot_keep(shm: Path) -> None:
    with parsing(shm, slots=16384, icrc_every=0) as run:
        template = bytearray(Packet(ONLY, 0, b"", length=0).frame())
        made = []
        for qp in range(8192 + 5):
            template[47:50] = qp.to_bytes(3, "big")
            made.append(bytes(template))
        run.put(made)
        run.parser.parse(1 << 20)
        assert len(run.table.flows()) == 8192
        assert run.counters()["flow_table_full_packets"] == 5
        assert run.mark(8195).said == "stale" and run.mark(8195).flow == NO_FLOW


def test_records_pushed_out_of_the_pool_make_late_packets_stale(shm: Path) -> None:
    with parsing(shm, slots=4) as run:
        header = run.ring.handle.header
        for n in range(40):
            run.put(frames(write(payload(8), psn=n)))
            run.parser.parse(8)
            header.tail = run.ring.parsed
        run.put(frames(write(payload(8), psn=2)))
        run.parser.parse(8)
        assert run.mark(run.ring.parsed - 1).said == "stale"
        assert run.table.message(3) is None
        assert len(list(run.table.messages())) == 8


def test_foreign_and_unfit_tables_are_refused(shm: Path) -> None:
    path = shm / "table"
    with pytest.raises(RingError, match="power of two"):
        FlowTable.create(path, messages=100)
    path.write_bytes(bytes(1 << 16))
    with pytest.raises(RingError, match="not a FlowCheck flow table"):
        FlowTable.open(path)
    path.unlink()
    FlowTable.create(path, messages=64).close()
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    path.write_bytes(raw)
    with pytest.raises(RingError, match="layout version 9"):
        FlowTable.open(path)
    raw[8] = 1
    path.write_bytes(raw[:-4096])
    with pytest.raises(RingError, match="contradict"):
        FlowTable.open(path)


def test_a_late_start_with_a_key_of_its_own_is_not_a_new_owner(shm: Path) -> None:
    data = payload(1025, 6)
    packets = write(data, psn=0, pmtu=512, immediate=little(1025))
    with parsed(shm, frames([packets[1], packets[2], packets[0]])) as run:
        assert run.counters()["incarnations"] == 0
        assert run.table.message(1).packets_seen == 3
        assert run.verdicts() == {"orphan": 1, "write": 2}


def test_a_start_that_contradicts_an_inferred_length_gives_way(shm: Path) -> None:
    before = write(payload(600), psn=0)
    packets = write(payload(1500, 3), psn=3, immediate=little(1500))
    wrong = Packet(FIRST, 4, payload(256), rkey=7, length=1244)
    with parsed(shm, frames([*before, *packets[2:], wrong, packets[0]])) as run:
        assert run.mark(6).said == "write" and run.mark(8).said == "write"
        assert run.verdicts()["malformed"] == 1
        assert run.counters()["incarnations"] == 0


def test_a_quiet_flow_goes_on_counting_when_its_last_record_is_gone(shm: Path) -> None:
    with parsing(shm, slots=4) as run:
        run.put(frames(write(payload(600), psn=0)))
        run.parser.parse(4)
        busy = Packet(0, 0, dest_qp=0x99)
        for n in range(40):
            run.ring.handle.header.tail = run.ring.parsed
            run.put(frames(write(payload(8), psn=n, like=busy)))
            run.parser.parse(8)
        run.ring.handle.header.tail = run.ring.parsed
        run.put(frames([*write(payload(600, 2), psn=3, va=9), Packet(MIDDLE, 1, payload(256))]))
        run.parser.parse(8)
        last = run.ring.parsed
        assert [run.mark(last - back).said for back in (4, 3, 2, 1)] == [*["write"] * 3, "stale"]
        record = run.table.message(run.mark(last - 2).message)
        assert (record.number, bool(record.flags & COUNTED)) == (1, True)
