"""Makes blocks of a save again that a store lacks, or has damaged, from those of the others.

A store's file is made whole on the local disk, checked, and takes the old one's name at once: no
block that could be read before is lost on the way, whenever the process ends.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from flowcheck.errors import StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.private_files import make_folder
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore
from flowcheck.vault.erasure.save_reader import FoundSave, SaveReader, find_save, manifest_of
from flowcheck.vault.erasure.shard_check import blocks_there, shard_is_whole
from flowcheck.vault.erasure.store_group import StoreGroup
from flowcheck.vault.persist.checkpoint_listing import CheckpointListing, ListedFile
from flowcheck.vault.persist.rate_limit import TransferPace

Checked = dict[tuple[str, str], int]
"""{(checkpoint, store's URL): stripes whose blocks there were found whole}."""


@dataclass(slots=True)
class MendedSave:
    """What became of a save."""

    name: str
    again: dict[str, Finding] = field(default_factory=dict)
    """{URL: what was wrong there and is whole again}."""
    lacking: dict[str, Finding] = field(default_factory=dict)
    """{URL: why blocks of it are not whole, or not seen}."""
    unseen: int = 0
    """Of `lacking` those that do not answer: they may have all blocks."""


class SaveMender:
    """Looks at the saves of a set of stores, and mends them."""

    def __init__(
        self,
        group: StoreGroup,
        scratch: Path,
        pace: TransferPace,
        is_listed: Callable[[str], bool],
        checked: Checked | None = None,
    ) -> None:
        """scratch: a local folder for one store's file. pace: limits what is read, and stops.
        is_listed: whether a save still is one that stays; asked before anything is placed. checked:
        what an earlier look that was stopped has read; kept up to date."""
        self._group, self._scratch, self._pace = group, scratch, pace
        self._is_listed, self._checked = is_listed, {} if checked is None else checked

    def mend(self, name: str, digest: str, *, every_block: bool) -> MendedSave:
        """digest: of the save's state. every_block: whether all blocks of folders are read; else
        what can be told by the heads and lengths of files. Object stores keep checksums of their
        own, and reading costs: of them heads and lengths alone are read. Raises Stopped; StateError
        where fewer than k stores have the save."""
        found = find_save(self._group, name, digest=digest)
        manifest = manifest_of(found, self._group)
        self._pace.heartbeat()
        if manifest is None:
            raise StateError(told.NO_MANIFEST(name))
        made = MendedSave(name)
        of_store = {store: shard for shard, store in found.shards.items()}
        for store in self._group.stores:
            why = self._wrong(found, store, of_store.get(store), manifest, every_block)
            if why is None:
                continue
            if store in self._group.down or why.is_any_of(told.SHARD_OF_OTHER):
                made.lacking[store.url] = why
                made.unseen += store in self._group.down
                continue
            not_mended = self._mend_at(found, store, of_store.get(store), manifest)
            if not_mended is None:
                made.again[store.url] = why
            else:
                made.lacking[store.url] = not_mended
        return made

    def _asked(
        self, store: BlockStore, question: Callable[[BlockStore], Finding | None]
    ) -> Finding | None:
        """What the store, or the question, has against it. Raises Stopped."""
        (answer,) = self._group.ask(question, [store], moved_s=lambda _: self._pace.moved_s)
        self._pace.heartbeat()
        return answer

    def _wrong(
        self,
        found: FoundSave,
        store: BlockStore,
        shard: int | None,
        manifest: bytes,
        every_block: bool,
    ) -> Finding | None:
        """What a store lacks; None: nothing that was looked at."""
        if store in self._group.down:
            return self._group.down[store]
        if shard is None:
            where = f"{store.url}/{found.path()}"
            return found.missing.get(store.url) or told.NOT_THERE(where)
        if (why := found.damaged.get(store.url)) is not None:
            return why
        deep = every_block and store.is_local
        return self._asked(store, lambda one: self._looked(found, one, shard, manifest, deep))

    def _looked(
        self, found: FoundSave, store: BlockStore, shard: int, manifest: bytes, deep: bool
    ) -> Finding | None:
        layout, path = found.header.layout, found.path()
        where = f"{store.url}/{path}"
        if store.size(path) != files.file_bytes(layout, len(found.text)):
            return told.SHARD_DAMAGED(file=where, part="length")
        if store.target.read(f"{found.header.name}/{MANIFEST}") != manifest:
            return told.NOT_THERE(f"{store.url}/{found.header.name}/{MANIFEST}")
        key = found.header.name, store.url
        if not deep:
            return None
        first, begin = self._checked.get(key, 0), found.blocks_begin
        for stripe, is_whole in blocks_there(store, path, begin, layout, found.table, shard, first):
            if not is_whole:
                return told.BLOCK_DAMAGED(file=where, stripe=stripe)
            self._checked[key] = stripe + 1
            size = layout.block_size(stripe)
            self._pace.note_moved(size)
            self._pace.wait_to_send(size)
        return None

    def _mend_at(
        self, found: FoundSave, store: BlockStore, shard: int | None, manifest: bytes
    ) -> Finding | None:
        """Why it could not be; None: the store has all of it now."""
        name = found.header.name
        if shard is None:
            shard = self._free_shard(found, store)
        if shard is None:
            return told.NOT_THERE(f"{store.url}/{found.path()}")
        own = self._scratch / name / f"again-{shard}"
        try:
            reader, far = SaveReader(found, self._group), not store.is_local
            listed = write_shard_again(reader, shard, own / SHARD, self._pace, summed=far)
            if not self._is_listed(name):
                return told.NO_MORE_LISTED(name)

            def placed(one: BlockStore) -> Finding | None:
                one.place_shard(own, name, listed, self._pace)
                if not shard_is_whole(one, found.header, shard, self._pace):
                    where = f"{one.url}/{found.path()}"
                    return told.SHARD_DAMAGED(file=where, part="content")
                one.target.write(f"{name}/{MANIFEST}", manifest)
                return None

            why = self._asked(store, placed)
        except StateError as error:
            if self._pace.stopped:
                raise
            why = error.finding
        shutil.rmtree(own, ignore_errors=True)
        if why is None:
            found.shards[shard] = store
            found.missing.pop(store.url, None)
            found.damaged.pop(store.url, None)
            self._checked.pop((name, store.url), None)
        return why

    def _free_shard(self, found: FoundSave, store: BlockStore) -> int | None:
        """The shard that no store has: that of the store's place in the settings, where it is free,
        else the first."""
        free = [one for one in range(found.header.layout.blocks) if one not in found.shards]
        own = self._group.stores.index(store)
        return own if own in free else next(iter(free), None)


def write_shard_again(
    reader: SaveReader, shard: int, place: Path, pace: TransferPace, *, summed: bool
) -> CheckpointListing:
    """Writes the file of one shard to `place`, from its own whole blocks and those of the others.
    Blocks that a call which was stopped has left there are not made twice. Returns its listing.
    summed: whether that has the file's sha256. Raises StateError where fewer than k blocks of a
    stripe are whole, Stopped; OSError."""
    found, layout = reader.found, reader.layout
    make_folder(place.parent)
    place.touch()
    sha256, size = hashlib.sha256(), 0
    with place.open("r+b") as made:

        def put(part: bytes | memoryview) -> None:
            nonlocal size
            made.seek(size)
            made.write(part)
            if summed:
                sha256.update(part)
            size += len(part)

        put(files.prefix_of(shard, found.text) + found.text)
        for stripe in range(layout.stripes):
            made.seek(size)
            left = made.read(layout.block_size(stripe))
            wanted = files.digest_in_table(found.table, layout, stripe, shard)
            if xxhash.xxh3_128_digest(left) == wanted:
                put(left)
                continue
            pace.wait_to_send(layout.block_size(stripe) * layout.data)
            role = layout.role_of(stripe, shard)
            put(reader.blocks(stripe, [role])[role].data)
            pace.heartbeat()
        put(found.table + files.table_digest(found.identity, found.table))
        made.truncate(size)
        made.flush()
        os.fsync(made.fileno())
    file = ListedFile(SHARD, size, sha256.hexdigest() if summed else "")
    return CheckpointListing(found.header.step, found.header.digest, (file,))
