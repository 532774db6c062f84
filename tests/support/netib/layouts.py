"""The bytes of a message: slices of a chunk, and LL, LL128 and Simple packing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.netib.options import LL, LL128

GROUP_BYTES, GROUP_WIRE_BYTES = 1920, 2048
SLICE_LEAST_BYTES = 32768


def slices(count: int, element_bytes: int, number: int) -> list[tuple[int, int]]:
    """(first element within the chunk, elements) of its `number` messages."""
    if number == 1:
        return [(0, count)]
    size = max(-(-count // 32) * 16, SLICE_LEAST_BYTES // element_bytes)
    first = min(size, count)
    return [(0, first), (first, min(first, count - first))]


def group_places() -> NDArray[np.intp]:
    """Wire byte of each of the 1920 data bytes of an LL128 group, by 16-byte units."""
    places = np.full(GROUP_BYTES, -1, dtype=np.intp)
    for unit in range(GROUP_WIRE_BYTES // 16):
        row, lane = divmod(unit, 32)
        if lane % 8 != 7:
            holds = 32 * row - 4 * (row // 2) + lane - (row % 2) * (lane // 8)
            places[16 * holds : 16 * holds + 16] = np.arange(16 * unit, 16 * unit + 16)
        else:
            half = 16 * (60 * (row // 2) + lane) + 8 * (row % 2)
            places[half : half + 8] = np.arange(16 * unit, 16 * unit + 8)
    assert (places >= 0).all()
    return places


PLACES = group_places()
LINEAR = np.arange(GROUP_BYTES) // 120 * 128 + np.arange(GROUP_BYTES) % 120
"""Before 2.10: 120 consecutive bytes in each line."""


def pack(
    protocol: str,
    content: bytes,
    fifo_step: int,
    rng: np.random.Generator,
    version: tuple[int, int] = (2, 30),
    filler: str = "",
) -> bytes:
    """The wire form of a message's data; what no element fills is random."""
    if not content:
        return b""
    if protocol == LL:
        content = filled(content, 8, rng, filler)
        return pack_ll(content, (fifo_step + 1) & 0xFFFFFFFF)
    if protocol == LL128:
        places = PLACES if version >= (2, 10) else LINEAR
        content = filled(content, GROUP_BYTES, rng, filler)
        return pack_ll128(content, fifo_step + 1, places)
    return content


def filled(content: bytes, unit: int, rng: np.random.Generator, filler: str) -> bytes:
    missing = -len(content) % unit
    if filler == "zero":
        return content + bytes(missing)
    if filler == "stale":
        return content + (content * (missing // len(content) + 1))[:missing]
    return content + rng.bytes(missing)


def pack_ll(content: bytes, flag: int) -> bytes:
    words = np.frombuffer(content, dtype="<u4").reshape(-1, 2)
    lines = np.empty((len(words), 4), dtype="<u4")
    lines[:, 0], lines[:, 2] = words[:, 0], words[:, 1]
    lines[:, 1] = lines[:, 3] = flag
    return lines.tobytes()


def pack_ll128(content: bytes, flag: int, places: NDArray[np.intp]) -> bytes:
    groups = np.frombuffer(content, dtype=np.uint8).reshape(-1, GROUP_BYTES)
    wire = np.zeros((len(groups), GROUP_WIRE_BYTES), dtype=np.uint8)
    wire[:, places] = groups
    flags = wire.reshape(-1, 128)[:, 120:]
    flags[:] = np.frombuffer(flag.to_bytes(8, "little"), dtype=np.uint8)
    return wire.tobytes()
