"""A parser killed by SIGKILL at any instant leaves what an undisturbed one would have."""

from __future__ import annotations

import os
import random
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.child_end import ended
from support.refused_as import refused_as
from support.transport import ACK, Packet, Run, parsing, send, write

from flowcheck._core import ffi, lib
from flowcheck.findings.catalog.extraction_refusals import (
    FLOW_TABLE_JOURNAL_TORN,
    FLOW_TABLE_READ_ONLY,
    FLOW_TABLE_TOO_SMALL,
)
from flowcheck.plane.extraction.packet_parser import Parser
from flowcheck.plane.shared_memory.flow_table import FlowTable
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import counter_values

SLOTS = 1 << 15
SLOT_BYTES = 512


def hostile_traffic(seed: int) -> list[bytes]:
    """Loss, repeats, reordering, ACKs, refusals, SENDs and keys that change hands, interleaved."""
    dice = random.Random(seed)
    frames: list[bytes] = []
    psn = [0] * 24
    while len(frames) < SLOTS:
        flow = dice.randrange(24)
        like = Packet(0, 0, dest_qp=100 + flow, port=50000 + flow)
        if dice.random() < 0.02:
            psn[flow] = 0
        size = dice.choice([0, 40, 256, 700, 2000, 5000])
        data = dice.randbytes(size)
        immediate = int.from_bytes(size.to_bytes(4, "little"), "big")
        packets = write(
            data,
            psn=psn[flow],
            va=dice.randrange(4) << 16,
            rkey=dice.randrange(3),
            immediate=immediate if dice.random() < 0.7 else None,
            like=like,
        )
        if dice.random() < 0.3:
            packets = send(data, psn=psn[flow], like=like)
        psn[flow] += len(packets)
        kept = [packet for packet in packets if dice.random() > 0.1]
        if dice.random() < 0.2:
            kept += kept[len(kept) // 2 :]
        if dice.random() < 0.2:
            dice.shuffle(kept)
        kept.append(Packet(ACK, psn[flow], dest_qp=200 + flow))
        if dice.random() < 0.02:
            nak = Packet(ACK, psn[flow] - 1, dest_qp=200 + flow, syndrome=0x62, port=like.port)
            kept.append(replace(nak, source=like.destination, destination=like.source))
        frames += [packet.frame() for packet in kept]
    return frames[:SLOTS]


def filled(folder: Path, frames: list[bytes]) -> tuple[FrameRing, FlowTable]:
    folder.mkdir()
    ring = FrameRing.create(folder / "ring", slots=SLOTS, slot_bytes=SLOT_BYTES)
    table = FlowTable.create(folder / "flows", messages=SLOTS * 2)
    with Parser(ring, table) as parser:
        Run(ring, table, parser).put(frames)
    return ring, table


def outcome(ring: FrameRing, table: FlowTable) -> tuple[bytes, bytes, bytes, int]:
    """Marks; index, flows and messages; counters; positions. Of a flow that was taken back its
    name may stay, which is not part of it."""
    marks = b"".join(
        bytes(ffi.buffer(ffi.addressof(lib.fc_ring_at(ring.handle, at), "mark")))
        for at in range(ring.parsed)
    )
    header = table.handle.header
    whole = bytearray(ffi.buffer(table.handle.map.base, header.undo_offset))
    for taken_back in range(header.flows_made, header.flows_used):
        at = header.flows_offset + taken_back * ffi.sizeof("struct fc_flow")
        whole[at : at + ffi.offsetof("struct fc_flow", "last_ns")] = bytes(64)
    tables = bytes(whole[4096:]) + bytes(ffi.buffer(ffi.addressof(header, "flows_made"), 24))
    commit = ring.parse_commit()
    return marks, tables, bytes(ffi.buffer(ffi.addressof(commit, "counters"))), commit.at_position


def parse_until_killed(ring: FrameRing, table: FlowTable, seed: float, limit_s: float) -> None:
    """The child: never returns; leaves with 0 when the ring is empty. Dead within limit_s after the
    parser was opened, without a chance to act."""
    code = 1
    try:
        dice = random.Random(seed)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        parser = Parser(ring, table)
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + dice.random() * limit_s)
        while parser.parse(dice.choice([1, 3, 100, 256, 300, 2000])):
            continue
        code = 0
    except BaseException:
        (ring.path.parent / "words").write_text(traceback.format_exc())
    finally:
        os._exit(code)


@pytest.mark.slow
@pytest.mark.parametrize("least", [15, pytest.param(150, marks=pytest.mark.nightly)])
def test_kills_at_random_instants_change_nothing(shm: Path, least: int) -> None:
    frames = hostile_traffic(3)
    calm_ring, calm_table = filled(shm / "calm", frames)
    with Parser(calm_ring, calm_table) as parser:
        assert parser.parse(1 << 20) == SLOTS
    wanted = outcome(calm_ring, calm_table)
    commit = calm_ring.parse_commit()
    counted = counter_values(commit.counters)
    assert counted["refused_messages"] > 100 and counted["send_frames"] > 1000, counted
    assert calm_table.newest_message > 1000 and len(calm_table.flows()) > 48
    dice = random.Random(5)
    kills = rolled_back = 0
    for attempt in range(200):
        ring, table = filled(shm / f"killed{attempt}", frames)
        limit_s = 0.004
        while ring.parsed < SLOTS:
            before, child = ring.parsed, os.fork()
            if child == 0:
                parse_until_killed(ring, table, dice.random(), limit_s)
            status = ended(child)
            # A busy machine lets it do nothing in milliseconds.
            limit_s = 0.004 if ring.parsed > before else 2 * limit_s
            words = ring.path.parent / "words"
            assert status in (0, signal.SIGALRM), words.exists() and words.read_text()
            kills += status == signal.SIGALRM
            header = table.handle.header
            rolled_back += bool(header.undo_used_bytes and header.undo_base_position == ring.parsed)
        assert outcome(ring, table) == wanted
        table.close()
        ring.close()
        for name in ("ring", "flows"):
            (shm / f"killed{attempt}" / name).unlink()
        if kills > least and rolled_back > least // 10:
            break
    assert kills > least and rolled_back > least // 10, (kills, rolled_back)
    calm_table.close()
    calm_ring.close()


def test_a_read_only_table_and_a_pool_too_small_for_the_ring_are_refused(shm: Path) -> None:
    from flowcheck.errors import RingError

    with parsing(shm) as run:
        with (
            FlowTable.open(run.table.path) as reading,
            refused_as(FLOW_TABLE_READ_ONLY, kind=RingError),
        ):
            Parser(run.ring, reading)
        with (
            FlowTable.create(shm / "small", messages=256) as small,
            refused_as(FLOW_TABLE_TOO_SMALL, kind=RingError, messages=256, slots=run.ring.slots),
        ):
            Parser(run.ring, small)


def test_a_torn_journal_is_refused_and_not_obeyed(shm: Path) -> None:
    from flowcheck.errors import RingError

    with parsing(shm) as run:
        header = run.table.handle.header
        for entry, used in [((1 << 40, 8), 24), ((0, 1 << 40), 24), ((0, 0), 1 << 30), ((0, 0), 8)]:
            tail = ffi.new("uint64_t[3]", [0, *entry])
            ffi.buffer(run.table.handle.undo, 24)[:] = ffi.buffer(tail)[:]
            header.undo_used_bytes = used
            with refused_as(FLOW_TABLE_JOURNAL_TORN, kind=RingError):
                Parser(run.ring, run.table)
        header.undo_used_bytes = 0


def killed_before_its_commit(run: Run, parsed: int) -> None:
    """The files as a parser leaves them that is killed when its last span is all but committed.

    Its journal lies where it wrote it, with nothing but zeros behind it.
    """
    header = run.table.handle.header
    words = np.frombuffer(ffi.buffer(run.table.handle.undo, header.undo_bytes), "<u8")
    run.ring.handle.header.parsed = parsed
    assert header.undo_base_position == parsed
    header.undo_used_bytes = 8 * (int(np.flatnonzero(words)[-1]) + 1)


@pytest.mark.parametrize("owners", [2, 3, 4])
def test_a_key_that_changes_hands_twice_in_one_span_comes_back_to_its_owner(
    owners: int, shm: Path
) -> None:
    """The index entry, the counters of flows and each flow, whatever changed how often."""
    lives = [write(bytes([n]) * 700, psn=0, rkey=70 + n) for n in range(owners + 1)]
    with parsing(shm) as run:
        run.put([packet.frame() for packet in lives[0]])
        run.parser.parse(99)
        before = outcome(run.ring, run.table)
        run.put([packet.frame() for life in lives[1:] for packet in life])
        ffi.memmove(run.table.handle.undo, bytes(run.table.handle.header.undo_bytes), 1 << 20)
        run.parser.parse(99)
        wanted = outcome(run.ring, run.table)
        killed_before_its_commit(run, len(lives[0]))
        with Parser(run.ring, run.table) as parser:
            assert outcome(run.ring, run.table)[1:] == before[1:]
            assert parser.parse(99) == 3 * owners
        assert outcome(run.ring, run.table) == wanted
