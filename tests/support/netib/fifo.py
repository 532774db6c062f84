"""The entries by which a receiver lets its sender write, and where they lie."""

from __future__ import annotations

import struct


def clear_to_send(
    version: tuple[int, int], va: int, size: int, rkey: int, tag: int, idx: int
) -> bytes:
    """One FIFO entry in the layout of the version."""
    if version < (2, 12):
        return struct.pack("<QiIII8x", va, size, idx - 1, rkey, 1)
    if version < (2, 20):
        return struct.pack("<QiIIIQ", va, size, rkey, 1, tag, idx)
    if version < (2, 24):
        return struct.pack("<QiIIIIIQ24x", va, size, rkey, 0, 1, tag, 0, idx)
    if version < (2, 30):
        return struct.pack("<QQIIIIIIQ16x", va, size, rkey, 0, 0, 0, 1, tag, idx)
    return struct.pack("<QQI28xIIQ", va, size, rkey, 1, tag, idx)


def fifo(version: tuple[int, int]) -> tuple[int, int]:
    """(entries, bytes from one to the next)."""
    if version < (2, 12):
        return 8, 32
    return (64 if version < (2, 19) else 256), (256 if version < (2, 20) else 512)
