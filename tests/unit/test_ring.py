"""The ring: who may write what, what a reader may see, what an opener refuses."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.refused_as import Like, like, refused_as

from flowcheck._core import ffi, lib
from flowcheck.errors import RingError
from flowcheck.findings.catalog.shared_file_reasons import (
    FILE_EMPTY,
    FILE_NOT_CREATED,
    FILE_NOT_OPENED,
    MEMORY_NOT_RESERVED,
    NOT_A_RING,
    OTHER_LAYOUT_VERSION,
    RING_READER_MISSING,
    RING_SLOT_BYTES_REFUSED,
    RING_SLOTS_REFUSED,
    SIZES_CONTRADICT,
)
from flowcheck.findings.catalog.shared_memory_files import (
    DAMAGED,
    NO_MEMORY_LEFT,
    NOT_THERE,
    OTHER_LAYOUT,
    SIZES_REFUSED,
    THERE_ALREADY,
)
from flowcheck.findings.finding import Entry
from flowcheck.plane.shared_memory.frame_ring import FrameRing

PAGE_BYTES = 2 * 1024 * 1024


def push(ring: FrameRing, frame: bytes, pending: int = 0) -> int:
    return int(lib.fc_ring_put(ring.handle, pending, frame, len(frame), len(frame), 7, 0))


def publish(ring: FrameRing, frames: int) -> None:
    commit = ring.capture_commit()
    commit.counters.rx_frames += frames
    commit.source_frames += frames
    lib.fc_ring_publish(ring.handle, frames, commit)


def frame_at(ring: FrameRing, position: int) -> bytes:
    size = lib.fc_ring_at(ring.handle, position).frame_bytes
    return bytes(ffi.buffer(lib.fc_ring_frame_at(ring.handle, position), size))


def test_nothing_is_readable_before_it_is_published(shm: Path) -> None:
    with FrameRing.create(shm / "r", slots=8) as writer, FrameRing.open(shm / "r") as reader:
        assert push(writer, b"first") == 0
        assert reader.head == 0
        publish(writer, 1)
        assert (reader.head, frame_at(reader, 0)) == (1, b"first")


def test_a_full_ring_refuses_and_overwrites_nothing(shm: Path) -> None:
    with FrameRing.create(shm / "r", slots=4) as ring:
        for n in range(4):
            assert push(ring, bytes([n]) * 10, pending=n) == 0
        publish(ring, 4)
        assert push(ring, b"one too many") < 0
        assert [frame_at(ring, n) for n in range(4)] == [bytes([n]) * 10 for n in range(4)]


def test_a_frame_longer_than_a_slot_is_refused(shm: Path) -> None:
    with FrameRing.create(shm / "r", slots=4, slot_bytes=256) as ring:
        assert push(ring, b"x" * 192) == 0
        assert push(ring, b"x" * 193) < 0


@pytest.mark.parametrize(
    ("slots", "slot_bytes"),
    [(2, 128), (1024, 128), (1024, 4352), (1024, 9216), (1024, 65536), (32768, 128), (32768, 4352)],
)
def test_headers_and_frames_share_no_byte_and_no_frame_crosses_a_page(
    shm: Path, slots: int, slot_bytes: int
) -> None:
    """A page of 2 MiB: an engine's addresses go on within one only."""
    with FrameRing.create(shm / "r", slots=slots, slot_bytes=slot_bytes) as ring:
        base, room = int(ffi.cast("uintptr_t", ring.handle.map.base)), slot_bytes - 64

        def offsets(of: Callable[[Any, int], Any]) -> list[int]:
            return [int(ffi.cast("uintptr_t", of(ring.handle, n))) - base for n in range(slots)]

        headers, frames = offsets(lib.fc_ring_at), offsets(lib.fc_ring_frame_at)
        assert headers == list(range(headers[0], headers[0] + 64 * slots, 64))
        assert headers[0] >= ffi.sizeof("struct fc_ring_header")
        assert frames[0] >= headers[-1] + 64
        assert all(b - a >= room for a, b in pairwise(frames))
        assert all(at // PAGE_BYTES == (at + room - 1) // PAGE_BYTES for at in frames)
        assert all(at % 64 == 0 for at in headers + frames)
        assert frames[-1] + room <= ring.handle.map.bytes


def test_every_byte_is_reserved_at_creation(shm: Path) -> None:
    with FrameRing.create(shm / "r", slots=4096) as ring:
        status = (shm / "r").stat()
        assert status.st_blocks * 512 >= ring.handle.map.bytes
        assert status.st_mode & 0o777 == 0o600


def test_counters_belong_to_the_published_position(shm: Path) -> None:
    with FrameRing.create(shm / "r", slots=8) as ring:
        for total in range(1, 6):
            push(ring, b"frame")
            publish(ring, 1)
            assert ring.capture_commit().at_position == total
            assert ring.counters()["capture"]["rx_frames"] == total


def test_counters_of_an_unpublished_commit_are_not_believed(shm: Path) -> None:
    """A kill between the counters' copy and the position leaves the old counters true."""
    with FrameRing.create(shm / "r", slots=8) as ring:
        push(ring, b"frame")
        publish(ring, 1)
        header = ring.handle.header
        other = 0 if header.capture[1].at_position == 1 else 1
        header.capture[other].at_position = 2
        header.capture[other].counters.rx_frames = 99
        assert ring.counters()["capture"]["rx_frames"] == 1


def damaged(entry: Entry, **arguments: object) -> Like:
    """entry: what C says of it."""
    return like(DAMAGED, error=like(entry, **arguments))


@pytest.mark.parametrize(
    ("offset", "value", "wanted"),
    [
        (0, b"NOTARING", damaged(NOT_A_RING)),
        (
            8,
            struct.pack("<I", 99),
            like(OTHER_LAYOUT, error=like(OTHER_LAYOUT_VERSION, version=99)),
        ),
        (12, struct.pack("<I", 100), damaged(RING_SLOT_BYTES_REFUSED, slot_bytes=100)),
        (16, struct.pack("<Q", 6), damaged(RING_SLOTS_REFUSED, slots=6)),
        (16, struct.pack("<Q", 1 << 20), damaged(SIZES_CONTRADICT)),
        (24, struct.pack("<Q", 1), damaged(SIZES_CONTRADICT)),
        (32, struct.pack("<Q", 4096), damaged(SIZES_CONTRADICT)),
    ],
)
def test_a_foreign_or_torn_ring_is_refused_in_a_sentence(
    shm: Path, offset: int, value: bytes, wanted: Like
) -> None:
    FrameRing.create(shm / "r", slots=8).close()
    with (shm / "r").open("r+b") as file:
        file.seek(offset)
        file.write(value)
    with refused_as(wanted, kind=RingError):
        FrameRing.open(shm / "r")


def test_missing_empty_and_existing_files_are_told_apart(shm: Path) -> None:
    with refused_as(NOT_THERE, kind=RingError, error=like(FILE_NOT_OPENED, errno="ENOENT")):
        FrameRing.open(shm / "missing")
    (shm / "empty").touch()
    with refused_as(DAMAGED, kind=RingError, error=like(FILE_EMPTY)):
        FrameRing.open(shm / "empty")
    with refused_as(THERE_ALREADY, kind=RingError, error=like(FILE_NOT_CREATED, errno="EEXIST")):
        FrameRing.create(shm / "empty", slots=8)
    with refused_as(SIZES_REFUSED, kind=RingError, error=like(RING_SLOTS_REFUSED, slots=12)):
        FrameRing.create(shm / "odd", slots=12)


def test_a_ring_larger_than_its_file_system_fails_at_creation_not_later(shm: Path) -> None:
    room = os.statvfs(shm)
    slots = 1 << ((room.f_bavail * room.f_frsize) // 65536).bit_length() + 1
    wanted = like(NO_MEMORY_LEFT, error=like(MEMORY_NOT_RESERVED))
    with refused_as(wanted, like(SIZES_REFUSED, error=like(RING_SLOTS_REFUSED)), kind=RingError):
        FrameRing.create(shm / "huge", slots=slots, slot_bytes=65536)
    assert not (shm / "huge").exists()


def raced(folder: Path, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A C program of tests/support about a ring of its own, built with these flags and run."""
    core = Path(__file__).resolve().parents[2] / "dpdk_ext" / "core"
    program = folder / "race"
    names = ("ring", "shm", "error", "copy", "frame_copy", "icrc")
    sources = [core / f"fc_{name}.c" for name in names]
    command = ["clang", "-std=gnu11", *flags, f"-I{core}"]
    command += [str(Path(__file__).parents[1] / "support" / source), *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=60)
    return subprocess.run(
        [str(program), f"/dev/shm/flowcheck-race-{os.getpid()}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
def test_one_writer_and_one_reader_under_the_thread_sanitizer(tmp_path: Path) -> None:
    """A C program pushes, reads back and releases a million slots on two threads."""
    done = raced(tmp_path, "ring_race.c", "-O1", "-g", "-fsanitize=thread", "-pthread")
    assert done.returncode == 0, done.stderr
    assert "200000 frames equal" in done.stdout


@pytest.mark.slow
def test_no_reader_sees_a_part_of_what_another_process_counts(tmp_path: Path) -> None:
    """Two million commits, three of four of which move no slot, and whoever looks meanwhile."""
    done = raced(tmp_path, "commit_race.c", "-O2")
    assert (done.returncode, done.stdout) == (0, "0 torn, 0 backward\n"), done.stderr


def test_a_slot_is_free_once_every_reader_has_passed_it(shm: Path) -> None:
    with (
        FrameRing.create(shm / "r", slots=2, readers=2) as writer,
        FrameRing.open(shm / "r", reader=1) as second,
    ):
        assert push(writer, b"a") == push(writer, b"b", 1) == 0
        publish(writer, 2)
        writer.handle.reader.tail = 2
        assert (writer.tail, second.tail, writer.least_tail) == (2, 0, 0)
        assert push(writer, b"c") == -errno.EAGAIN, "the second reader has not read it"
        second.handle.reader.tail = 1
        assert push(writer, b"c") == 0
        publish(writer, 1)
        assert frame_at(second, 1) == b"b"


@pytest.mark.parametrize("reader", [2, 64])
def test_a_reader_that_a_ring_has_not_is_refused(shm: Path, reader: int) -> None:
    FrameRing.create(shm / "r", slots=2, readers=2).close()
    with refused_as(RING_READER_MISSING, kind=RingError, reader=reader, readers=2, subject="r"):
        FrameRing.open(shm / "r", reader=reader)
