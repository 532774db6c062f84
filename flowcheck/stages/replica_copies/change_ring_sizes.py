"""Memory of the ring of changes, for whoever must load neither the replica nor torch."""

from __future__ import annotations

SLOTS_LEAST, SLOTS_MOST = 3, 64
"""A choice: with three a copy is never more than one step's time from needing a whole state; with
many, small models keep more than any pause takes."""
LINE_BYTES = 256 << 10
"""Room for a line: as of the step journal."""
PAGE_BYTES = 4096


def change_slot_bytes(payload_bytes: int) -> int:
    """Bytes of a slot for so many bytes of a change."""
    return PAGE_BYTES + LINE_BYTES + -(-max(payload_bytes, 1) // PAGE_BYTES) * PAGE_BYTES


def ring_bytes(payload_bytes: int, memory_bytes: int) -> int:
    """Bytes of shared memory of a ring. payload_bytes: of a gradient; memory_bytes: as stated."""
    slot = change_slot_bytes(payload_bytes)
    return PAGE_BYTES + min(SLOTS_MOST, max(SLOTS_LEAST, memory_bytes // slot)) * slot
