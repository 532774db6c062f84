"""sha256 of two streams in the time of one, where this CPU has instructions for it
(dpdk_ext/core/fc_sha256.c); else hashlib sums one stream after the other. Both release the GIL."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowcheck._core import ffi, lib

HAS_PAIRED_SHA = bool(lib.fc_sha256_here())
DIGEST_BYTES = 32
BLOCK_BYTES = 64
"""Bytes of a sha256 block (FIPS 180-4, section 1). Where two checksums of the same bytes have their
blocks at the same bytes, the work common to both is done once."""
READ_BYTES = 1 << 18
"""Bytes of one read: two buffers of 256 KiB stay in a core's second-level cache until they are
summed."""

Buffer = bytes | bytearray | memoryview
Span = tuple[int, int]
"""(first byte, number of bytes)."""


@dataclass(slots=True)
class Crc:
    """A running crc-32, as in zip archives."""

    value: int = 0


class Sha256:
    """A running sha256. Only one thread may add to it at a time."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = hashlib.sha256() if not HAS_PAIRED_SHA else ffi.new("struct fc_sha256 *")
        if HAS_PAIRED_SHA:
            lib.fc_sha256_begin(self.state)

    def hexdigest(self) -> str:
        """The sha256 of all bytes added so far. More may be added afterwards."""
        if not HAS_PAIRED_SHA:
            return str(self.state.hexdigest())
        out = ffi.new("uint8_t[]", DIGEST_BYTES)
        ended = ffi.new("struct fc_sha256 *", self.state[0])
        lib.fc_sha256_end(ended, out)
        return bytes(ffi.buffer(out)).hex()


def hash_two(
    one: Sha256, data: Buffer, other: Sha256 | None = None, other_data: Buffer | None = None
) -> None:
    """Adds `data` to `one`, and to `other` either `other_data`, which must be as long, or
    `data`."""
    second = data if other_data is None else other_data
    if not HAS_PAIRED_SHA:
        one.state.update(data)
        if other is not None:
            other.state.update(second)
        return
    first = ffi.from_buffer("uint8_t[]", data)
    if other is None:
        lib.fc_sha256_add(one.state, first, ffi.NULL, ffi.NULL, len(first))
        return
    other_data = ffi.from_buffer("uint8_t[]", second)
    if len(other_data) != len(first):
        raise ValueError(f"{len(first)} bytes beside {len(other_data)}")
    lib.fc_sha256_add(one.state, first, other.state, other_data, len(first))


def copy_and_hash(
    data: np.ndarray, to: np.ndarray, one: Sha256, other: Sha256, crc: Crc | None
) -> None:
    """In one pass copies `data` to the first bytes of `to` and adds it to `one`, `other` and
    `crc`."""
    into = ffi.from_buffer("uint8_t[]", to)
    so_far = ffi.NULL if crc is None else ffi.new("uint32_t *", crc.value)
    if HAS_PAIRED_SHA:
        raw = ffi.from_buffer("uint8_t[]", data)
        lib.fc_sha256_pour(one.state, other.state, raw, into, data.size, so_far)
    else:
        to[: data.size] = data
        one.state.update(data.data)
        other.state.update(data.data)
        if crc is not None:
            so_far[0] = lib.fc_crc32(crc.value, into, data.size)
    if crc is not None:
        crc.value = int(so_far[0])


def hash_spans(descriptor: int, spans: Sequence[Span]) -> list[str]:
    """The sha256 of each span of an open file, computed two at a time. Bytes beyond the end of the
    file are left out. The file is read, not mapped: if it is truncated meanwhile, a mapping would
    end the process (SIGBUS)."""
    sums = [Sha256() for _ in spans]
    buffers = [memoryview(bytearray(READ_BYTES)) for _ in range(2)]
    left = [(first, first + count) for first, count in spans]
    waiting = list(range(len(spans)))[::-1]
    lanes: list[int] = []
    while waiting or lanes:
        while len(lanes) < 2 and waiting:
            lanes.append(waiting.pop())
        most = min(READ_BYTES, *(left[n][1] - left[n][0] for n in lanes))
        parts = [
            _read(descriptor, left[n][0], buffer[:most])
            for n, buffer in zip(lanes, buffers, strict=False)
        ]
        done = min(len(part) for part in parts)
        if len(lanes) == 2:
            hash_two(sums[lanes[0]], parts[0][:done], sums[lanes[1]], parts[1][:done])
        else:
            hash_two(sums[lanes[0]], parts[0])
        for n, part in zip(lanes, parts, strict=True):
            first, end = left[n]
            left[n] = (first + done, end if len(part) == most else first + done)
        lanes = [n for n in lanes if left[n][0] < left[n][1]]
    return [one.hexdigest() for one in sums]


def hash_joined_spans(descriptor: int, spans: Sequence[Span]) -> str:
    """One sha256 over several spans of an open file, in the given order. Bytes beyond the end of
    the file are left out."""
    whole = Sha256()
    for first, count in spans:
        hash_range(whole, descriptor, first, count)
    return whole.hexdigest()


def hash_range(whole: Sha256, descriptor: int, first: int, count: int) -> None:
    """Adds `count` bytes of an open file from the offset `first` to `whole`. Bytes beyond the end
    of the file are left out."""
    buffer = memoryview(bytearray(max(1, min(READ_BYTES, count))))
    for at in range(first, first + count, READ_BYTES):
        hash_two(whole, _read(descriptor, at, buffer[: min(READ_BYTES, first + count - at)]))


def hash_file_and_spans(
    descriptor: int, size_bytes: int, spans: Sequence[Span]
) -> tuple[str, list[str]]:
    """(sha256 of the file, sha256 of each span), with one reading. spans: ascending, without
    overlap."""
    whole, sums = Sha256(), list[str]()
    buffer = memoryview(bytearray(READ_BYTES))
    at = 0
    for first, count in (*spans, (size_bytes, 0)):
        own = Sha256()
        for begin, end, other in ((at, first, None), (first, first + count, own)):
            for place in range(begin, end, READ_BYTES):
                hash_two(
                    whole, _read(descriptor, place, buffer[: min(READ_BYTES, end - place)]), other
                )
        sums.append(own.hexdigest())
        at = first + count
    return whole.hexdigest(), sums[:-1]


def _read(descriptor: int, first: int, into: memoryview) -> memoryview:
    """Fills `into` from the offset `first`. Returns the part that is filled, shorter at the end of
    the file."""
    done = 0
    while done < len(into):
        got = os.preadv(descriptor, [into[done:]], first + done)
        if not got:
            break
        done += got
    return into[:done]
