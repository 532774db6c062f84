"""Several stores as one storage target: each step as k data blocks and m parities.

A save has two phases. First the blocks of all stores are written, made durable and checked; only if
k stores have theirs does any store get the manifest, without which a save is not there. Killed
before the first manifest, the step is not there; behind it, the step is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from flowcheck.errors import StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, MANIFEST_MAX_BYTES
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore, of_each, refuse_stranger
from flowcheck.vault.erasure.isal_code import ErasureCode
from flowcheck.vault.erasure.save_reader import find_save, manifest_of
from flowcheck.vault.erasure.shard_check import shard_is_whole
from flowcheck.vault.erasure.shard_file import SaveHeader, header_of
from flowcheck.vault.erasure.shard_writer import WrittenShard, write_shards
from flowcheck.vault.erasure.small_files import (
    STORES,
    STORES_BYTES_MAX,
    StoreSet,
    encode_set,
    read_majority,
    read_newest,
    write_all,
)
from flowcheck.vault.erasure.stripe_layout import BLOCK_BYTES
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile
from flowcheck.vault.persist.rate_limit import Stopped, TransferPace
from flowcheck.vault.persist.upload_journal import SENT

SHARDS = "shards"
"""Folder below the staging folder, for files on their way to the stores."""


class StripedTarget:
    """k + m stores as `StorageTarget`, which describes the methods."""

    def __init__(
        self,
        stores: Sequence[BlockStore],
        data: int,
        parity: int,
        staging: Path,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """stores: [of shard 0, of shard 1 ...], data + parity of them. staging: the saver's folder.
        Raises StateError where ISA-L is missing."""
        self.url = stores[0].url
        self._stores, self._staging = tuple(stores), staging
        self._code, self._block_bytes = ErasureCode(data, parity), block_bytes
        self.short: Finding | None = None
        """Which stores lack the step that was sent last; None: none does."""

    def read(self, path: str, most_bytes: int = MANIFEST_MAX_BYTES) -> bytes | None:
        if path.endswith(f"/{MANIFEST}"):
            return read_majority(self._stores, path, self._code.data)
        return read_newest(self._stores, path, most_bytes, self._code.data)[1]

    def write(self, path: str, data: bytes) -> None:
        needed = self._code.data
        number, old = read_newest(self._stores, path, MANIFEST_MAX_BYTES, needed)
        if old != data or path != STORES:
            write_all(self._stores, path, data, number + 1, needed)

    def holds(self, name: str) -> bool:
        found = of_each(self._stores, lambda store: store.target.holds(name))
        return any(one is True for one in found)

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        header = header_of(name, listing, self._code.data, self._code.parity, self._block_bytes)
        make_folder(self._staging)
        (self._staging / f"{name}{SENT}").touch()  # the saver goes on with this checkpoint
        self._name_stores()
        scratch = self._staging / SHARDS / name
        places = [scratch / str(shard) / SHARD for shard in range(self._code.blocks)]
        written = write_shards(folder, header, self._code, places, pace.heartbeat)
        why = self._put_blocks(header, places, written, pace)
        manifest = (folder / MANIFEST).read_bytes()
        why |= self._put_manifest(header, manifest, why)
        self._tell(name, why)
        shutil.rmtree(scratch, ignore_errors=True)

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """`send` has read every block back: here is checked that stores name it as whole."""
        pace.heartbeat()
        header = header_of(name, listing, self._code.data, self._code.parity, self._block_bytes)
        found = find_save(self._stores, name, files.identity_of(header.text()))
        if manifest_of(found, self._stores) is None:
            raise StateError(told.NO_MANIFEST(name))
        pace.heartbeat()

    def remove(self, name: str) -> bool:
        """False also where a store does not answer: it may have the checkpoint."""
        gone = of_each(self._stores, lambda store: store.target.remove(name))
        shutil.rmtree(self._staging / SHARDS / name, ignore_errors=True)
        return all(one is True for one in gone)

    def _name_stores(self) -> None:
        urls = tuple(store.url for store in self._stores)
        own = StoreSet(data=self._code.data, parity=self._code.parity, stores=urls)
        text, needed = encode_set(own), self._code.data
        number, _ = read_newest(self._stores, STORES, STORES_BYTES_MAX, needed)
        lacking = [
            store
            for store, found in zip(
                self._stores,
                of_each(
                    self._stores, lambda one: read_newest([one], STORES, STORES_BYTES_MAX, 1)[1]
                ),
                strict=True,
            )
            if found != text
        ]
        if lacking:
            write_all(lacking, STORES, text, number + 1, 0)

    def _put_blocks(
        self,
        header: SaveHeader,
        places: Sequence[Path],
        written: Sequence[WrittenShard],
        pace: TransferPace,
    ) -> dict[int, Finding]:
        """The first phase: {shard: why its store has not taken it}. Raises StateError where fewer
        than k stores have."""
        jobs = dict(zip(self._stores, range(self._code.blocks), strict=True))

        def put(store: BlockStore) -> None:
            shard = jobs[store]
            one, folder = written[shard], places[shard].parent
            own = ListedFile(SHARD, one.size_bytes, one.sha256)
            listed = CheckpointListing(header.step, header.digest, (own,))
            if store.is_local and store.target.holds(header.name):
                if self._is_there(header, store, shard, pace):
                    pace.note_skipped(one.size_bytes)
                    return
                refuse_stranger(store, header.name)
                store.target.remove(header.name)
            store.target.send(folder, header.name, listed, pace)
            if not store.is_local:
                store.target.verify(header.name, listed, pace)
            elif not self._is_there(header, store, shard, pace):
                where = f"{store.url}/{header.name}/{SHARD}"
                raise StateError(told.SHARD_DAMAGED(file=where, part="content"))

        found = of_each(self._stores, put)
        pace.heartbeat()
        why = {jobs[s]: one for s, one in zip(self._stores, found, strict=True) if one is not None}
        self._refuse_few(header.name, why)
        return why

    def _is_there(
        self, header: SaveHeader, store: BlockStore, shard: int, pace: TransferPace
    ) -> bool:
        """Whether a store has this shard whole: every byte of the file is read."""
        try:
            return shard_is_whole(store, header, shard, pace)
        except Stopped:
            raise
        except StateError:
            return False

    def _put_manifest(
        self, header: SaveHeader, text: bytes, lacking: dict[int, Finding]
    ) -> dict[int, Finding]:
        """The second phase, at the stores that have their blocks."""
        have = [shard for shard in range(self._code.blocks) if shard not in lacking]
        stores = [self._stores[shard] for shard in have]
        path = f"{header.name}/{MANIFEST}"
        found = of_each(stores, lambda store: store.target.write(path, text))
        why = {s: one for s, one in zip(have, found, strict=True) if one is not None}
        self._refuse_few(header.name, lacking | why)
        return why

    def _refuse_few(self, name: str, why: dict[int, Finding]) -> None:
        took = self._code.blocks - len(why)
        if took < self._code.data:
            raise StateError(
                told.TOO_FEW_TOOK(
                    name=name,
                    took=took,
                    stores=self._code.blocks,
                    needed=self._code.data,
                    why=list(why.values()),
                )
            )

    def _tell(self, name: str, why: dict[int, Finding]) -> None:
        took = self._code.blocks - len(why)
        self.short = None
        if why:
            self.short = told.SAVED_WITHOUT(
                name=name,
                took=took,
                stores=self._code.blocks,
                left=took - self._code.data,
                why=list(why.values()),
            )
