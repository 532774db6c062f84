"""Messages that stand open while others use up the pool of records: their records are held."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from support.transport import ONLY, SEND_ONLY, Packet, Run, parsing, write
from support.writes import payload

from flowcheck._core import lib

SLOTS = 16
ROUND = 2 * SLOTS
"""Records of the pool (FlowTable.create)."""


def others() -> Iterator[Packet]:
    """Messages of one packet of another tenant, writes and SENDs by turns."""
    like = Packet(ONLY, 0, payload(8), va=9, rkey=3, length=8, dest_qp=0x99)
    for psn in count():
        yield replace(like, psn=psn, opcode=ONLY if psn % 2 else SEND_ONLY)


def through(run: Run, packets: Sequence[Packet], limit: int = SLOTS) -> list[str]:
    """What is said of each, parsed so many at a time, which an extractor has read before the next
    ones."""
    said = []
    for at in range(0, len(packets), limit):
        run.put([packet.frame() for packet in packets[at : at + limit]])
        begun = run.ring.parsed
        run.parser.parse(limit)
        said += [run.mark(position).said for position in range(begun, run.ring.parsed)]
        run.ring.handle.reader.tail = run.ring.parsed
    return said


def held(run: Run) -> int:
    """Records that are held, by the records; as many as the header counts."""
    records = [run.table.handle.messages[at] for at in range(run.table.pool_records)]
    number = sum(record.held != lib.FC_HELD_NOT for record in records)
    assert run.table.handle.header.held_messages == number
    return number


def test_an_open_message_outlives_any_number_of_others(shm: Path) -> None:
    own, tenant = write(payload(1500), psn=0), others()
    with parsing(shm, slots=SLOTS) as run:
        through(run, own[:2])
        position = run.mark(0).message
        for packet in own[2:]:
            for _ in range(7):
                through(run, [next(tenant) for _ in range(11)])
            assert through(run, [packet]) == ["write"]
            assert run.mark(run.ring.parsed - 1).message == position
        record = run.table.message(position)
        assert record.packets_seen == record.packets == len(own)
        assert held(run) == 1


def test_a_complete_message_gives_its_place_back(shm: Path) -> None:
    own, tenant = write(payload(1500), psn=0), others()
    with parsing(shm, slots=SLOTS) as run:
        through(run, [*own[:2], *(next(tenant) for _ in range(2 * ROUND)), *own[2:]])
        assert held(run) == 1
        through(run, [next(tenant) for _ in range(3 * ROUND)])
        assert held(run) == 0 and through(run, own[3:4]) == ["stale"]


def test_so_does_one_whose_flow_went_on_without_it(shm: Path) -> None:
    """Its missing packet was lost on the way to the mirror: no retransmission reaches so far."""
    sent = [p for n in range(10) for p in write(payload(600, n), psn=3 * n, va=n << 16)]
    tenant = others()
    with parsing(shm, slots=SLOTS) as run:
        through(run, [sent[0], *(next(tenant) for _ in range(ROUND))])
        assert held(run) == 1
        through(run, [*sent[3:], *(next(tenant) for _ in range(3 * ROUND))])
        assert held(run) == 0


def test_a_late_packet_finds_its_message_through_the_next_ones(shm: Path) -> None:
    """Paths of several lengths: two messages behind it are there before its last packet."""
    sent = [p for n in range(3) for p in write(payload(600, n), psn=3 * n, va=n << 16)]
    tenant = others()
    with parsing(shm, slots=SLOTS) as run:
        through(run, [*sent[:2], *sent[3:], *(next(tenant) for _ in range(4 * ROUND)), sent[2]])
        mark = run.mark(run.ring.parsed - 1)
        assert (mark.said, mark.message) == ("write", 1)
        assert run.table.message(1).packets_seen == 3 and held(run) == 3


def test_those_that_get_no_packets_give_way(shm: Path) -> None:
    """Flows that broke off inside a message are as many as may be held; one more pauses."""
    tenant, broken = others(), []
    for qp in range(ROUND):
        broken += write(payload(600), psn=0, like=Packet(ONLY, 0, dest_qp=0x200 + qp))[:1]
    own = write(payload(1500), psn=0)
    with parsing(shm, slots=SLOTS) as run:
        through(run, [*broken, *(next(tenant) for _ in range(2 * ROUND))])
        assert 1 < held(run) <= ROUND // 8
        for packet in own:
            assert through(run, [packet]) == ["write"]
            through(run, [next(tenant) for _ in range(ROUND)])
        assert held(run) <= ROUND // 8


def test_forged_messages_are_not_held(shm: Path) -> None:
    """A key that its owner never used, far from what it sends next."""
    own = write(payload(600), psn=0)
    forged = [replace(own[0], psn=100 + 3 * n, rkey=1000 + n) for n in range(8)]
    tenant = others()
    with parsing(shm, slots=SLOTS) as run:
        through(run, [*own, *forged, *(next(tenant) for _ in range(ROUND))])
        assert held(run) == 0


def test_what_a_mark_names_is_there_until_a_full_ring_was_read(shm: Path) -> None:
    """Sixty flows with messages open, of which packets come in any order: whatever is held, a
    reader that is a whole ring of slots behind finds each record."""
    dice = random.Random(5)
    flows = []
    for qp in range(60):
        like, sent = Packet(ONLY, 0, dest_qp=0x300 + qp), list[Packet]()
        while len(sent) < 60:
            size = dice.choice([40, 600, 2000])
            sent += write(payload(size), psn=len(sent), va=len(sent) << 16, like=like)
        flows.append(sent)
    most = 0
    with parsing(shm, slots=SLOTS, icrc_every=0) as run:
        for _ in range(3000):
            flow = dice.choice(flows[: dice.choice([3, 60])])
            if run.ring.head - run.ring.handle.reader.tail == SLOTS:
                mark = run.mark(run.ring.handle.reader.tail)
                record = run.table.message(mark.message) if mark.message else None
                assert not mark.message or record.flow == mark.flow, "a mark names nothing"
                run.ring.handle.reader.tail += 1
            if flow:
                run.put([flow.pop(0 if dice.random() < 0.9 else -1).frame()])
                run.parser.parse(1)
            most = max(most, held(run))
    assert 1 < most <= ROUND // 8
