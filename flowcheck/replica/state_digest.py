"""What the bytes of a step are, in a few hex digits.

Digests ride along with every step: of each 16 MiB block of a tensor two lanes of AES's round
(dpdk_ext/step/fc_digest.h), of a tensor the xxh3_128 over its blocks' digests (of one block: the
block's own), and of the state the xxh3_128 over a table of (tensor name, bytes, digest). Blocks are
independent, so that they can be taken by several threads, and inside the update pass, where a round
is the cheapest sum a CPU has that tells every change. They find faults, not forgers: manifests and
`--digests` use sha256.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import xxhash

from flowcheck._core import ffi, lib
from flowcheck.step_numbers import Step

BLOCK_BYTES = 16 * 1024 * 1024
"""Bytes of a block that is summed by itself. Part of what a digest is: with another size, kept
digests no longer match. A choice: smaller gives threads more even shares and longer tables."""
DIGEST_BYTES = int(lib.FC_STEP_DIGEST_BYTES)


NamedArray = tuple[str, np.ndarray]
"""A tensor's name and its elements, flat in memory order."""
StateId = tuple[Step, str]
"""A state of a replica: its step and hex digest. A step may leave the digest as it was."""


def tensor_digests(arrays: Iterable[np.ndarray], executor: Executor | None = None) -> list[bytes]:
    """16 bytes for each flat array, whatever `executor`; it makes it faster (C runs without the
    GIL)."""
    blocks: list[memoryview] = []
    counts: list[int] = []
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8).data
        cut = [raw[at : at + BLOCK_BYTES] for at in range(0, raw.nbytes, BLOCK_BYTES)]
        counts.append(len(cut))
        blocks += cut
    digests = iter(executor.map(block_digest, blocks) if executor else map(block_digest, blocks))
    return [combine_digests([next(digests) for _ in range(count)]) for count in counts]


def state_digest(tensors: Iterable[NamedArray], digests: Sequence[bytes]) -> bytes:
    """16 bytes that stand for the named tensors, in the order given, by their own digests."""
    return DigestTable(tensors).digest(digests)


class DigestTable:
    """The table of one state; its names and sizes stay, so that a step has its digests to fill in
    alone."""

    def __init__(self, tensors: Iterable[NamedArray]) -> None:
        told = bytearray()
        places = []
        for name, array in tensors:
            told += name.encode() + b"\0" + struct.pack("<Q", array.nbytes)
            places.append(len(told))
            told += bytes(DIGEST_BYTES)
        self._told = np.frombuffer(told, np.uint8)
        self._places = np.array(places, np.intp).reshape(-1, 1) + np.arange(DIGEST_BYTES)

    def digest(self, digests: Sequence[bytes]) -> bytes:
        """16 bytes. digests: of each tensor. Raises ValueError for another number of them."""
        found = np.frombuffer(b"".join(digests), np.uint8)
        self._told[self._places] = found.reshape(self._places.shape)
        return xxhash.xxh3_128_digest(self._told.data)


def sha256(raw: bytes | memoryview | np.ndarray) -> str:
    """sha256 of bytes as they lie: a flat gradient, or parameters in registration order."""
    return hashlib.sha256(np.frombuffer(raw, np.uint8).data).hexdigest()


def sha256_file(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def combine_digests(blocks: list[bytes]) -> bytes:
    """A tensor's digest by its blocks' own; of none, that of no bytes."""
    return blocks[0] if len(blocks) == 1 else xxhash.xxh3_128_digest(b"".join(blocks))


def block_digest(raw: bytes | memoryview) -> bytes:
    """Of at most BLOCK_BYTES."""
    found = ffi.new("uint8_t[]", DIGEST_BYTES)
    lib.fc_step_digest(ffi.from_buffer("uint8_t[]", raw), len(raw), found)
    return bytes(ffi.buffer(found))
