"""Capture files without DPDK, judged by scapy's reader and by tshark's count."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.utils import RawPcapReader, RawPcapWriter
from support.refused_as import Wanted, like, refused_as

from flowcheck._core import ffi, lib
from flowcheck.errors import CaptureError
from flowcheck.findings.catalog.capture_file_problems import (
    IS_COMPRESSED,
    IS_EMPTY,
    IS_TOO_SHORT,
    IS_TORN,
    OTHER_LINK_TYPE,
    OTHER_PCAP_VERSION,
)
from flowcheck.plane.frame_sources.pcap_source import PcapSource
from flowcheck.plane.shared_memory.frame_ring import FrameRing

NCCL_CAPTURES = 7


def frames_of(path: Path) -> list[bytes]:
    frame = ffi.new("struct fc_pcap_frame *")
    found = []
    with PcapSource(path) as source:
        while lib.fc_pcap_next(source.handle, frame) == 1:
            found.append(bytes(ffi.buffer(frame.bytes, frame.frame_bytes)))
    return found


def test_every_real_capture_reads_as_scapy_reads_it(captures: Path) -> None:
    paths = [*captures.glob("*.pcapng"), *captures.glob("rxe/*.pcap")]
    assert len(paths) >= NCCL_CAPTURES
    for path in paths:
        with RawPcapReader(str(path)) as reader:
            assert frames_of(path) == [frame for frame, _ in reader], path.name


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_time_stamps_are_tsharks(captures: Path) -> None:
    path = captures / "allreduce_addstep.pcapng"
    done = subprocess.run(
        ["tshark", "-r", str(path), "-T", "fields", "-e", "frame.time_epoch"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    expected = []
    for line in done.stdout.split():
        seconds, fraction = line.split(".")
        expected.append(int(seconds) * 10**9 + int(fraction.ljust(9, "0")))
    with PcapSource(path) as source:
        assert [when for when, _, _ in source.frames()] == expected


def test_a_file_source_is_not_polled_while_the_ring_is_full(captures: Path, shm: Path) -> None:
    path = captures / "iter_40000_p2p_iter10.pcapng"
    with PcapSource(path) as source, FrameRing.create(shm / "r", slots=64) as ring:
        commit = ring.capture_commit()
        assert source.read_into(ring, 10**6, commit) == 64
        assert source.read_into(ring, 10**6, commit) == 0
        assert not source.ended
        assert ring.counters()["capture"]["ring_full_frames"] == 0
        assert ring.capture_commit().source_frames == 64


def test_an_oversize_frame_is_counted_and_the_next_one_kept(tmp_path: Path, shm: Path) -> None:
    with RawPcapWriter(str(tmp_path / "f.pcap"), linktype=1) as writer:
        for length in (60, 300, 70):
            writer.write(b"\1" * length)
    with PcapSource(tmp_path / "f.pcap") as source:
        ring = FrameRing.create(shm / "r", slots=8, slot_bytes=256)
        commit = ring.capture_commit()
        assert source.read_into(ring, 10, commit) == 3
        counters = ring.counters()["capture"]
        assert (counters["pushed_frames"], counters["oversize_frames"], ring.head) == (2, 1, 2)
        assert ring.capture_commit().source_frames == 3
        ring.close()


def test_nanosecond_and_byte_swapped_files_read_alike(tmp_path: Path) -> None:
    for order in "<>":
        for magic, fraction in ((0xA1B2C3D4, 5), (0xA1B23C4D, 5000)):
            path = tmp_path / f"{order == '<'}-{magic:x}.pcap"
            header = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 96, 1)
            record = struct.pack(f"{order}IIII", 3, fraction, 4, 1000)
            path.write_bytes(header + record + b"abcd")
            with PcapSource(path) as source:
                assert list(source.frames()) == [(3_000_005_000, 4, 1000)]
                assert source.snaplen == 96


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", IS_EMPTY),
        (b"hello", IS_TOO_SHORT),
        (b"PK\3\4" + bytes(60), IS_COMPRESSED),
        (
            struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 105),
            like(OTHER_LINK_TYPE, number=105),
        ),
        (
            struct.pack("<IHHiIII", 0xA1B2C3D4, 3, 4, 0, 0, 96, 1),
            like(OTHER_PCAP_VERSION, version=3),
        ),
    ],
)
def test_what_is_no_capture_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, wanted: Wanted
) -> None:
    (tmp_path / "f").write_bytes(content)
    with refused_as(wanted, kind=CaptureError):
        PcapSource(tmp_path / "f")


def test_a_torn_file_gives_the_frames_before_the_tear(captures: Path, tmp_path: Path) -> None:
    whole = (captures / "iter_40000_p2p.pcapng").read_bytes()
    (tmp_path / "torn").write_bytes(whole[: len(whole) // 2])
    frames = frames_of(tmp_path / "torn")
    assert frames == frames_of(captures / "iter_40000_p2p.pcapng")[: len(frames)] != []
    with refused_as(IS_TORN, kind=CaptureError, frames=len(frames)):
        PcapSource(tmp_path / "torn").count()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_file_never_reads_past_its_end(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any byte changed, any cut: frames or a sentence. Bounds are the sanitizer build's to see."""
    block = struct.pack("<IIIIIIIIII", 6, 48, 0, 0, 0, 4, 4, 0x64636261, 48, 0)[:36]
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    interface = struct.pack("<IIHHII", 1, 20, 1, 0, 65535, 20)
    packet = struct.pack("<IIIIIII", 6, 36, 0, 0, 0, 4, 4) + b"abcd" + struct.pack("<I", 36)
    content = bytearray(section + interface + packet + packet + block)
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "f"
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        with PcapSource(path) as source:
            for _, frame_bytes, _ in source.frames():
                assert frame_bytes <= len(content)
    except CaptureError as error:
        assert error.finding.arguments["path"] == str(path)
