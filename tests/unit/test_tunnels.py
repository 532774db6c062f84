"""RoCE in what switches wrap their copies in, by scapy: cut, nested, contradicting itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.contrib.erspan import ERSPAN_I, ERSPAN_II, ERSPAN_III, ERSPAN_PlatformSpecific
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Dot1AD, Dot1Q, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet as Layer
from scapy.packet import Raw
from support.transport import ONLY, Packet, parsed

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.packet_counters import VERDICTS

ENCAPSULATED = 128
"""enum fc_packet_flags."""
OUTER = Ether() / IP(src="9.9.9.1", dst="9.9.9.2")
OUTER6 = Ether() / IPv6(src="::91", dst="::92")
TUNNELS: dict[str, Layer] = {
    "erspan-1": OUTER / GRE(proto=0x88BE) / ERSPAN_I(),
    "erspan-2": OUTER / GRE(proto=0x88BE, seqnum_present=1, sequence_number=7) / ERSPAN_II(),
    "erspan-3": OUTER / GRE(proto=0x22EB, seqnum_present=1, sequence_number=7) / ERSPAN_III(o=0),
    "erspan-3-platform": OUTER
    / GRE(proto=0x22EB, seqnum_present=1)
    / ERSPAN_III(o=1)
    / ERSPAN_PlatformSpecific(),
    "erspan-2-over-ipv6": OUTER6 / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(),
    "sonic": OUTER / GRE(proto=0x8949),
    "gre-ethernet": OUTER / GRE(proto=0x6558),
    "gre-key-checksum": OUTER / GRE(proto=0x6558, key_present=1, chksum_present=1, key=5),
    "vxlan": OUTER / UDP(sport=5, dport=4789) / VXLAN(vni=42),
    "vxlan-over-ipv6": OUTER6 / UDP(sport=5, dport=4789) / VXLAN(vni=42),
    "tagged": Ether() / Dot1Q(vlan=3) / IP() / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(),
}
INNER = Packet(ONLY, 9, bytes(range(64)), va=77, length=64)
INNER6 = Packet(ONLY, 9, bytes(64), length=64, source="fe80::1", destination="fe80::2")


def wrap(tunnel: Layer, inner: bytes) -> bytes:
    return bytes(tunnel / Raw(inner))


def decoded(frame: bytes, wire_bytes: int | None = None) -> object:
    out = ffi.new("struct fc_packet *")
    lib.fc_parse_frame_verdict(frame, len(frame), wire_bytes or len(frame), out)
    return out


def said(frame: bytes, wire_bytes: int | None = None) -> str:
    return VERDICTS[decoded(frame, wire_bytes).verdict]


@pytest.mark.parametrize("name", TUNNELS)
@pytest.mark.parametrize("inner", [INNER, INNER6], ids=["ipv4", "ipv6"])
def test_what_is_inside_is_what_is_read(name: str, inner: Packet) -> None:
    bare = decoded(inner.frame())
    frame = wrap(TUNNELS[name], inner.frame())
    packet = decoded(frame)
    assert VERDICTS[packet.verdict] == "write"
    assert packet.flags & ENCAPSULATED and not bare.flags & ENCAPSULATED
    assert bytes(ffi.buffer(ffi.addressof(packet.key))) == bytes(
        ffi.buffer(ffi.addressof(bare.key))
    )
    assert (packet.psn, packet.va, packet.payload_bytes) == (bare.psn, bare.va, bare.payload_bytes)
    at = packet.payload_at
    assert frame[at : at + 64] == inner.payload
    bad = frame[:-1] + bytes([frame[-1] ^ 1])
    assert said(bad) == "icrc_bad"


@pytest.mark.parametrize("name", TUNNELS)
def test_cut_anywhere_it_is_never_placed(name: str) -> None:
    frame = wrap(TUNNELS[name], INNER.frame())
    for kept in range(len(frame)):
        assert said(frame[:kept], len(frame)) == "snapped"
        assert said(frame[:kept]) != "write"
    assert said(frame + bytes(20)) == "write", "link padding is no part of the packet"


def test_tags_inside_and_a_copy_of_what_was_in_a_tunnel_already() -> None:
    tagged = bytes(Ether() / Dot1AD() / Dot1Q() / Raw(INNER.frame()[14:]))
    tagged = tagged[:20] + b"\x08\x00" + tagged[22:]
    assert said(wrap(TUNNELS["erspan-2"], tagged)) == "write"
    twice = wrap(TUNNELS["erspan-2"], wrap(TUNNELS["vxlan"], INNER.frame()))
    assert said(twice) == "write"
    assert said(wrap(TUNNELS["gre-ethernet"], twice)) == "ip_other"


def test_ip_straight_in_gre() -> None:
    assert said(wrap(OUTER / GRE(proto=0x0800), INNER.frame()[14:])) == "write"
    assert said(wrap(OUTER / GRE(proto=0x86DD), INNER6.frame()[14:])) == "write"


OTHERS: dict[str, Callable[[], bytes]] = {
    "routing": lambda: wrap(OUTER / GRE(proto=0x6558, routing_present=1), INNER.frame()),
    "version": lambda: wrap(OUTER / GRE(proto=0x6558, version=1), INNER.frame()),
    "protocol": lambda: wrap(OUTER / GRE(proto=0x8847), INNER.frame()),
    "erspan version": lambda: wrap(
        OUTER / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(ver=2), INNER.frame()
    ),
    "not ethernet": lambda: wrap(
        OUTER / GRE(proto=0x22EB, seqnum_present=1) / ERSPAN_III(ft=2, o=0), INNER.frame()
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_known_tunnel_is_left_as_it_is(name: str) -> None:
    assert said(OTHERS[name]()) == "ip_other"


def test_a_copy_the_switch_truncated_says_so() -> None:
    whole = INNER.frame()
    cut = wrap(OUTER / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II(t=1), whole[:-20])
    assert said(cut) == "snapped"


def test_lengths_of_the_tunnel_that_contradict_it_are_malformed() -> None:
    frame = bytearray(wrap(TUNNELS["gre-ethernet"], INNER.frame()))
    for total in (0, 19, 21, 23):
        frame[16:18] = struct.pack(">H", total)
        assert said(bytes(frame)) == "malformed", total


def test_bare_and_wrapped_copies_of_a_packet_are_one(shm: Path) -> None:
    bare = INNER.frame()
    with parsed(shm, [bare, wrap(TUNNELS["erspan-3"], bare), wrap(TUNNELS["vxlan"], bare)]) as run:
        counters = run.counters()
        assert counters["encapsulated_frames"] == 2
        assert counters["duplicate_packets"] == 2
        assert len(run.table.flows()) == 1
