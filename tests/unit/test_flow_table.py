"""The table of flows and its pool of messages: full, foreign, and records that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.transport import MIDDLE, ONLY, Packet, parsing, write
from support.writes import frames, payload

from flowcheck._core import lib
from flowcheck.errors import RingError
from flowcheck.plane.flows import NO_FLOW, FlowTable


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
    with pytest.raises(RingError, match="power of two"):
        FlowTable.create(path, messages=100)
    path.write_bytes(bytes(1 << 16))
    with pytest.raises(RingError, match="not a FlowCheck flow table"):
        FlowTable.open(path)
    path.unlink()
    FlowTable.create(path, messages=64).close()
    raw = bytearray(path.read_bytes())
    version, raw[8] = raw[8], 9
    path.write_bytes(raw)
    with pytest.raises(RingError, match="layout version 9"):
        FlowTable.open(path)
    raw[8] = version
    path.write_bytes(raw[:-4096])
    with pytest.raises(RingError, match="contradict"):
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
