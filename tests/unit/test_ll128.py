"""LL128 lines into the gradient: groups cut by the path MTU, lost packets, lines nobody wrote."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.extraction import FLOW, RECEIVER, SENDER, Bench, bench

from flowcheck.lab.synthetic_traffic.roce_frames import frame, write_packets
from flowcheck.wire.training_job.connection_messages import SendKind
from flowcheck.wire.training_job.flow_plan import SEGMENT, SEND, FlowPlan, MessageTable

ORDERS = {"since 2.10": 1, "before 2.10": 3}
LL128, LINEAR = ORDERS.values()
GRADIENT_BYTES = 1 << 16
UNIT_BYTES = 4
RAGGED = (4, 120, 1916, 1920, 1924, 5000, 7680, 12_344)
Segments = Sequence[tuple[int, int, int]]
"""(data_byte, data_bytes, dst_byte)."""


def data_units(unit: int) -> tuple[int | None, int]:
    """(data byte of the low 8, data byte of the high 8 or -1) of wire 16-byte unit `unit` of a
    group: where NCCL's registers go (src/device/prims_ll128.h), as a rule of index."""
    g, lane = divmod(unit, 32)
    if lane % 8 != 7:
        at = 16 * (32 * g - 4 * (g // 2) + lane - (g % 2) * (lane // 8))
        return at, at + 8
    return 16 * (60 * (g // 2) + lane) + 8 * (g % 2), -1


def linear_units(unit: int) -> tuple[int, int]:
    """The same before NCCL 2.10: of each line of eight units the last half one is the flag."""
    line, place = divmod(unit, 8)
    at = 120 * line + 16 * place
    return at, at + 8 if place < 7 else -1


def wire_of(data: bytes, flag: int, seed: int, order: int) -> tuple[bytes, NDArray[np.int64]]:
    """(the message, [wire bytes] data byte or -1 each of them is); garbage behind the data."""
    groups = -(-len(data) // 1920)
    filled = data + random.Random(seed).randbytes(1920 * groups - len(data))
    wire, home = bytearray(), []
    for group in range(groups):
        for unit in range(128):
            low, high = linear_units(unit) if order == LINEAR else data_units(unit)
            for at in (low, high):
                if at == -1 or at is None:
                    wire += struct.pack("<Q", flag)
                    home += [-1] * 8
                else:
                    start = 1920 * group + at
                    wire += filled[start : start + 8]
                    home += range(start, start + 8)
    return bytes(wire), np.array(home)


def plan_of(wire_bytes: int, segments: Segments, order: int) -> FlowPlan:
    row = np.zeros(1, SEND)
    row["wire_bytes"], row["segments"] = wire_bytes, len(segments)
    row["protocol"], row["kind"] = order, SendKind.FINAL
    none = MessageTable(sends=np.zeros(0, SEND), segments=np.array([], SEGMENT))
    table = MessageTable(sends=row, segments=np.array(list(segments), SEGMENT))
    return FlowPlan(flow=FLOW, first_number=0, first=table, each=none)


def check(
    folder: Path,
    pmtu_bytes: int,
    data: bytes,
    segments: Segments,
    *,
    order: int,
    lost: frozenset[int] = frozenset(),
    shuffled: int | None = None,
    bad_line: int | None = None,
) -> int:
    """One message, what of it must be in the gradient, by this file's own rule. `lost`: packets;
    `bad_line`: of which the flag is a step old. Returns how many bytes were there."""
    wire, home = wire_of(data, 1, len(data), order)
    if bad_line is not None:
        old = bytearray(wire)
        old[128 * bad_line + 120] = 200
        wire = bytes(old)
    frames = frames_of(wire, pmtu_bytes)
    there = np.ones(len(wire), bool)
    for packet in lost:
        there[packet * pmtu_bytes : (packet + 1) * pmtu_bytes] = False
    if bad_line is not None:
        there[128 * bad_line : 128 * (bad_line + 1)] = False
    known = np.zeros(-(-len(data) // 1920) * 1920, bool)
    known[home[there & (home >= 0)]] = True
    gradient, covered = np.zeros(GRADIENT_BYTES, np.uint8), np.zeros(GRADIENT_BYTES, bool)
    for at, size, dst in segments:
        part = known[at : at + size]
        gradient[dst : dst + size][part] = np.frombuffer(data, np.uint8)[at : at + size][part]
        covered[dst : dst + size] |= part
    kept = [i for i in range(len(frames)) if i not in lost]
    rest = kept[1:]
    if shuffled is not None:
        random.Random(shuffled).shuffle(rest)
    with bench(folder, gradient_bytes=GRADIENT_BYTES, unit_bytes=UNIT_BYTES) as run:
        run.shard.begin(0, 1)
        run.feed([frames[kept[0]]])
        run.extractor.extract(run.ring.slots)
        run.extractor.install_plan(plan_of(len(wire), segments, order))
        run.extractor.assign_staged()
        run.feed([frames[i] for i in rest])
        run.extractor.extract(run.ring.slots)
        run.extractor.assign_staged()
        got = np.frombuffer(run.shard.gradient(0).tobytes(), np.uint8)
        assert (run.covered() == covered).all()
        assert (got[covered] == gradient[covered]).all()
        counters = run.counters()
        assert counters["conflict_bytes"] == 0
        assert counters["flag_mismatch_lines"] == (bad_line is not None)
        if lost:
            check_copies(run, wire, home, pmtu_bytes, gradient, covered, segments)
    return int(covered.sum())


def frames_of(wire: bytes, pmtu_bytes: int) -> list[bytes]:
    parts = write_packets(
        wire,
        dest_qp=FLOW.dest_qp,
        psn=0,
        va=0x1000,
        rkey=9,
        pmtu_bytes=pmtu_bytes,
        immediate=struct.pack("<I", len(wire)),
    )
    return [frame(SENDER, RECEIVER, 50000, part) for part in parts]


def check_copies(
    run: Bench,
    wire: bytes,
    home: NDArray[np.int64],
    pmtu_bytes: int,
    gradient: NDArray[np.uint8],
    covered: NDArray[np.bool_],
    segments: Segments,
) -> None:
    """The step goes on as it is. Then all packets come again; then all, with every data byte behind
    the first packet another: what is there differs, and nothing is added."""
    run.shard.mark_partial(0)
    behind = (home >= 0) & (np.arange(len(home)) >= pmtu_bytes)
    other = (np.frombuffer(wire, np.uint8) ^ behind.astype(np.uint8)).tobytes()
    changed = np.isin(np.arange(home.max() + 1), home[behind])
    differs = sum(int(changed[a : a + n][covered[to : to + n]].sum()) for a, n, to in segments)
    for copies, conflicts in ((wire, 0), (other, differs)):
        run.feed(frames_of(copies, pmtu_bytes))
        run.extractor.extract(run.ring.slots)
        run.extractor.assign_staged()
        assert (run.covered() == covered).all()
        assert run.shard.gradient(0).tobytes() == gradient.tobytes()
        assert run.shard.conflict_bytes(0) == conflicts


every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())


def made(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@every_order
@pytest.mark.parametrize("pmtu_bytes", [256, 512, 1024, 4096])
@pytest.mark.parametrize("size", RAGGED)
def test_every_byte_comes_home(shm: Path, order: int, pmtu_bytes: int, size: int) -> None:
    assert check(shm, pmtu_bytes, made(size), [(0, size, 64)], order=order) == size


@every_order
@pytest.mark.parametrize("pmtu_bytes", [256, 512, 1024, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_segments_begin_and_end_inside_groups(
    shm: Path, order: int, pmtu_bytes: int, seed: int
) -> None:
    draw = random.Random(seed)
    size = 12_344
    cuts = sorted(draw.sample(range(4, size, 4), 7))
    homes = list(range(0, GRADIENT_BYTES, GRADIENT_BYTES // 8))
    draw.shuffle(homes)
    ends = zip([0, *cuts], [*cuts, size], homes, strict=True)
    pieces = [(a, b - a, home) for a, b, home in ends]
    del pieces[draw.randrange(8)]
    assert check(shm, pmtu_bytes, made(size), pieces, order=order) == sum(n for _, n, _ in pieces)


@every_order
@pytest.mark.parametrize("pmtu_bytes", [256, 512, 1024, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_lost_packets_leave_their_bytes_missing_and_no_other(
    shm: Path, order: int, pmtu_bytes: int, seed: int
) -> None:
    packets = -(-12_344 // 1920) * 2048 // pmtu_bytes
    lost = frozenset(random.Random(seed).sample(range(1, packets), 1 + packets // 5))
    parts = [(0, 1000, 40_000), (1004, 11_340, 4)]
    there = check(shm, pmtu_bytes, made(12_344), parts, lost=lost, order=order)
    assert 0 < there < 12_340


@every_order
@pytest.mark.parametrize("pmtu_bytes", [256, 512, 1024, 4096])
@pytest.mark.parametrize("seed", range(3))
def test_packets_out_of_order_end_in_the_same_bytes(
    shm: Path, order: int, pmtu_bytes: int, seed: int
) -> None:
    whole = [(0, 12_344, 0)]
    assert check(shm, pmtu_bytes, made(12_344), whole, shuffled=seed, order=order) == 12_344


@every_order
@pytest.mark.parametrize("pmtu_bytes", [256, 1024, 4096])
@pytest.mark.parametrize("line", [1, 3, 6, 9, 15, 17, 31])
def test_a_line_of_another_step_is_not_believed(
    shm: Path, order: int, pmtu_bytes: int, line: int
) -> None:
    whole = [(0, 7680, 0)]
    assert check(shm, pmtu_bytes, made(7680), whole, bad_line=line, order=order) == 7680 - 120
