"""CRC-32 and ICRC against zlib and scapy, by every twin this CPU has."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw
from support.transport import FIRST, Packet

from flowcheck._core import ffi, lib

LENGTHS = [*range(0, 9217), 65535]
"""Longer than any frame in a slot of any size in use."""
ETHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
"""Told, as scapy would else ask the network for them, for seconds."""
TWINS = ("table", "pclmul", "vpclmul256", "vpclmul")


def all_lengths_agree() -> None:
    data = bytes((i * 131 + (i >> 7)) & 0xFF for i in range(70000))
    base = ffi.from_buffer("uint8_t[]", data)
    for length in LENGTHS:
        starts = (0, 1, 3, 17) if length < 300 else (length * 7 % 64,)
        for start in starts:
            piece, before = memoryview(data)[start : start + length], length & 1 and 0xDEADBEEF
            right = zlib.crc32(piece, before)
            assert lib.fc_crc32(before, base + start, length) == right, (length, start)
            assert lib.fc_crc32_table(before, base + start, length) == right, (length, start)


def icrc_by_hand(frame: bytes, l3_at: int, end_at: int) -> int:
    """By zlib, of IPv4 without options or IPv6 without extension headers (IB A17.3.3)."""
    covered = bytearray(bytes([0xFF] * 8) + frame[l3_at:end_at])
    four = frame[l3_at] >> 4 == 4
    udp_at = 8 + (20 if four else 40)
    covered[8] |= 0 if four else 0x0F
    for at in (9, 16, 18, 19) if four else (9, 10, 11, 15):
        covered[at] = 0xFF
    for at in (udp_at + 6, udp_at + 7, udp_at + 12):
        covered[at] = 0xFF
    return zlib.crc32(covered)


def all_copies_agree() -> None:
    """Every length, and offsets of the IP header that VLAN tags and more make."""
    data = bytearray((i * 89 + (i >> 5)) & 0xFF for i in range(9400))
    target = ffi.new("uint8_t[]", 9600)
    base = target + -int(ffi.cast("uintptr_t", target)) % 64
    source = ffi.from_buffer("uint8_t[]", data)
    for end_at in range(120, 9217):
        l3_at = (14, 18, 22, 66, 67, 68, 8, 71)[end_at % 8] if end_at > 160 else 14
        first = (0x45, 0x60)[end_at // 8 % 2]
        offset, after = end_at * 11 % 64, 4 + end_at % 70
        if offset + end_at + after > len(data):
            offset = 0
        data[offset + l3_at] = first
        frame = bytes(data[offset : offset + end_at + after])
        said = lib.fc_copy_with_icrc(base, source + offset, len(frame), l3_at, end_at)
        assert said == icrc_by_hand(frame, l3_at, end_at), (end_at, l3_at)
        assert bytes(ffi.buffer(base, len(frame))) == frame


def test_crc_equals_zlib_at_every_length() -> None:
    all_lengths_agree()


def test_icrc_made_while_a_frame_is_copied_is_right_at_every_length() -> None:
    all_copies_agree()


@pytest.mark.parametrize("twin", TWINS)
def test_every_twin_of_this_cpu_gives_the_same_crc(twin: str) -> None:
    script = (
        "import test_icrc as t; from flowcheck._core import ffi, lib;"
        "t.all_lengths_agree(); t.all_copies_agree();"
        "print(ffi.string(lib.fc_crc32_name()).decode())"
    )
    here = Path(__file__).resolve()
    folders = [str(here.parent), str(here.parent.parent)]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "FLOWCHECK_CRC": twin,
            "PYTHONPATH": os.pathsep.join([*folders, *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A wish this CPU cannot grant falls back to the next lesser twin.
    assert TWINS.index(done.stdout.strip()) <= TWINS.index(twin)


def scapy_frames() -> list[bytes]:
    frames = []
    for size in (0, 4, 16, 52, 100, 256, 1024, 4096):
        payload = Raw(bytes((i * 7) & 0xFF for i in range(size)))
        bth = BTH(opcode=0x07, dqpn=0x123456, psn=0xABCDEF, migreq=1, fecn=1)
        udp = UDP(sport=49152, dport=4791, chksum=0)
        four = IP(src="10.1.2.3", dst="10.4.5.6", tos=0x6A, ttl=17)
        options = IP(src="10.1.2.3", dst="10.4.5.6", options=[IPOption_Router_Alert()])
        six = IPv6(src="fe80::1", dst="fe80::2", tc=0x21, fl=0x12345, hlim=9)
        tagged = ETHER / Dot1Q(vlan=7) / six / udp / bth / payload
        frames += [
            bytes(ETHER / four / udp / bth / payload),
            bytes(ETHER / options / udp / bth / payload),
            bytes(ETHER / six / udp / bth / payload),
            bytes(tagged),
        ]
    return frames


def verdict(frame: bytes) -> int:
    out = ffi.new("struct fc_packet *")
    return int(lib.fc_parse_frame_verdict(frame, len(frame), len(frame), out))


def test_icrc_scapy_computed_is_right_and_any_changed_byte_is_not() -> None:
    for frame in scapy_frames():
        assert verdict(frame) != lib.FC_ICRC_BAD
        for at in (len(frame) - 1, len(frame) - 6):
            broken = bytearray(frame)
            broken[at] ^= 0x10
            assert verdict(bytes(broken)) == lib.FC_ICRC_BAD


@pytest.mark.parametrize(("version", "at"), [(4, 15), (4, 22), (6, 15), (6, 17), (6, 21)])
def test_fields_that_routers_rewrite_leave_the_icrc_right(version: int, at: int) -> None:
    addresses = {} if version == 4 else {"source": "fe80::1", "destination": "fe80::2"}
    packet = Packet(FIRST, 5, bytes(256), length=512, **addresses)
    frame = bytearray(packet.frame())
    assert verdict(bytes(frame)) == lib.FC_WRITE
    frame[at] ^= 0x0F
    assert verdict(bytes(frame)) == lib.FC_WRITE


def test_congestion_marks_in_the_bth_leave_the_icrc_right() -> None:
    frame = bytearray(Packet(FIRST, 5, bytes(256), length=512).frame())
    frame[14 + 20 + 8 + 4] ^= 0xC0
    assert verdict(bytes(frame)) == lib.FC_WRITE


def test_frames_built_by_the_tests_have_the_icrc_scapy_computes() -> None:
    for packet in (
        Packet(FIRST, 5, bytes(range(256)), length=512),
        Packet(FIRST, 5, bytes(range(256)), length=512, source="::1", destination="::2"),
    ):
        frame = packet.frame()
        again = Ether(frame)
        right = again[BTH].compute_icrc(bytes(again[BTH])[:-4])
        assert frame[-4:] == right
