"""A killed capture goes on where its ring's last commit says; floods are counted."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader, RawPcapWriter
from support.eal import Running, Setup, capture, wait_until, why_not
from support.rings import counted, frames_in, slots_in

from flowcheck.plane.shared_memory.frame_ring import FrameRing

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "DPDK is there"),
]


@pytest.mark.parametrize("engines", [[], ["dma_skeleton0", "dma_skeleton1"]])
def test_kills_neither_lose_nor_double_a_frame_of_a_file(
    tmp_path: Path, shm: Path, engines: list[str]
) -> None:
    draw = random.Random(3)
    frames = [draw.randbytes(draw.choice((60, 1102, 4174, 5000))) for _ in range(4000)]
    path = tmp_path / "x.pcap"
    with RawPcapWriter(str(path), linktype=1, sync=True) as writer:
        writer.write_header(None)
        for index, frame in enumerate(frames):
            writer.write_packet(frame, sec=0, usec=index * 500)
    fits = [frame for frame in frames if len(frame) <= 4288]
    hits = 0
    with FrameRing.create(shm / "ring", slots=4096) as ring:
        setup = Setup(
            f"net_pcap0,rx_pcap={path}", [str(ring.path)], engines, speed=4.0, order="shuffled"
        )
        for _ in range(4):
            before = ring.head
            running = Running(setup)
            assert running.first_line == "ready"
            assert wait_until(lambda at=before: ring.head > at + 50)  # type: ignore[misc]
            running.kill()
            hits += before < ring.head < len(fits)
        found = capture(Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], engines))
        assert found["failures"] == []
        assert frames_in(ring) == fits
        counters = counted(ring)
        ordinals = [slot[3] for slot in slots_in(ring)]
    assert hits == 4, "a kill missed the stream"
    assert counters["rx_frames"] == len(frames)
    assert counters["pushed_frames"] == len(fits)
    assert counters["oversize_frames"] == len(frames) - len(fits)
    assert [frames[ordinal] for ordinal in ordinals] == fits


@pytest.mark.parametrize("engines", [[], ["dma_skeleton0"]])
def test_a_flood_is_taken_in_whole_while_slots_are_freed(shm: Path, engines: list[str]) -> None:
    """net_null makes frames as fast as they are taken; a file-like ring stops it when full."""
    with FrameRing.create(shm / "ring", slots=1024) as ring:
        done = threading.Event()

        def free_slots() -> None:
            while not done.is_set():
                ring.handle.reader.tail = ring.head
                time.sleep(0)

        reader = threading.Thread(target=free_slots)
        reader.start()
        found = capture(
            Setup("net_null0,size=1102,copy=1", [str(ring.path)], engines, frames_max=200_000)
        )
        done.set()
        reader.join()
        counters = counted(ring)
        assert found["failures"] == []
        assert ring.head == 200_000 == counters["rx_frames"] == counters["pushed_frames"]
        assert counters["rx_bytes"] == 200_000 * 1102


def test_a_flood_nobody_reads_is_dropped_and_counted(shm: Path) -> None:
    with FrameRing.create(shm / "ring", slots=256, live_source=True) as ring:
        capture(Setup("net_null0,size=64", [str(ring.path)], frames_max=100_000))
        counters = counted(ring)
    assert counters["pushed_frames"] == 256
    assert counters["ring_full_frames"] == 100_000 - 256
    assert counters["rx_frames"] == 100_000


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("limit", [10, 33, 700, 8000])
def test_frames_in_segments_of_any_size_are_gathered_from_a_net_ring(
    captures: Path, tmp_path: Path, shm: Path, limit: int
) -> None:
    path = captures / "iter_40000_p2p_iter2.pcapng"
    with RawPcapReader(str(path)) as reader:
        frames = [frame for frame, _ in reader]
    library = tmp_path / "feed.so"
    source = Path(__file__).parents[1] / "support" / "feed.c"
    words = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "libdpdk"], capture_output=True, text=True, check=True
    ).stdout.split()
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), *words]
    subprocess.run(command, check=True, timeout=60)
    feed = {"library": str(library), "file": str(path), "limit": limit}
    with FrameRing.create(shm / "ring", slots=1024, live_source=True) as ring:
        setup = Setup(
            "net_ring0", [str(ring.path)], ["dma_skeleton0"], feed=feed, frames_max=len(frames)
        )
        assert capture(setup)["failures"] == []
        assert frames_in(ring) == frames
        counters = counted(ring)
    in_parts = sum(len(frame) > limit for frame in frames)
    assert counters.get("multi_segment_frames", 0) == in_parts
    by_engine = counters.get("engine_copied_frames", 0)
    # Frames in parts are the CPU's; others too, when the engine's queue is full.
    assert by_engine + counters.get("engine_refused_frames", 0) >= len(frames) - in_parts
    assert by_engine <= len(frames) - in_parts
    assert "snapped_frames" not in counters


def test_an_idle_capture_rests(shm: Path) -> None:
    with FrameRing.create(shm / "ring", slots=256, live_source=True) as ring:
        running = Running(Setup("net_ring0", [str(ring.path)], idle_us=200))
        pid = running._process.pid
        spent, began_s = [cpu_seconds(pid)], time.monotonic()
        time.sleep(1.0)
        spent.append(cpu_seconds(pid))
        share = (spent[1] - spent[0]) / (time.monotonic() - began_s)
        running.finish()
    assert share < 0.5, "an idle capture used half a core or more"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(subprocess.run(["getconf", "CLK_TCK"], capture_output=True, check=True).stdout)
    return (int(fields[11]) + int(fields[12])) / ticks
