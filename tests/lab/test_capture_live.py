"""DPDK's af_packet on a real interface: judged by the bytes a raw socket sent."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.utils import RawPcapWriter
from support.eal import Running, Setup, wait_until, why_not
from support.rings import counted, frames_in, release, slots_in
from support.veth import Veth, veth

from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.stages.packet_capture.capture_stage import QUIET_IDLE_US

WHY_NOT = why_not() or ("" if shutil.which("ip") else "ip (iproute2) is not installed")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "lab is there")]

IFF_PROMISC = 0x100


@pytest.fixture(scope="module")
def cable() -> Iterator[Veth]:
    with veth() as made:
        yield made


def roce_like(count: int, lengths: tuple[int, ...], flows: int = 1) -> list[bytes]:
    """UDP frames of these lengths with random payload; `flows` source ports in turn."""
    draw = random.Random(11)
    made = []
    for index in range(count):
        length = lengths[index % len(lengths)]
        head = _head(length, 50000 + index % flows)
        made.append(head + index.to_bytes(4) + draw.randbytes(length - len(head) - 4))
    return made


@cache
def _head(length: int, port: int) -> bytes:
    """Of a frame so long: Ethernet, IP and UDP."""
    ether = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", type=0x0800)
    ip, udp = IP(src="10.0.0.1", dst="10.0.0.2"), UDP(sport=port, dport=4791, chksum=0)
    return bytes(ether / ip / udp / bytes(length - 42))[:42]


def to_file(path: Path, frames: list[bytes]) -> Path:
    with RawPcapWriter(str(path), linktype=1, sync=True) as writer:
        writer.write_header(None)
        for frame in frames:
            writer.write_packet(frame)
    return path


def adds_up(counters: dict[str, int]) -> bool:
    parts = ("pushed_frames", "ring_full_frames", "oversize_frames")
    return counters.get("rx_frames", 0) == sum(counters.get(name, 0) for name in parts)


@pytest.mark.parametrize("engines", [[], ["dma_skeleton0", "dma_skeleton1"]])
def test_every_frame_sent_arrives_with_the_same_bytes_in_the_same_order(
    cable: Veth, tmp_path: Path, shm: Path, engines: list[str]
) -> None:
    frames = roce_like(3000, (60, 118, 1102, 4174, 8000))
    path = to_file(tmp_path / "x.pcap", frames)
    with FrameRing.create(shm / "ring", slots=4096, slot_bytes=8192, live_source=True) as ring:
        setup = Setup(
            f"net_af_packet0,iface={cable.tap}", [str(ring.path)], engines, mbuf_frame_bytes=8128
        )
        running = Running(setup, cable.namespace)
        assert running.first_line == "ready"
        assert cable.flags() & IFF_PROMISC
        cable.send(path)
        arrived = wait_until(lambda: ring.head == len(frames))
        found = running.finish()
        assert arrived, (ring.head, counted(ring))
        assert frames_in(ring) == frames
        counters = counted(ring)
        stamps = [slot[0] for slot in slots_in(ring)]
    assert found["promiscuous"] and found["driver"] == "net_af_packet"
    assert counters["rx_frames"] == len(frames) and adds_up(counters)
    assert "interface_missed_frames" not in counters
    assert "snapped_frames" not in counters
    by_engine = counters.get("engine_copied_frames", 0)
    handled = by_engine + counters.get("engine_refused_frames", 0)
    assert handled == (len(frames) if engines else 0)
    assert bool(by_engine) == bool(engines)
    assert stamps == sorted(stamps) and stamps[0] > 10**18
    assert not cable.flags() & IFF_PROMISC, "promiscuous mode was left on"


def test_a_vlan_tag_the_kernel_took_off_is_back_in_the_frame(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    plain = roce_like(1, (300,))[0]
    tagged = bytes(
        Ether(plain[:12] + b"\x81\x00" + bytes(Dot1Q(vlan=77, type=0x0800)) + plain[14:])
    )
    path = to_file(tmp_path / "x.pcap", [tagged] * 5)
    with FrameRing.create(shm / "ring", slots=16, live_source=True) as ring:
        running = Running(
            Setup(f"net_af_packet0,iface={cable.tap}", [str(ring.path)]), cable.namespace
        )
        cable.send(path)
        wait_until(lambda: ring.head == 5)
        running.finish()
        assert frames_in(ring) == [tagged] * 5


def eight_rests_us(running: Running) -> float:
    """How long eight pauses of the capture take; counted pauses beyond eight make it shorter."""
    before, began_s = running.rests(), time.monotonic()
    assert wait_until(lambda: running.rests() >= before + 8), "it does not rest"
    return (time.monotonic() - began_s) * 1e6 * 8 / (running.rests() - before)


def test_a_quiet_interface_is_looked_at_less_often_and_its_next_frames_are_all_taken(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(3000, (1102,))
    path = to_file(tmp_path / "x.pcap", frames)
    device = f"net_af_packet0,iface={cable.tap}"
    with FrameRing.create(shm / "ring", slots=4096, live_source=True) as ring:
        setup = Setup(device, [str(ring.path)], idle_us=50, idle_max_us=QUIET_IDLE_US)
        running = Running(setup, cable.namespace)
        assert wait_until(lambda: running.rests() > 5 * 64), "it does not pause"
        # A frame of the kernel's own begins the short pauses anew: some eight follow one another
        # that are as long as they may become.
        assert wait_until(lambda: eight_rests_us(running) > 8 * QUIET_IDLE_US / 2), "short pauses"
        cable.send(path, pause_every=0)
        wait_until(lambda: ring.head == len(frames))
        running.finish()
        assert frames_in(ring) == frames and "interface_missed_frames" not in counted(ring)


def test_frames_the_kernel_dropped_before_us_are_counted(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(4000, (1102,))
    path = to_file(tmp_path / "x.pcap", frames)
    device = f"net_af_packet0,iface={cable.tap},framecnt=8"
    with FrameRing.create(shm / "ring", slots=4096, live_source=True) as ring:
        # A pause of 100 ms per idle turn, and room for 8 frames in the kernel's ring.
        running = Running(Setup(device, [str(ring.path)], idle_us=100_000), cable.namespace)
        cable.send(path, pause_every=0)
        running.finish()
        counters = counted(ring)
        assert set(frames_in(ring)) <= set(frames)
    assert counters["interface_missed_frames"] > 0
    assert counters["rx_frames"] + counters["interface_missed_frames"] == len(frames)
    assert "nic_missed_frames" not in counters, "DPDK learned to count them: take its word"


def test_frames_that_wait_in_the_kernel_for_seconds_are_at_no_time_counted_as_dropped(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(500, (1102,))
    path = to_file(tmp_path / "x.pcap", frames)
    with FrameRing.create(shm / "ring", slots=4096, live_source=True) as ring:
        # Pauses of 5 s: as on a machine that does much else.
        setup = Setup(f"net_af_packet0,iface={cable.tap}", [str(ring.path)], idle_us=5_000_000)
        running = Running(setup, cable.namespace)
        assert wait_until(lambda: running.rests() > 4)
        cable.send(path, pause_every=0)
        told: set[int] = set()

        def has_all() -> bool:
            told.add(counted(ring).get("interface_missed_frames", 0))
            return ring.head == len(frames)

        assert wait_until(has_all)
        running.finish()
        told.add(counted(ring).get("interface_missed_frames", 0))
        assert frames_in(ring) == frames and told == {0}


def test_frames_cut_by_too_small_a_kernel_ring_are_counted_as_snapped(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(40, (1102, 4174))
    path = to_file(tmp_path / "x.pcap", frames)
    device = f"net_af_packet0,iface={cable.tap},framesz=2048,blocksz=4096"
    with FrameRing.create(shm / "ring", slots=64, live_source=True) as ring:
        running = Running(Setup(device, [str(ring.path)]), cable.namespace)
        cable.send(path)
        wait_until(lambda: ring.head == len(frames))
        running.finish()
        assert [slot[2] for slot in slots_in(ring)] == [len(frame) for frame in frames]
        assert [slot[1] for slot in slots_in(ring)] == [1102, 1982] * 20
        assert counted(ring)["snapped_frames"] == 20


def test_a_full_ring_drops_and_counts_and_goes_on_when_there_is_room(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(1000, (200,))
    first, second = to_file(tmp_path / "1", frames), to_file(tmp_path / "2", frames[:10])
    for engines in ([], ["dma_skeleton0"]):
        with FrameRing.create(shm / f"ring{len(engines)}", slots=64, live_source=True) as ring:
            setup = Setup(f"net_af_packet0,iface={cable.tap}", [str(ring.path)], engines)
            running = Running(setup, cable.namespace)
            cable.send(first)
            assert wait_until(lambda r=ring: counted(r).get("rx_frames") == 1000)  # type: ignore[misc]
            assert frames_in(ring) == frames[:64]
            release(ring, 64)
            cable.send(second)
            assert wait_until(lambda r=ring: r.head == 74)  # type: ignore[misc]
            running.finish()
            assert frames_in(ring) == frames[:10]
            counters = counted(ring)
        assert counters["ring_full_frames"] == 1000 - 64
        assert counters["pushed_frames"] == 74 and adds_up(counters)


def test_two_queues_share_the_flows_and_keep_the_order_of_each(
    cable: Veth, tmp_path: Path, shm: Path
) -> None:
    frames = roce_like(2000, (300,), flows=16)
    path = to_file(tmp_path / "x.pcap", frames)
    device = f"net_af_packet0,iface={cable.tap},qpairs=2"
    with (
        FrameRing.create(shm / "a", slots=2048, live_source=True) as a,
        FrameRing.create(shm / "b", slots=2048, live_source=True) as b,
    ):
        engines = ["dma_skeleton0", "dma_skeleton1"]
        running = Running(Setup(device, [str(a.path), str(b.path)], engines), cable.namespace)
        cable.send(path)
        assert wait_until(lambda: a.head + b.head == len(frames))
        running.finish()
        parts = [frames_in(a), frames_in(b)]
        assert all(parts), "one queue got every flow"
        assert "interface_missed_frames" not in counted(a)
    assert sorted(parts[0] + parts[1]) == sorted(frames)
    for port in range(50000, 50016):
        key = port.to_bytes(2)
        arrived = [[f for f in part if f[34:36] == key] for part in parts]
        assert [] in arrived, "a flow was spread over two queues"
        assert arrived[0] + arrived[1] == [f for f in frames if f[34:36] == key]
