"""What the operator can mend is one sentence that says what was found."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.utils import RawPcapWriter
from support.eal import Setup, capture, why_not
from support.rings import counted, frames_in

from flowcheck.plane.frame_sources.dpdk_eal import parse_device
from flowcheck.plane.shared_memory.frame_ring import FrameRing

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "DPDK is there"),
]


def sentence_of(shm: Path, device: str, **more: object) -> str:
    (shm / "ring").unlink(missing_ok=True)
    with FrameRing.create(shm / "ring", slots=64, live_source=True) as ring:
        found = capture(Setup(device, [str(ring.path)], **more))  # type: ignore[arg-type]
    sentence = found.get("error") or "; ".join(found["failures"])
    assert sentence, found
    assert "\n" not in sentence and len(sentence) < 700
    return str(sentence)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("net_af_packet0,iface=nosuch0", ("net_af_packet0", "ports: none", "nosuch0")),
        ("net_nosuch0", ("net_nosuch0",)),
        ("0000:ff:1f.7", ("0000:ff:1f.7",)),
        ("net_pcap0,rx_pcap=/nowhere/x.pcap", ("/nowhere/x.pcap", "No such file")),
        ("net_pcap0", ("net_pcap0", "ports: none")),
    ],
)
def test_a_missing_device_is_named(shm: Path, device: str, words: tuple[str, ...]) -> None:
    sentence = sentence_of(shm, device)
    assert all(word in sentence for word in words), sentence


def test_a_missing_engine_is_named(shm: Path) -> None:
    assert "dma_nosuch0" in sentence_of(shm, "net_null0", engines=["dma_nosuch0"])
    sentence = sentence_of(shm, "net_null0", engines=["dma_skeleton0", "0000:ff:1f.7-q3"])
    assert "no copy engine 0000:ff:1f.7-q3 (engines: dma_skeleton0)" in sentence


def test_missing_huge_pages_are_named_when_they_are_insisted_on(shm: Path) -> None:
    # Appended to our own arguments: more memory than any machine has.
    sentence = sentence_of(shm, "net_null0", extra=["-m", "99999999"])
    assert "DPDK did not start" in sentence or "memory" in sentence


def test_more_queues_than_a_port_has_are_refused(shm: Path) -> None:
    with FrameRing.create(shm / "a", slots=64) as a, FrameRing.create(shm / "b", slots=64) as b:
        path = shm / "x.pcap"
        with RawPcapWriter(str(path), linktype=1) as writer:
            writer.write_header(None)
            writer.write_packet(bytes(60))
        found = capture(Setup(f"net_pcap0,rx_pcap={path}", [str(a.path), str(b.path)]))
    assert "1 receive queues, 2 were asked for" in found["error"]


def test_a_torn_file_is_told_by_the_byte_before_dpdk_starts(captures: Path, shm: Path) -> None:
    torn = shm / "torn.pcapng"
    torn.write_bytes((captures / "allreduce_addstep.pcapng").read_bytes()[:100_001])
    sentence = sentence_of(shm, f"net_pcap0,rx_pcap={torn}")
    assert "torn at byte" in sentence


def test_a_file_that_gives_less_than_it_has_is_told(tmp_path: Path, shm: Path) -> None:
    """A file that shrinks after it was read: libpcap ends early, and we do not wait for ever."""
    path = tmp_path / "x.pcap"
    with RawPcapWriter(str(path), linktype=1, sync=True) as writer:
        writer.write_header(None)
        for _ in range(10):
            writer.write_packet(bytes(60))
    # Without its table nothing tells where the file ends, so a count stands in for it.
    with FrameRing.create(shm / "r", slots=64) as ring:
        found = capture(
            Setup(f"net_pcap0,rx_pcap={path}", [str(ring.path)], table=False, frames_max=7)
        )
        assert found["failures"] == [] and len(frames_in(ring)) == 7
        assert counted(ring)["rx_frames"] == 7


def test_af_packet_is_always_given_room_for_whole_frames() -> None:
    assert parse_device("net_af_packet0,iface=e0").argument == (
        "net_af_packet0,iface=e0,blocksz=65536,framesz=8192,framecnt=16384"
    )
    chosen = parse_device("net_af_packet0,iface=e0,framesz=16384")
    assert "framesz=16384" in chosen.options and "framesz=8192" not in chosen.options


def test_a_pci_address_is_completed_and_a_virtual_device_is_not_taken_for_one() -> None:
    assert parse_device("3B:00.1,mprq_en=1").argument == "0000:3b:00.1,mprq_en=1"
    assert not parse_device("net_pcap0").is_pci
    queue = parse_device("6a:01.0-q1,max_queues=4")
    assert (queue.name, queue.argument) == ("0000:6a:01.0-q1", "0000:6a:01.0,max_queues=4")
