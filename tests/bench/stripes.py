"""Saves on several stores: the code against ISA-L's own calls in a C loop over the same blocks, and
the files of a save against plain files of the same bytes, on one tmpfs."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Figure, Scale, Work, address, by_turns, loops, memory, together
from flowcheck.vault.erasure.block_store import SHARD, FolderStore
from flowcheck.vault.erasure.isal_code import Bytes, ErasureCode, aligned_blocks
from flowcheck.vault.erasure.save_mending import SaveMender
from flowcheck.vault.erasure.save_reader import SaveReader, find_save
from flowcheck.vault.erasure.shard_file import header_of
from flowcheck.vault.erasure.shard_writer import write_store_shards
from flowcheck.vault.erasure.store_group import StoreGroup
from flowcheck.vault.erasure.stripe_layout import BLOCK_BYTES
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile
from flowcheck.vault.persist.rate_limit import TransferPace

CODES = ((4, 2), (8, 2))
"""k + m. XOR (m = 1) is another call, as fast as memory."""
OF_ISAL, OF_FILES = 0.9, 0.5
"""Targets: the first is what a caller of ISA-L may lose; the second a choice."""
NAME = "step-1"


def figures(how_much: Scale, _: Sequence[Figure]) -> Iterator[Figure]:
    for data, parity in CODES:
        yield from _of_code(how_much, data, parity)
    yield from _of_files(how_much, *CODES[0])


def _of_code(how_much: Scale, data: int, parity: int) -> Iterator[Figure]:
    """Parities of all stripes of the working set, then as many blocks made again."""
    code = ErasureCode(data, parity)
    count = max(1, how_much.bytes // BLOCK_BYTES // code.blocks)
    blocks = aligned_blocks(count * code.blocks, BLOCK_BYTES).reshape(count, code.blocks, -1)
    blocks[:, :data] = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES, np.uint8)
    lost = range(parity)
    left = [one for one in range(code.blocks) if one not in lost][:data]
    again = aligned_blocks(parity, BLOCK_BYTES)

    def encode() -> None:
        for stripe in blocks:
            code.encode(stripe[:data], stripe[data:])

    def rebuild() -> None:
        for stripe in blocks:
            code.rebuild({one: stripe[one] for one in left}, dict(zip(lost, again, strict=True)))

    c_encode = _c_loop(code, code._own, blocks[:, :data], blocks[:, data:])
    tables = code._tables(tuple(left), tuple(lost))
    made = np.broadcast_to(again, (count, *again.shape))
    c_rebuild = _c_loop(code, tables, blocks[:, left[0] : left[0] + data], made)
    works = {"C": Work(c_encode), "ours": Work(encode), "C2": Work(c_rebuild), "two": Work(rebuild)}
    spent = together(how_much.repeats, works)
    rate = {name: count * data * BLOCK_BYTES / 1e9 / value for name, value in spent.items()}
    stage, against = f"code {data} + {parity}", "ISA-L in a C loop"
    yield Figure(stage, "parities, ISA-L in a C loop", rate["C"], "GB/s of data")
    ratio = rate["ours"] / rate["C"]
    yield Figure(stage, "parities", rate["ours"], "GB/s of data", ratio, against, OF_ISAL)
    ratio, what = rate["two"] / rate["C2"], f"{parity} blocks of each stripe made again"
    yield Figure(stage, what, rate["two"], "GB/s of data", ratio, against, OF_ISAL)


def _c_loop(code: ErasureCode, tables: Any, sources: Bytes, made: Bytes) -> Callable[[], None]:
    """sources: [stripe, k, bytes], made: [stripe, rows, bytes]."""
    build, library = loops()
    ffi, isal = code._ffi, code._lib

    def pointers(rows: Bytes) -> Any:
        stripe, row = rows.strides[:2]
        places = [
            address(rows) + one * stripe + at * row
            for one in range(rows.shape[0])
            for at in range(rows.shape[1])
        ]
        return np.array(places, np.uint64)

    held = pointers(sources), pointers(made)
    where = [build.cast("void *", address(one)) for one in held]
    call = build.cast("void *", int(ffi.cast("uintptr_t", ffi.addressof(isal, "ec_encode_data"))))
    table = build.cast("void *", int(ffi.cast("uintptr_t", tables)))
    k, rows = sources.shape[1], made.shape[1]

    def run(_: object = held) -> None:
        library.bench_encode(call, sources.shape[2], k, rows, table, *where, len(sources))

    return run


def _of_files(how_much: Scale, data: int, parity: int) -> Iterator[Figure]:
    size = min(how_much.bytes, 512 << 20)
    with memory(4 * size) as folder:
        save = _Save(folder, size, data, parity)
        plain = folder / "plain"
        works = (
            lambda: _written(plain, size * (data + parity) // data),
            save.write,
            lambda: _read(plain, size),
            save.read,
            save.read_without_one,
            save.look,
            save.make_again,
        )
        before = (
            lambda: plain.unlink(missing_ok=True),
            int,
            int,
            int,
            int,
            int,
            save.lose_one,
        )
        taken = by_turns(how_much.repeats, works, before)
    rate = [size / 1e9 / float(np.median(times)) for times in taken]
    stage, unit = f"save in {data} + {parity} files", "GB/s of data"
    yield Figure(stage, "plain file of as many bytes written", rate[0], unit)
    yield Figure(stage, "written", rate[1], unit, rate[1] / rate[0], "plain file", OF_FILES)
    yield Figure(stage, "plain file read", rate[2], unit)
    for what, value in zip(
        ("read", "read without one store", "looked at, all blocks", "blocks of a store made again"),
        rate[3:],
        strict=True,
    ):
        yield Figure(stage, what, value, unit, value / rate[2], "plain file", None)


class _Save:
    """A checkpoint of one file, on folders of one tmpfs."""

    def __init__(self, folder: Path, size: int, data: int, parity: int) -> None:
        self._folder, self._code = folder, ErasureCode(data, parity)
        whole = folder / "whole"
        whole.mkdir()
        content = np.random.default_rng(2).integers(0, 256, size, np.uint8)
        (whole / "weights").write_bytes(content.data)
        (whole / "manifest.json").write_bytes(b"{}")
        files = tuple(
            ListedFile(one.name, one.stat().st_size, hashlib.sha256(one.read_bytes()).hexdigest())
            for one in sorted(whole.iterdir())
        )
        listing = CheckpointListing(1, "0" * 64, files)  # type: ignore[arg-type]
        self._header = header_of(NAME, listing, data, parity, BLOCK_BYTES)
        self.stores = [folder / f"store{one}" for one in range(data + parity)]
        for store in self.stores:
            (store / NAME).mkdir(parents=True)
            (store / NAME / "manifest.json").write_bytes(b"{}")
        self._size = size

    def write(self) -> None:
        places = [store / NAME / SHARD for store in self.stores]
        write_store_shards(self._folder / "whole", self._header, self._code, places, summed=())

    def _reader(self, stores: Sequence[Path]) -> SaveReader:
        group = StoreGroup([FolderStore(store) for store in stores])
        return SaveReader(find_save(group, NAME), group)

    def _read_from(self, stores: Sequence[Path]) -> None:
        reader = self._reader(stores)
        for stripe in range(reader.layout.stripes):
            reader.blocks(stripe, range(self._code.data))

    def read(self) -> None:
        self._read_from(self.stores)

    def read_without_one(self) -> None:
        self._read_from(self.stores[1:])

    def lose_one(self) -> None:
        shutil.rmtree(self.stores[0] / NAME, ignore_errors=True)

    def look(self) -> None:
        group = StoreGroup([FolderStore(store) for store in self.stores])
        mender = SaveMender(group, self._folder / "scratch", TransferPace(), lambda _: True)
        mended = mender.mend(NAME, "0" * 64, every_block=True)
        assert not mended.lacking, mended

    make_again = look


def _written(path: Path, size: int) -> None:
    block = bytes(BLOCK_BYTES)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // BLOCK_BYTES):
            file.write(block)
        os.fsync(file.fileno())


def _read(path: Path, size: int) -> None:
    room = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        for _ in range(size // BLOCK_BYTES):
            file.readinto(room)
