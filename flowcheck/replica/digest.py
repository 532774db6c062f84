"""What the bytes of a step are, in a few hex digits.

`state_digest` rides along with every step: xxh3_128 of each 16 MiB block, then xxh3_128 over a
table of (section name, bytes, block digests). Blocks are independent, so that they can be taken
by several threads, and later inside the update pass. It finds faults, not forgers: manifests and
`--digests` use sha256.
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


def state_digest(
    sections: Iterable[tuple[str, np.ndarray]], executor: Executor | None = None
) -> bytes:
    """16 bytes that stand for the named flat arrays, in the order given.

    The result does not depend on `executor`, only the time does (xxhash lets go of the GIL).
    """
    blocks: list[np.ndarray] = []
    table: list[tuple[str, int, int]] = []
    for name, array in sections:
        raw = array.reshape(-1).view(np.uint8)
        cut = [raw[at : at + BLOCK_BYTES] for at in range(0, raw.size, BLOCK_BYTES)]
        table.append((name, raw.size, len(cut)))
        blocks += cut
    digests = iter(executor.map(_block, blocks) if executor else map(_block, blocks))
    whole = xxhash.xxh3_128()
    for name, size_bytes, count in table:
        whole.update(name.encode() + b"\0" + struct.pack("<QQ", size_bytes, count))
        for _ in range(count):
            whole.update(next(digests))
    return whole.digest()


def sha256(raw: bytes | memoryview | np.ndarray) -> str:
    """sha256 of bytes as they lie: a flat gradient, or parameters in registration order."""
    return hashlib.sha256(np.frombuffer(raw, np.uint8).data).hexdigest()


def sha256_file(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _block(raw: np.ndarray) -> bytes:
    return xxhash.xxh3_128_digest(raw.data)
