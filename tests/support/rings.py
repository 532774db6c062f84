"""What lies in a ring, read slot by slot for tests to judge."""

from __future__ import annotations

from flowcheck._core import ffi, lib
from flowcheck.plane.shared_memory.frame_ring import FrameRing
from flowcheck.plane.shared_memory.packet_counters import counter_values


def frames_in(ring: FrameRing) -> list[bytes]:
    """The frames between tail and head, as bytes."""
    found = []
    for position in range(ring.tail, ring.head):
        size = lib.fc_ring_at(ring.handle, position).frame_bytes
        found.append(bytes(ffi.buffer(lib.fc_ring_frame_at(ring.handle, position), size)))
    return found


def slots_in(ring: FrameRing) -> list[tuple[int, int, int, int]]:
    """(timestamp_ns, frame_bytes, wire_bytes, source_frame) between tail and head."""
    slots = (lib.fc_ring_at(ring.handle, position) for position in range(ring.tail, ring.head))
    return [(s.timestamp_ns, s.frame_bytes, s.wire_bytes, s.source_frame) for s in slots]


def counted(ring: FrameRing) -> dict[str, int]:
    """Capture's counters that are not 0."""
    commit = ring.capture_commit()
    return {name: value for name, value in counter_values(commit.counters).items() if value}


def release(ring: FrameRing, position: int) -> None:
    """Frees the slots below `position`, as the extractor does."""
    ring.handle.reader.tail = position
