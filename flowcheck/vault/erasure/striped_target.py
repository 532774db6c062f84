"""Several stores as one storage target: each step as k data blocks and m parities.

A save has two phases. First the blocks of all stores are written, made durable and checked; only if
k stores have theirs does any store get the manifest, without which a save is not there. Killed
before the first manifest, the step is not there; behind it, the step is whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from flowcheck.atomic_write import write_atomically
from flowcheck.errors import StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.manifest import MANIFEST, MANIFEST_MAX_BYTES
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore, refuse_stranger
from flowcheck.vault.erasure.isal_code import ErasureCode
from flowcheck.vault.erasure.save_mending import Checked, MendedSave, SaveMender
from flowcheck.vault.erasure.save_reader import find_save, manifest_of
from flowcheck.vault.erasure.shard_check import shard_is_whole
from flowcheck.vault.erasure.shard_file import SaveHeader, header_of
from flowcheck.vault.erasure.shard_writer import WrittenShard, write_store_shards
from flowcheck.vault.erasure.small_files import quorum, read_majority, read_newest, write_all
from flowcheck.vault.erasure.store_group import LIMIT_S, StoreGroup
from flowcheck.vault.erasure.store_pace import StorePace
from flowcheck.vault.erasure.store_set import join_set
from flowcheck.vault.erasure.stripe_layout import BLOCK_BYTES
from flowcheck.vault.persist.checkpoint_ledger import LEDGER
from flowcheck.vault.persist.checkpoint_ledger import decode as decode_ledger
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile
from flowcheck.vault.persist.rate_limit import TransferPace
from flowcheck.vault.persist.upload_journal import SENT

SHARDS = "shards"
"""Folder below the staging folder, for files on their way to the stores."""
NUMBER = "stripes.number"
"""File in the staging folder with the number of the last write of a small file that began."""


class StripedTarget:
    """k + m stores as `StorageTarget`, which describes the methods. It lives for one save: a store
    that was down is asked again by the next one."""

    def __init__(
        self,
        stores: Sequence[BlockStore],
        data: int,
        parity: int,
        staging: Path,
        block_bytes: int = BLOCK_BYTES,
        limit_s: float = LIMIT_S,
    ) -> None:
        """stores: [of shard 0, of shard 1 ...], data + parity of them. staging: the saver's folder.
        limit_s: of `StoreGroup`. Raises StateError where ISA-L is missing."""
        self.url = stores[0].url
        self._group, self._staging = StoreGroup(stores, limit_s), staging
        self._code, self._block_bytes = ErasureCode(data, parity), block_bytes
        self._quorum, self._joined, self._lock = quorum(data, len(stores)), False, Lock()
        self.short: Finding | None = None
        """Which stores lack the step that was sent last; None: none does."""
        self.lacking = 0
        """How many do."""
        self.stores = len(stores)

    def read(self, path: str, most_bytes: int = MANIFEST_MAX_BYTES) -> bytes | None:
        self._join()
        if path.endswith(f"/{MANIFEST}"):
            return read_majority(self._group, path, self._quorum)
        newest = read_newest(self._group, path, most_bytes, self._quorum)
        if newest.content is not None and newest.stale:
            # What was read must stay the newest, whichever stores answer next.
            needed = max(0, self._quorum - newest.current)
            write_all(self._group, path, newest.content, newest.number, needed, newest.stale)
        return newest.content

    def write(self, path: str, data: bytes) -> None:
        self._join()
        with self._lock:
            number = read_newest(self._group, path, MANIFEST_MAX_BYTES, self._quorum).number
            number = max(number, self._noted_number()) + 1
            make_folder(self._staging)
            write_atomically(self._staging / NUMBER, str(number).encode())
            write_all(self._group, path, data, number, self._quorum)

    def holds(self, name: str) -> bool:
        self._join()
        found = self._group.ask(lambda store: store.target.holds(name))
        return any(one is True for one in found)

    def send(self, folder: Path, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        self._join()
        header = self._header(name, listing)
        make_folder(self._staging)
        (self._staging / f"{name}{SENT}").touch()  # the saver goes on with this checkpoint
        scratch = self._staging / SHARDS / name
        places = [scratch / str(shard) / SHARD for shard in range(self._code.blocks)]
        far = [shard for shard, store in enumerate(self._group.stores) if not store.is_local]
        written = write_store_shards(folder, header, self._code, places, pace.heartbeat, far)
        why = self._put_blocks(header, places, written, pace)
        why |= self._put_manifest(header, (folder / MANIFEST).read_bytes(), why)
        self._tell(name, why)
        shutil.rmtree(scratch, ignore_errors=True)

    def verify(self, name: str, listing: CheckpointListing, pace: TransferPace) -> None:
        """`send` has read every block back: here is checked that stores name it as whole."""
        pace.heartbeat()
        identity = files.identity_of(self._header(name, listing).text())
        found = find_save(self._group, name, identity)
        if manifest_of(found, self._group) is None:
            raise StateError(told.NO_MANIFEST(name))
        pace.heartbeat()

    def remove(self, name: str) -> bool:
        """The manifests of all stores first. False also where a store does not answer: it may have
        the checkpoint."""
        self._join()
        withdrawn = self._group.ask(lambda store: store.withdraw(name))
        gone = self._group.ask(lambda store: store.target.remove(name))
        shutil.rmtree(self._staging / SHARDS / name, ignore_errors=True)
        return all(one is None for one in withdrawn) and all(one is True for one in gone)

    def mend(
        self, name: str, digest: str, pace: TransferPace, checked: Checked, *, every_block: bool
    ) -> MendedSave:
        """Makes blocks again that stores lack of a checkpoint, as `SaveMender.mend`, which
        describes the rest."""
        self._join()
        scratch = self._staging / SHARDS

        def is_listed(wanted: str) -> bool:
            text = self.read(LEDGER)
            entry = decode_ledger(text, f"{self.url}/{LEDGER}").entry(wanted)
            return entry is not None and entry.digest == digest

        mender = SaveMender(self._group, scratch, pace, is_listed, checked)
        return mender.mend(name, digest, every_block=every_block)

    def _header(self, name: str, listing: CheckpointListing) -> SaveHeader:
        return header_of(name, listing, self._code.data, self._code.parity, self._block_bytes)

    def _join(self) -> None:
        with self._lock:
            if not self._joined:
                join_set(self._group, self._code.data, self._code.parity)
                self._joined = True

    def _noted_number(self) -> int:
        with suppress(OSError, ValueError):
            return int((self._staging / NUMBER).read_bytes()[:32])
        return 0

    def _put_blocks(
        self,
        header: SaveHeader,
        places: Sequence[Path],
        written: Sequence[WrittenShard],
        pace: TransferPace,
    ) -> dict[int, Finding]:
        """The first phase: {shard: why its store has not taken it}. Raises StateError where fewer
        than k stores have."""
        jobs = {store: shard for shard, store in enumerate(self._group.stores)}
        paces = {store: StorePace(pace, self._code.data, self._code.blocks) for store in jobs}

        def put(store: BlockStore) -> None:
            shard = jobs[store]
            _put(store, header, shard, places[shard].parent, written[shard], paces[store])

        found = self._group.ask(put, moved_s=lambda store: paces[store].moved_s)
        pace.heartbeat()  # raises where the save was stopped, which is no fault of a store
        why = {n: one for n, one in enumerate(found) if one is not None}
        self._refuse_few(header.name, why)
        return why

    def _put_manifest(
        self, header: SaveHeader, text: bytes, lacking: dict[int, Finding]
    ) -> dict[int, Finding]:
        """The second phase, at the stores that have their blocks."""
        have = [shard for shard in range(self._code.blocks) if shard not in lacking]
        stores = [self._group.stores[shard] for shard in have]
        path = f"{header.name}/{MANIFEST}"
        found = self._group.ask(lambda store: store.target.write(path, text), stores)
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
        self.short, self.lacking = None, len(why)
        if why:
            self.short = told.SAVED_WITHOUT(
                name=name,
                took=took,
                stores=self._code.blocks,
                left=took - self._code.data,
                why=list(why.values()),
            )


def _put(
    store: BlockStore,
    header: SaveHeader,
    shard: int,
    folder: Path,
    written: WrittenShard,
    pace: TransferPace,
) -> None:
    """Brings a shard to its store, and checks there what was brought, or was there. Raises
    StateError or OSError."""
    own = ListedFile(SHARD, written.size_bytes, written.sha256)
    listed = CheckpointListing(header.step, header.digest, (own,))
    if store.is_local and store.target.holds(header.name):
        refuse_stranger(store, header.name)
        with suppress(StateError):
            if shard_is_whole(store, header, shard, pace):
                pace.note_skipped(written.size_bytes)
                return
        store.target.remove(header.name)
    store.target.send(folder, header.name, listed, pace)
    if not store.is_local:
        store.target.verify(header.name, listed, pace)
    elif not shard_is_whole(store, header, shard, pace):
        where = f"{store.url}/{header.name}/{SHARD}"
        raise StateError(told.SHARD_DAMAGED(file=where, part="content"))
