"""Sizes of the shared memory in which entries of the step journal wait for the disk. Nothing here
loads torch: `flowcheck up` adds them to what a chain takes."""

from __future__ import annotations

from flowcheck.replica.checkpoint_files.direct_io import ALIGN_BYTES

SLOTS_LEAST, SLOTS_MOST, SLOTS_BYTES = 3, 8, 256 << 20
"""Entries that may wait for the disk: as many as fit into so many bytes, within these bounds. A
choice: one is being written while the next is filled, and the third bridges a pause of the disk;
more takes memory, fewer leave out steps after a shorter pause."""
LINE_BYTES = 256 << 10
"""Room for a line. A choice: twelve thousand ranges of elements that lacked bytes in one step."""
HEAD_BYTES = ALIGN_BYTES
"""Of the file, and of each slot."""


def waiting_bytes(gradient_bytes: int) -> int:
    """Bytes of shared memory that the slots take."""
    slot = slot_bytes_of(gradient_bytes)
    return HEAD_BYTES + slots_of(slot) * slot


def slot_bytes_of(payload_bytes: int) -> int:
    """Of a slot for so many bytes of a change."""
    return HEAD_BYTES + LINE_BYTES + -(-max(payload_bytes, 1) // ALIGN_BYTES) * ALIGN_BYTES


def slots_of(slot_bytes: int) -> int:
    """How many slots of a size there are."""
    return min(SLOTS_MOST, max(SLOTS_LEAST, SLOTS_BYTES // slot_bytes))
