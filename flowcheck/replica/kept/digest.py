"""What the bytes of a step are, in a few hex digits.

Digests ride along with every step: xxh3_128 of each 16 MiB block of a tensor, of a tensor the
xxh3_128 over its blocks' digests (of one block: the block's own), and of the state the xxh3_128
over a table of (tensor name, bytes, digest). Blocks are independent, so that they can be taken by
several threads, and inside the update pass (dpdk_ext/step/fc_digest.c). They find faults, not
forgers: manifests and `--digests` use sha256.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import xxhash

BLOCK_BYTES = 16 * 1024 * 1024
DIGEST_BYTES = 16


Named = tuple[str, np.ndarray]
"""A tensor's name and its elements, flat in memory order."""


def tensor_digests(arrays: Iterable[np.ndarray], executor: Executor | None = None) -> list[bytes]:
    """16 bytes for each flat array, whatever `executor`; it makes it faster (xxhash lets go of the
    GIL)."""
    blocks: list[np.ndarray] = []
    counts: list[int] = []
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8)
        cut = [raw[at : at + BLOCK_BYTES] for at in range(0, raw.size, BLOCK_BYTES)]
        counts.append(len(cut))
        blocks += cut
    digests = iter(executor.map(block_digest, blocks) if executor else map(block_digest, blocks))
    return [joined([next(digests) for _ in range(count)]) for count in counts]


def state_digest(tensors: Iterable[Named], digests: Iterable[bytes]) -> bytes:
    """16 bytes that stand for the named tensors, in the order given, by their own digests."""
    whole = xxhash.xxh3_128()
    for (name, array), digest in zip(tensors, digests, strict=True):
        whole.update(name.encode() + b"\0" + struct.pack("<Q", array.nbytes) + digest)
    return whole.digest()


def sha256(raw: bytes | memoryview | np.ndarray) -> str:
    """sha256 of bytes as they lie: a flat gradient, or parameters in registration order."""
    return hashlib.sha256(np.frombuffer(raw, np.uint8).data).hexdigest()


def sha256_file(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def joined(blocks: list[bytes]) -> bytes:
    """A tensor's digest by its blocks' own; of none, that of no bytes."""
    return blocks[0] if len(blocks) == 1 else xxhash.xxh3_128_digest(b"".join(blocks))


def block_digest(raw: np.ndarray) -> bytes:
    """Of at most BLOCK_BYTES."""
    return xxhash.xxh3_128_digest(raw.data)
