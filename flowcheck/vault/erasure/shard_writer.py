"""Cuts a checkpoint's files into the files of all shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import xxhash

from flowcheck.errors import StateError
from flowcheck.findings.catalog.striped_saves import NOT_THERE
from flowcheck.private_files import make_folder
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.isal_code import Bytes, ErasureCode, aligned_blocks
from flowcheck.vault.erasure.shard_file import SaveHeader


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """The file of one shard."""

    size_bytes: int
    sha256: str
    """"": nobody wants it."""


def write_store_shards(
    folder: Path,
    header: SaveHeader,
    code: ErasureCode,
    places: Sequence[Path],
    beat: Callable[[], None] = lambda: None,
    summed: Collection[int] | None = None,
) -> list[WrittenShard]:
    """Writes the shards of the checkpoint in `folder`: [path of each]. beat: called after each
    stripe. summed: shards whose sha256 is wanted; None: of all. It costs more than the code does,
    and folders are checked by the blocks' digests. Raises StateError where a file is shorter than
    its listing says; OSError."""
    layout, text = header.layout, header.text()
    identity, table = files.identity_of(text), bytearray()
    size, wanted = layout.block_bytes, range(len(places)) if summed is None else summed
    sums = {shard: hashlib.sha256() for shard in wanted}
    data, parity = aligned_blocks(layout.data, size), aligned_blocks(layout.parity, size)
    with ExitStack() as held:
        for place in places:
            make_folder(place.parent)
        made = [held.enter_context(place.open("wb")) for place in places]

        def put(shard: int, part: bytes | memoryview) -> None:
            made[shard].write(part)
            if shard in sums:
                sums[shard].update(part)

        for shard in range(layout.blocks):
            put(shard, files.prefix_of(shard, text) + text)
        stream = _Stream(folder, header)
        held.callback(stream.close)
        for stripe in range(layout.stripes):
            each = layout.block_size(stripe)
            cut_data, cut_parity = _cut(data, each), _cut(parity, each)
            stream.fill(cut_data.reshape(-1))
            code.encode(cut_data, cut_parity)
            digests = [b""] * layout.blocks
            for role in range(layout.blocks):
                block = cut_data[role] if role < layout.data else cut_parity[role - layout.data]
                shard = layout.shard_of(stripe, role)
                put(shard, block.data)
                digests[shard] = xxhash.xxh3_128_digest(block.data)
            table += b"".join(digests)
            beat()
        tail = bytes(table) + files.table_digest(identity, bytes(table))
        for shard, file in enumerate(made):
            put(shard, tail)
            file.flush()
            os.fsync(file.fileno())
    whole = files.file_bytes(layout, len(text))
    told = {shard: one.hexdigest() for shard, one in sums.items()}
    return [WrittenShard(whole, told.get(shard, "")) for shard in range(len(places))]


def _cut(blocks: Bytes, size: int) -> Bytes:
    """[rows, size] in the same room, each row aligned."""
    return blocks.reshape(-1)[: len(blocks) * size].reshape(len(blocks), size)


class _Stream:
    """The checkpoint's files one after the other, then zeros."""

    def __init__(self, folder: Path, header: SaveHeader) -> None:
        self._left = [(folder / file.name, file.bytes) for file in header.striped]
        self._open: BinaryIO | None = None

    def fill(self, room: Bytes) -> None:
        """room: flat. Raises StateError where a file ends too early."""
        view, at = room.data, 0
        while at < len(view) and self._left:
            path, left = self._left[0]
            if left == 0:
                self._left.pop(0)
                self.close()
                continue
            if self._open is None:
                self._open = path.open("rb", buffering=0)
            count = self._open.readinto(view[at : at + min(left, len(view) - at)])  # type: ignore[attr-defined]
            if not count:
                raise StateError(NOT_THERE(path))
            at += count
            self._left[0] = (path, left - count)
        room[at:] = 0

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
