"""One frame, one verdict: frames built by scapy, cut, padded and contradicting themselves."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, LLC, SNAP, STP, Dot1AD, Dot1Q, Dot3, Ether
from scapy.packet import Raw
from support.transport import (
    ACK,
    FIRST,
    LAST,
    LAST_IMM,
    MIDDLE,
    ONLY,
    ONLY_IMM,
    READ_REQUEST,
    SEND_ONLY,
    Packet,
    parsed,
)

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.packet_counters import VERDICTS

UDP_ROCE = UDP(sport=49999, dport=4791, chksum=0)


def said(frame: bytes, wire_bytes: int | None = None) -> str:
    out = ffi.new("struct fc_packet *")
    verdict = lib.fc_parse_frame_verdict(frame, len(frame), wire_bytes or len(frame), out)
    assert verdict == out.verdict
    return VERDICTS[verdict]


def decoded(frame: bytes) -> object:
    out = ffi.new("struct fc_packet *")
    lib.fc_parse_frame_verdict(frame, len(frame), len(frame), out)
    return out


NOT_ROCE = {
    "arp": Ether() / ARP(),
    "lldp": Ether(type=0x88CC) / Raw(bytes(46)),
    "ptp": Ether(type=0x88F7) / Raw(bytes(46)),
    "stp": Dot3() / LLC() / STP(),
    "llc_other": Dot3() / LLC(dsap=0xFE, ssap=0xFE, ctrl=3) / Raw(bytes(40)),
    "tcp": Ether() / IP() / TCP(),
    "icmp": Ether() / IP() / ICMP(),
    "udp_other": Ether() / IP() / UDP(sport=68, dport=67) / BOOTP() / DHCP(options=["end"]),
    "ip_other": Ether() / IP(proto=89) / Raw(bytes(40)),
    "ethernet_other": Ether(type=0x8808) / Raw(bytes(46)),
    "roce_other": Ether(type=0x8915) / Raw(bytes(60)),
    "unknown": Ether(type=0x0BAD) / Raw(bytes(46)),
    "fragment": Ether() / IP(flags="MF") / UDP_ROCE / Raw(bytes(40)),
}


ENCRYPTED = [
    Ether(type=0x88E5) / Raw(bytes(60)),
    Ether() / IP(proto=50) / Raw(bytes(60)),
    Ether() / IPv6(nh=50) / Raw(bytes(60)),
    Ether() / IP() / UDP(sport=4500, dport=4500) / Raw(b"\0\0\x10\1" + bytes(60)),
    Ether() / IP() / UDP(sport=50000, dport=1000) / Raw(bytes(60)),
]


@pytest.mark.parametrize("frame", ENCRYPTED)
def test_what_is_encrypted_has_one_as_well(frame: Ether) -> None:
    assert said(bytes(frame)) == "encrypted"


def test_a_key_exchange_on_the_port_of_encrypted_traffic_is_in_clear() -> None:
    frame = Ether() / IP() / UDP(sport=4500, dport=4500) / Raw(bytes(60))
    assert said(bytes(frame)) == "udp_other"


@pytest.mark.parametrize("verdict", NOT_ROCE)
def test_what_is_not_roce_has_a_verdict_of_its_own(verdict: str) -> None:
    assert said(bytes(NOT_ROCE[verdict])) == verdict


def test_the_same_over_ipv6_and_tags() -> None:
    assert said(bytes(Ether() / Dot1AD() / Dot1Q() / IPv6() / TCP())) == "tcp"
    assert said(bytes(Ether() / IPv6() / ICMPv6EchoRequest())) == "icmp"
    assert said(bytes(Ether() / IPv6() / IPv6ExtHdrFragment() / UDP_ROCE)) == "fragment"
    assert said(bytes(Ether() / IPv6() / UDP(dport=320) / Raw(bytes(40)))) == "ptp"
    pvst = Dot3() / LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0x00000C, code=0x010B)
    assert said(bytes(pvst / Raw(bytes(40)))) == "stp"


def test_ipv6_extension_headers_are_passed_over() -> None:
    bth = BTH(opcode=0x07, dqpn=0x17, psn=9, migreq=1)
    extensions = IPv6ExtHdrHopByHop() / IPv6ExtHdrRouting() / IPv6ExtHdrDestOpt()
    frame = bytearray(
        bytes(Ether() / IPv6(src="::5", dst="::6") / extensions / UDP_ROCE / bth / Raw(bytes(256)))
    )
    # scapy leaves out extension headers of the ICRC; here they count as they were sent.
    masked = bytearray(frame[14:-4])
    masked[0:4] = b"\x6f\xff\xff\xff"
    masked[7] = 0xFF
    udp_at = len(frame) - 14 - 4 - 256 - 12 - 8
    masked[udp_at + 6 : udp_at + 8] = b"\xff\xff"
    masked[udp_at + 12] = 0xFF
    frame[-4:] = struct.pack("<I", zlib.crc32(bytes([0xFF] * 8) + bytes(masked)))
    packet = decoded(bytes(frame))
    assert VERDICTS[packet.verdict] == "write"
    assert (packet.psn, packet.key.dest_qp, packet.payload_bytes) == (9, 0x17, 256)


ROCE = [
    (Packet(FIRST, 1, bytes(1024), length=4096), "write"),
    (Packet(MIDDLE, 1, bytes(4096)), "write"),
    (Packet(LAST, 1, bytes(1)), "write"),
    (Packet(LAST_IMM, 1, bytes(3), immediate=5), "write"),
    (Packet(ONLY, 1, bytes(32), length=32), "write"),
    (Packet(ONLY_IMM, 1, b"", length=0), "write"),
    (Packet(ACK, 1), "ack"),
    (Packet(ACK, 1, syndrome=0x60), "nak"),
    (Packet(ACK, 1, syndrome=0x2A), "nak"),
    (Packet(SEND_ONLY, 1, bytes(8)), "send"),
    (Packet(0x17, 1, bytes(8)), "send"),
    (Packet(READ_REQUEST, 1, length=4096), "read"),
    (Packet(0x10, 1, bytes(8)), "read"),
    (Packet(0x12, 1, bytes(12)), "atomic"),
    (Packet(0x14, 1, bytes(28)), "atomic"),
    (Packet(0x64, 1, bytes(8 + 256), dest_qp=1), "mad"),
    (Packet(0x64, 1, bytes(8 + 256), dest_qp=0x77), "ud"),
    (Packet(0x81, 0, bytes(16)), "cnp"),
    (Packet(0x2A, 1, bytes(16)), "roce_other"),
    (Packet(0x1F, 1, bytes(16)), "roce_other"),
    (Packet(FIRST, 1, bytes(1000), length=4096), "malformed"),
    (Packet(FIRST, 1, bytes(1024), length=1024), "malformed"),
    (Packet(FIRST, 1, bytes(1024), length=0x80000001), "malformed"),
    (Packet(MIDDLE, 1, bytes(128)), "malformed"),
    (Packet(LAST, 1, b""), "malformed"),
    (Packet(ONLY, 1, bytes(32), length=36), "malformed"),
    (Packet(ONLY, 1, bytes(8192), length=8192), "malformed"),
]


@pytest.mark.parametrize(("packet", "verdict"), ROCE)
@pytest.mark.parametrize("version", [4, 6])
def test_every_roce_opcode_has_its_verdict(packet: Packet, verdict: str, version: int) -> None:
    if version == 6:
        packet = Packet(
            **{**packet.__dict__, "source": "fe80::1", "destination": "fe80::2"},
        )
    assert said(packet.frame()) == verdict


def test_fields_are_those_scapy_wrote() -> None:
    bth = BTH(opcode=0x11, dqpn=0xABCDEF, psn=0x123456, migreq=1)
    ack = decoded(
        bytes(Ether() / IP(src="1.2.3.4", dst="5.6.7.8") / UDP_ROCE / bth / AETH(msn=0x654321))
    )
    assert (ack.key.dest_qp, ack.psn, ack.msn, ack.udp_source_port) == (
        0xABCDEF,
        0x123456,
        0x654321,
        49999,
    )
    assert bytes(ack.key.source) == bytes(10) + b"\xff\xff\x01\x02\x03\x04"
    cnp = bytes(Ether() / IP() / UDP_ROCE / BTH(opcode="CNP", dqpn=5) / CNPPadding())
    assert said(cnp) == "cnp"


def test_a_frame_cut_anywhere_is_snapped_or_malformed_but_never_placed() -> None:
    frame = Packet(ONLY_IMM, 1, bytes(64), length=64).frame()
    for kept in range(len(frame)):
        assert said(frame[:kept], len(frame)) == "snapped"
        assert said(frame[:kept]) == "malformed"
    assert said(frame + bytes(20)) == "write", "link padding is no part of the packet"


def test_lengths_that_contradict_each_other_are_malformed() -> None:
    good = Packet(ONLY, 1, bytes(64), length=64).frame()
    for at, value in [(16, 0), (17, 0), (14, 0x44), (38, 7), (39, 1)]:
        bad = bytearray(good)
        bad[at] = value if bad[at] != value else value + 1
        assert said(bytes(bad)) == "malformed", at


def shim_frame(inner: bytes, *, mask_at: int) -> bytes:
    """A RoCE packet with 28 vendor bytes before its BTH; mask_at: BTH masked for the ICRC."""
    shim = b"\xaa" * 5 + b"\xbb" * 3 + b"\xaa" * 20
    body = shim + inner
    udp = struct.pack(">HHHH", 5000, 4791, len(body) + 12, 0)
    ip = struct.pack(">BBHIBBH", 0x45, 2, len(body) + 32, 0, 64, 17, 0) + bytes([10, 0, 0, 1] * 2)
    masked = bytearray(ip + udp + body)
    for at in (1, 8, 10, 11, 26, 27, 28 + mask_at + 4):
        masked[at] = 0xFF
    icrc = struct.pack("<I", zlib.crc32(bytes([0xFF] * 8) + bytes(masked)))
    return bytes(12) + b"\x08\x00" + ip + udp + body + icrc


@pytest.mark.parametrize("mask_at", [0, 28])
def test_roce_behind_a_vendor_shim(mask_at: int) -> None:
    probe = Packet(0x64, 1, bytes(8 + 256), dest_qp=1).body()
    assert said(shim_frame(probe, mask_at=mask_at)) == "shim"
    bad = bytearray(shim_frame(probe, mask_at=mask_at))
    bad[-1] ^= 1
    assert said(bytes(bad)) == "icrc_bad"
    inner = Packet(ONLY, 9, bytes(range(32)), length=32)
    write = decoded(shim_frame(inner.body(), mask_at=mask_at))
    assert VERDICTS[write.verdict] == "write"
    assert (write.psn, write.payload_bytes) == (9, 32)
    assert write.payload_at == 14 + 20 + 8 + 28 + 12 + 16


def test_every_nth_icrc_is_checked_and_bad_ones_are_not_placed(shm: Path) -> None:
    good = Packet(ONLY, 1, bytes(8), length=8).frame()
    bad = good[:-1] + bytes([good[-1] ^ 1])
    for every, wanted in [(0, 0), (1, 12), (3, 4)]:
        with parsed(shm, [good, *[bad] * 11], icrc_every=every, span=5) as run:
            counters = run.counters()
            assert counters["icrc_checked_frames"] == wanted
            assert counters["icrc_bad_frames"] == max(0, wanted - 1)
            assert int(run.table.flows()[0]["icrc_bad_frames"]) == max(0, wanted - 1)


def test_frames_received_is_the_sum_of_verdicts(shm: Path) -> None:
    frames = [bytes(frame) for frame in NOT_ROCE.values()]
    frames += [packet.frame() for packet, _ in ROCE if len(packet.payload) <= 4096]
    frames += [b"", b"\0" * 13]
    with parsed(shm, frames) as run:
        counters = run.counters()
        assert sum(counters[f"{verdict}_frames"] for verdict in VERDICTS) == len(frames)
        assert counters["vlan_frames"] == 0
