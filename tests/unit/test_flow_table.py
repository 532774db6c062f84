"""The table of flows and its pool of messages: full, foreign, and records that are gone."""

from __future__ import annotations

from pathlib import Path

from support.refused_as import like, refused_as
from support.transport import ACK, MIDDLE, ONLY, Packet, parsing, write
from support.writes import frames, payload

from flowcheck._core import lib
from flowcheck.errors import RingError
from flowcheck.findings.catalog.shared_file_reasons import (
    FLOW_TABLE_RECORDS_REFUSED,
    NOT_A_FLOW_TABLE,
    OTHER_LAYOUT_VERSION,
    SIZES_CONTRADICT,
)
from flowcheck.findings.catalog.shared_memory_files import DAMAGED, OTHER_LAYOUT, SIZES_REFUSED
from flowcheck.plane.shared_memory.flow_table import NO_FLOW, FlowTable


def test_a_full_table_counts_what_it_cannot_keep(shm: Path) -> None:
    with parsing(shm, slots=32768, icrc_every=0) as run:
        template = bytearray(Packet(ONLY, 0, b"", length=0).frame())
        made = []
        for qp in range(16384 + 5):
            template[47:50] = qp.to_bytes(3, "big")
            made.append(bytes(template))
        run.put(made)
        run.parser.parse(1 << 20)
        assert len(run.table.flows()) == 16384
        assert run.counters()["flow_table_full_packets"] == 5
        assert run.mark(16387).said == "stale" and run.mark(16387).flow == NO_FLOW


def answers(count: int, *, first: int = 1) -> list[bytes]:
    """Acknowledgements, each with a queue pair of its own."""
    template = bytearray(Packet(ACK, 0, syndrome=0x1F).frame())
    made = []
    for qp in range(first, first + count):
        template[47:50] = qp.to_bytes(3, "big")
        made.append(bytes(template))
    return made


def test_acknowledgements_of_made_up_queue_pairs_leave_room_for_writes(shm: Path) -> None:
    with parsing(shm, slots=16384, icrc_every=0) as run:
        run.put(answers(9000))
        run.parser.parse(1 << 20)
        assert len(run.table.flows()) == 4096
        assert run.counters()["flowless_packets"] == 9000 - 4096
        run.put(frames(write(payload(8), psn=0, like=Packet(ONLY, 0, dest_qp=0xABCDEF))))
        run.parser.parse(8)
        assert run.mark(9000).said == "write" and run.mark(9000).flow == 4096
        assert run.counters()["flow_table_full_packets"] == 0
        assert run.verdicts() == {"ack": 9000, "write": 1}


def test_a_flow_that_begins_to_write_gives_its_room_to_another_answer(shm: Path) -> None:
    with parsing(shm, slots=8192, icrc_every=0) as run:
        sent = frames(write(payload(8), psn=0, like=Packet(ONLY, 0, dest_qp=7)) * 2)
        run.put([*answers(4096), *sent, *answers(2, first=9000)])
        run.parser.parse(1 << 20)
        assert run.mark(4096).flow == 6 and run.mark(4098).flow == 4096
        assert len(run.table.flows()) == 4097 and run.counters()["flowless_packets"] == 1


def test_a_refusal_that_finds_no_room_is_still_noted(shm: Path) -> None:
    sent = [p for n in range(2) for p in write(payload(8, n), psn=n, va=n << 16)]
    nak = Packet(
        ACK, 1, syndrome=0x62, dest_qp=0x22, source="10.0.0.2", destination="10.0.0.1", msn=1
    )
    with parsing(shm, slots=8192, icrc_every=0) as run:
        run.put([*answers(4200, first=9000), *frames([*sent, nak])])
        run.parser.parse(1 << 20)
        assert run.counters()["refused_messages"] == 1
        assert run.counters()["flowless_packets"] == 4200 - 4096 + 1


def test_records_pushed_out_of_the_pool_make_late_packets_stale(shm: Path) -> None:
    with parsing(shm, slots=4) as run:
        reader = run.ring.handle.reader
        for n in range(40):
            run.put(frames(write(payload(8), psn=n)))
            run.parser.parse(8)
            reader.tail = run.ring.parsed
        run.put(frames(write(payload(8), psn=2)))
        run.parser.parse(8)
        assert run.mark(run.ring.parsed - 1).said == "stale"
        assert run.table.message(3) is None
        assert len(list(run.table.messages())) == 8


def test_foreign_and_unfit_tables_are_refused(shm: Path) -> None:
    path = shm / "table"
    with refused_as(
        SIZES_REFUSED, kind=RingError, error=like(FLOW_TABLE_RECORDS_REFUSED, messages=100)
    ):
        FlowTable.create(path, messages=100)
    path.write_bytes(bytes(1 << 16))
    with refused_as(DAMAGED, kind=RingError, error=like(NOT_A_FLOW_TABLE, path=str(path))):
        FlowTable.open(path)
    path.unlink()
    FlowTable.create(path, messages=64).close()
    raw = bytearray(path.read_bytes())
    version, raw[8] = raw[8], 99
    path.write_bytes(raw)
    with refused_as(
        OTHER_LAYOUT, kind=RingError, error=like(OTHER_LAYOUT_VERSION, version=99, own=version)
    ):
        FlowTable.open(path)
    raw[8] = version
    path.write_bytes(raw[:-4096])
    with refused_as(DAMAGED, kind=RingError, error=like(SIZES_CONTRADICT, bytes=len(raw) - 4096)):
        FlowTable.open(path)


def test_a_quiet_flow_goes_on_counting_when_its_last_record_is_gone(shm: Path) -> None:
    with parsing(shm, slots=4) as run:
        run.put(frames(write(payload(600), psn=0)))
        run.parser.parse(4)
        busy = Packet(0, 0, dest_qp=0x99)
        for n in range(40):
            run.ring.handle.reader.tail = run.ring.parsed
            run.put(frames(write(payload(8), psn=n, like=busy)))
            run.parser.parse(8)
        run.ring.handle.reader.tail = run.ring.parsed
        run.put(frames([*write(payload(600, 2), psn=3, va=9), Packet(MIDDLE, 1, payload(256))]))
        run.parser.parse(8)
        last = run.ring.parsed
        assert [run.mark(last - back).said for back in (4, 3, 2, 1)] == [*["write"] * 3, "stale"]
        record = run.table.message(run.mark(last - 2).message)
        assert (record.number, bool(record.flags & lib.FC_MESSAGE_COUNTED)) == (1, True)
