"""What the operator can mend is one sentence that says what was found."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from scapy.utils import RawPcapWriter
from support.eal import Setup, capture, why_not
from support.refused_as import says
from support.rings import counted, frames_in

from flowcheck.findings.catalog import dpdk_failures as dpdk
from flowcheck.findings.catalog.capture_file_problems import IS_MISSING, IS_TORN
from flowcheck.findings.catalog.capture_file_reasons import TORN_IN_BLOCK
from flowcheck.findings.finding import Entry, Finding
from flowcheck.plane.frame_sources.dpdk_eal import parse_device
from flowcheck.plane.shared_memory.frame_ring import FrameRing

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "DPDK is there"),
]


def refusal_of(shm: Path, device: str, **more: object) -> Finding:
    (shm / "ring").unlink(missing_ok=True)
    with FrameRing.create(shm / "ring", slots=64, live_source=True) as ring:
        found = capture(Setup(device, [str(ring.path)], **more))  # type: ignore[arg-type]
    sentence = found["error"]
    assert "\n" not in sentence and len(sentence) < 700
    return msgspec.convert(found["finding"], Finding)


NO_PORT = (dpdk.PORT_MISSING, dpdk.PORT_NOT_PROBED)
NO_ENGINE = (dpdk.ENGINE_MISSING, dpdk.ENGINE_NOT_PROBED)


@pytest.mark.parametrize(
    ("device", "wanted", "arguments"),
    [
        ("net_af_packet0,iface=nosuch0", NO_PORT, {"name": "net_af_packet0", "ports": "none"}),
        ("net_nosuch0", (*NO_PORT, dpdk.DPDK_NOT_STARTED), {}),
        ("0000:ff:1f.7", (*NO_PORT, dpdk.DPDK_NOT_STARTED), {}),
        ("net_pcap0,rx_pcap=/nowhere/x.pcap", (IS_MISSING,), {"path": "/nowhere/x.pcap"}),
        ("net_pcap0", NO_PORT, {"name": "net_pcap0", "ports": "none"}),
    ],
)
def test_a_missing_device_is_named(
    shm: Path, device: str, wanted: tuple[Entry, ...], arguments: dict[str, str]
) -> None:
    found = refusal_of(shm, device)
    assert says(found, *wanted, **arguments), found
    assert re.split("[,=]", device)[-1] in str(found)


def test_a_missing_engine_is_named(shm: Path) -> None:
    found = refusal_of(shm, "net_null0", engines=["dma_nosuch0"])
    assert says(found, *NO_ENGINE, dpdk.DPDK_NOT_STARTED) and "dma_nosuch0" in str(found)
    found = refusal_of(shm, "net_null0", engines=["dma_skeleton0", "0000:ff:1f.7-q3"])
    assert says(found, *NO_ENGINE, name="0000:ff:1f.7-q3", engines="dma_skeleton0"), found


def test_missing_huge_pages_are_named_when_they_are_insisted_on(shm: Path) -> None:
    # Appended to our own arguments: more memory than any machine has.
    found = refusal_of(shm, "net_null0", extra=["-m", "99999999"])
    assert says(found, dpdk.DPDK_NOT_STARTED, dpdk.PORT_BUFFERS_WITHOUT_MEMORY), found


def test_more_queues_than_a_port_has_are_refused(shm: Path) -> None:
    with FrameRing.create(shm / "a", slots=64) as a, FrameRing.create(shm / "b", slots=64) as b:
        path = shm / "x.pcap"
        with RawPcapWriter(str(path), linktype=1) as writer:
            writer.write_header(None)
            writer.write_packet(bytes(60))
        found = capture(Setup(f"net_pcap0,rx_pcap={path}", [str(a.path), str(b.path)]))
    finding = msgspec.convert(found["finding"], Finding)
    assert says(finding, dpdk.PORT_QUEUES_TOO_MANY, name="net_pcap0", queues=1, wanted=2)


def test_a_torn_file_is_told_by_the_byte_before_dpdk_starts(captures: Path, shm: Path) -> None:
    torn = shm / "torn.pcapng"
    torn.write_bytes((captures / "allreduce_addstep.pcapng").read_bytes()[:100_001])
    found = refusal_of(shm, f"net_pcap0,rx_pcap={torn}")
    assert says(found, IS_TORN, path=str(torn), bytes=100_001, what=TORN_IN_BLOCK), found


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
