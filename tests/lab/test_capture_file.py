"""DPDK reads a capture file into a ring: judged by scapy's reader, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader, RawPcapWriter
from support.eal import Setup, capture, why_not
from support.rings import counted, frames_in, slots_in

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.frame_ring import FrameRing

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "DPDK is there"),
]

SIZES = (60, 64, 128, 1102, 1514, 4174, 4288)


def random_frames(count: int, sizes: tuple[int, ...] = SIZES) -> list[bytes]:
    draw = random.Random(7)
    return [draw.randbytes(draw.choice(sizes)) for _ in range(count)]


def write(path: Path, frames: list[bytes], *, step_s: float = 0.001) -> Path:
    with RawPcapWriter(str(path), linktype=1, sync=True) as writer:
        writer.write_header(None)
        for index, frame in enumerate(frames):
            micros = round(index * step_s * 1e6)
            writer.write_packet(frame, sec=100 + micros // 10**6, usec=micros % 10**6)
    return path


@pytest.mark.parametrize("engines", [[], ["dma_skeleton0"], ["dma_skeleton0", "dma_skeleton1"]])
def test_a_real_capture_arrives_whole_and_in_order(
    captures: Path, shm: Path, engines: list[str]
) -> None:
    path = captures / "iter_40000_p2p_iter10.pcapng"
    with RawPcapReader(str(path)) as reader:
        expected = [frame for frame, _ in reader]
    with FrameRing.create(shm / "ring", slots=2048) as ring:
        ring.handle.header.icrc_every = 1  # as a parser does that checks all
        found = capture(
            Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], engines, order="reversed")
        )
        assert frames_in(ring) == expected
        noted = [bool(lib.fc_ring_at(ring.handle, n).icrc_l3_at) for n in range(ring.head)]
        counters = counted(ring)
    assert found["failures"] == []
    assert found["affinity_kept"]
    assert counters["rx_frames"] == counters["pushed_frames"] == len(expected)
    assert counters["rx_bytes"] == sum(map(len, expected))
    # A busy machine fills an engine's queue now and then; then the CPU copies.
    by_engine = counters.get("engine_copied_frames", 0)
    handled = by_engine + counters.get("engine_refused_frames", 0)
    assert handled == (len(expected) if engines else 0)
    assert bool(by_engine) == bool(engines)
    right = [has_right_icrc(frame) for frame in expected]
    assert any(right)
    if not engines:
        assert noted == right
    assert sum(noted) <= len(expected) - by_engine
    assert all(right[n] for n in range(len(noted)) if noted[n])


def has_right_icrc(frame: bytes) -> bool:
    packet = ffi.new("struct fc_packet *")
    verdict = lib.fc_parse_frame_verdict(frame, len(frame), len(frame), packet)
    return bool(packet.flags & lib.FC_PACKET_ICRC_CHECKED) and verdict != lib.FC_ICRC_BAD


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
@pytest.mark.parametrize("by_iova", [False, True])
def test_copies_that_overtake_each_other_never_show(
    tmp_path: Path, shm: Path, order: str, by_iova: bool
) -> None:
    frames = random_frames(6000)
    path = write(tmp_path / "x.pcap", frames)
    with FrameRing.create(shm / "ring", slots=8192) as ring:
        engines = ["dma_skeleton0", "dma_skeleton1", "dma_skeleton2"]
        found = capture(
            Setup(
                f"net_pcap0,rx_pcap={path}", [str(ring.path)], engines,
                order=order, by_iova=by_iova,
            )
        )  # fmt: skip
        assert found.get("failures") == [], found
        assert found["overtaken"][0] > 100, "the test did not make any copy overtake another"
        assert frames_in(ring) == frames
        counters = counted(ring)
    done_by = counters["engine_copied_frames"] + counters.get("engine_refused_frames", 0)
    assert done_by == counters["pushed_frames"] == len(frames)


def test_frames_in_several_buffers_are_gathered_and_longer_than_a_slot_are_counted(
    tmp_path: Path, shm: Path
) -> None:
    frames = random_frames(300, (700, 4288, 9000, 20000))
    path = write(tmp_path / "x.pcap", frames)
    fits = [frame for frame in frames if len(frame) <= 16384 - 64]
    for engines in ([], ["dma_skeleton0"]):
        with FrameRing.create(shm / f"ring{len(engines)}", slots=512, slot_bytes=16384) as ring:
            capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], engines))
            assert frames_in(ring) == fits
            counters = counted(ring)
        assert counters["rx_frames"] == len(frames)
        assert counters["oversize_frames"] == len(frames) - len(fits)
        assert counters["multi_segment_frames"] == sum(len(frame) > 8192 for frame in frames)
        if engines:
            in_one = sum(len(frame) <= 8192 for frame in fits)
            by_engine = counters["engine_copied_frames"]
            assert 0 < by_engine <= in_one
            assert by_engine + counters["engine_refused_frames"] == len(fits)


def test_time_stamps_and_lengths_on_the_wire_are_the_files(captures: Path, shm: Path) -> None:
    path = captures / "allreduce_addstep.pcapng"
    with RawPcapReader(str(path)) as reader:
        metadata = [meta for _, meta in reader]
    stamps = [((m.tshigh << 32) + m.tslow) * 10**9 // m.tsresol for m in metadata]
    with FrameRing.create(shm / "ring", slots=2048) as ring:
        capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)]))
        slots = slots_in(ring)
    assert [slot[0] for slot in slots] == stamps
    assert [slot[2] for slot in slots] == [m.wirelen for m in metadata]
    assert [slot[3] for slot in slots] == list(range(len(metadata)))


def test_frames_cut_by_the_file_are_pushed_and_counted_as_snapped(
    tmp_path: Path, shm: Path
) -> None:
    path = tmp_path / "cut.pcap"
    with RawPcapWriter(str(path), linktype=1, snaplen=100) as writer:
        writer.write_header(None)
        for length in (60, 1102, 99, 4174):
            writer.write_packet(bytes(min(100, length)), caplen=min(100, length), wirelen=length)
    with FrameRing.create(shm / "ring", slots=16) as ring:
        capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)]))
        assert [slot[2] for slot in slots_in(ring)] == [60, 1102, 99, 4174]
        assert counted(ring)["snapped_frames"] == 2


@pytest.mark.parametrize(("step_s", "speed"), [(0.005, 1.0), (1.5, 600.0)])
def test_the_loop_keeps_the_files_pace(
    tmp_path: Path, shm: Path, step_s: float, speed: float
) -> None:
    path = write(tmp_path / "x.pcap", random_frames(200, (100,)), step_s=step_s)
    with FrameRing.create(shm / "ring", slots=256) as ring:
        found = capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], speed=speed))
        assert ring.head == 200
    # The lower bound is exact; the upper one, a fifth of what the second was recorded in, allows
    # for a busy machine.
    assert 199 * step_s / speed <= found["seconds"] < 60.0


def test_a_frame_count_ends_the_capture_early(tmp_path: Path, shm: Path) -> None:
    frames = random_frames(500)
    path = write(tmp_path / "x.pcap", frames)
    with FrameRing.create(shm / "ring", slots=512) as ring:
        capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], frames_max=123))
        assert frames_in(ring) == frames[:123]


def test_two_files_on_two_queues_fill_two_rings(tmp_path: Path, shm: Path) -> None:
    frames = [random_frames(400), random_frames(700)[300:]]
    paths = [write(tmp_path / f"{n}.pcap", part) for n, part in enumerate(frames)]
    device = "net_pcap0," + ",".join(f"rx_pcap={path}" for path in paths)
    with FrameRing.create(shm / "a", slots=512) as a, FrameRing.create(shm / "b", slots=512) as b:
        found = capture(
            Setup(device, [str(a.path), str(b.path)], ["dma_skeleton0", "dma_skeleton1"])
        )
        assert found["failures"] == []
        assert [frames_in(a), frames_in(b)] == frames
