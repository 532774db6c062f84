"""Reads a save back from whichever stores are there. A block that differs from its digest is
missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

import numpy as np
import xxhash

from flowcheck.errors import StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore
from flowcheck.vault.erasure.isal_code import Bytes, ErasureCode, aligned_blocks
from flowcheck.vault.erasure.shard_file import SaveHeader
from flowcheck.vault.erasure.store_group import StoreGroup

CACHE_BYTES = 64 << 20
"""Most bytes of stripes that are kept for the next read. A choice: parts of files that are asked
for at the same time share stripes."""
WHY_MOST = 8
"""Most reasons in one sentence. A choice of layout."""


@dataclass(frozen=True, slots=True)
class ShardHead:
    """What one store says before any block is read."""

    prefix: files.Prefix | None
    header: SaveHeader | None
    text: bytes
    table: bytes | None
    """None: damaged."""
    why: Finding | None
    """What is damaged, where something is."""


@dataclass(slots=True)
class FoundSave:
    """A save of which k stores have a file. Blocks may be damaged nevertheless."""

    header: SaveHeader
    text: bytes
    table: bytes
    shards: dict[int, BlockStore]
    """{number: the store with the file}."""
    missing: dict[str, Finding] = field(default_factory=dict)
    """{URL: why its file is not taken}."""
    damaged: dict[str, Finding] = field(default_factory=dict)
    """{URL: what of its file is damaged, beside blocks}."""

    @property
    def identity(self) -> bytes:
        return files.identity_of(self.text)

    @property
    def blocks_begin(self) -> int:
        return files.PREFIX_BYTES + len(self.text)

    def path(self) -> str:
        return f"{self.header.name}/{SHARD}"


def find_save(
    group: StoreGroup, name: str, identity: bytes | None = None, digest: str | None = None
) -> FoundSave:
    """The save of this name. identity, digest: of which one, by its header or by the state's digest
    alone; None: of which most stores have a file. Raises StateError where fewer than k have one."""
    stores = group.stores
    heads = dict(zip(stores, group.ask(lambda one: head_of(one, name)), strict=True))
    whole = {
        store: head
        for store, head in heads.items()
        if isinstance(head, ShardHead)
        and head.header is not None
        and digest in (None, head.header.digest)
    }
    known = {files.identity_of(head.text): head for head in whole.values()}
    if identity is None:
        votes = [files.identity_of(head.text) for head in whole.values()]
        identity = max(votes, key=votes.count, default=b"")
    own = known.get(identity)
    why = [one for one in heads.values() if isinstance(one, Finding)]
    if own is None or own.header is None:
        damaged = [one.why for one in heads.values() if isinstance(one, ShardHead) and one.why]
        raise _too_few(name, 0, len(stores), 1, [*why, *damaged])
    tables = (
        head.table
        for head in whole.values()
        if head.table is not None and files.identity_of(head.text) == identity
    )
    table = next(tables, None)
    if table is None:
        damaged = [head.why for head in whole.values() if head.why]
        raise _too_few(name, 0, len(stores), own.header.data, damaged)
    found = FoundSave(own.header, own.text, table, {})
    _assign(found, heads, group)
    if len(found.shards) < found.header.data:
        reasons = [*found.missing.values()]
        raise _too_few(name, len(found.shards), len(stores), found.header.data, reasons)
    return found


def _assign(
    found: FoundSave, heads: Mapping[BlockStore, ShardHead | Finding], group: StoreGroup
) -> None:
    """Which store has which shard: by its prefix; by its first block where that is damaged."""
    unsure: list[BlockStore] = []
    for store, head in heads.items():
        where = f"{store.url}/{found.path()}"
        if isinstance(head, Finding):
            found.missing[store.url] = head
        elif head.prefix is None or head.header is None:
            unsure.append(store)
            found.damaged[store.url] = head.why or told.NO_SHARD(where)
        elif head.prefix.identity != found.identity:
            found.missing[store.url] = told.SHARD_OF_OTHER(where)
        elif head.prefix.shard >= found.header.layout.blocks:
            found.missing[store.url] = told.SHARD_DAMAGED(file=where, part="prefix")
        elif head.prefix.shard in found.shards:
            found.missing[store.url] = told.SHARD_TWICE(file=where, shard=head.prefix.shard)
        else:
            found.shards[head.prefix.shard] = store
            if head.why is not None:
                found.damaged[store.url] = head.why
    for store, shard in zip(
        unsure, group.ask(lambda one: _by_first_block(found, one), unsure), strict=True
    ):
        if isinstance(shard, Finding) or shard < 0 or shard in found.shards:
            found.missing[store.url] = found.damaged.pop(store.url)
        else:
            found.shards[shard] = store


def _by_first_block(found: FoundSave, store: BlockStore) -> int:
    """The shard whose first block the store has; -1: of none. Raises StateError."""
    layout = found.header.layout
    if not layout.stripes:
        return -1
    data = store.part(found.path(), found.blocks_begin, layout.block_size(0))
    digest = xxhash.xxh3_128_digest(data)
    of_each = (files.digest_in_table(found.table, layout, 0, one) for one in range(layout.blocks))
    return next((shard for shard, one in enumerate(of_each) if one == digest), -1)


def head_of(store: BlockStore, name: str) -> ShardHead:
    """What a store's file says. Raises StateError where it has none or does not answer."""
    path = f"{name}/{SHARD}"
    where = f"{store.url}/{path}"
    try:
        prefix = files.read_prefix(store.part(path, 0, files.PREFIX_BYTES), where)
    except StateError as error:
        if error.finding.is_any_of(told.NO_SHARD, told.SHARD_DAMAGED):
            return ShardHead(None, None, b"", None, error.finding)
        raise
    text = store.part(path, files.PREFIX_BYTES, prefix.header_bytes)
    try:
        header = files.read_header(text, prefix.identity, where)
        if header.name != name:
            raise StateError(told.SHARD_OF_OTHER(where))
    except StateError as error:
        if error.finding.is_any_of(told.SHARD_DAMAGED):
            return ShardHead(prefix, None, b"", None, error.finding)
        raise
    layout = header.layout
    size = files.table_bytes(layout)
    begin = files.PREFIX_BYTES + len(text) + layout.shard_bytes
    tail = store.part(path, begin, size + files.DIGEST_BYTES)
    good = len(tail) == size + files.DIGEST_BYTES
    if good and files.table_digest(prefix.identity, tail[:size]) == tail[size:]:
        return ShardHead(prefix, header, text, tail[:size], None)
    return ShardHead(
        prefix, header, text, None, told.SHARD_DAMAGED(file=where, part="list of digests")
    )


def manifest_of(found: FoundSave, group: StoreGroup) -> bytes | None:
    """The manifest of exactly these blocks, from any store; None: none has it: the save did not
    come to its end."""
    path = f"{found.header.name}/{MANIFEST}"
    for text in group.ask(lambda one: one.target.read(path) or b""):
        if isinstance(text, Finding):
            continue
        if sha256(text).hexdigest() == found.header.manifest_sha256:
            return text
    return None


class SaveReader:
    """Bytes of a save, each block checked. Methods may be called in any thread."""

    def __init__(self, found: FoundSave, group: StoreGroup) -> None:
        self._group = group
        self.found, self.layout = found, found.header.layout
        self._code = ErasureCode(found.header.data, found.header.parity)
        self._lock, self._kept = Lock(), OrderedDict[int, Bytes]()
        self.lost: dict[str, Finding] = {}
        """{URL: why the first block of it that was wanted was not there}."""
        self._begin: dict[str, int] = {}
        at = 0
        for file in found.header.striped:
            self._begin[file.name] = at
            at += file.bytes

    def without(self) -> list[Finding]:
        """Why blocks of stores were not read: one reason for each store; [] where all were."""
        of_stores = self.found.missing | self.lost
        unseen = self.layout.blocks - len(self.found.shards) - len(self.found.missing)
        name = self.found.header.name
        return [*of_stores.values(), *[told.NOT_THERE(f"{name}: a store")] * max(0, unseen)]

    def read(self, file: str, begin: int, size: int) -> bytes:
        """Bytes of a file of the checkpoint. Raises StateError where fewer than k blocks of a
        stripe are whole, KeyError for a file that is not listed."""
        at, parts = self._begin[file] + begin, list[bytes]()
        stripe_bytes = self.layout.data * self.layout.block_bytes
        while size > 0:
            stripe, offset = divmod(at, stripe_bytes)
            part = self.stripe(stripe)[offset : offset + size]
            if not len(part):
                raise StateError(told.NOT_THERE(file))
            parts.append(part.tobytes())
            at, size = at + len(part), size - len(part)
        return b"".join(parts)

    def stripe(self, stripe: int) -> Bytes:
        """The data of a stripe, flat, with the zeros behind the last one."""
        with self._lock:
            if (kept := self._kept.get(stripe)) is not None:
                self._kept.move_to_end(stripe)
                return kept
        data = range(self.layout.data)
        blocks = self.blocks(stripe, data)
        made = np.concatenate([blocks[role] for role in data])
        with self._lock:
            self._kept[stripe] = made
            while sum(map(len, self._kept.values())) > CACHE_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made

    def blocks(self, stripe: int, wanted: Sequence[int]) -> dict[int, Bytes]:
        """{role: block} of the roles `wanted`, read or made again. Raises StateError where fewer
        than k are whole."""
        have, why = self._fetched(stripe, list(wanted))
        lacking = [role for role in wanted if role not in have]
        if lacking:
            others = [role for role in range(self.layout.blocks) if role not in wanted]
            more, why_more = self._fetched(stripe, others)
            have |= more
            self._make(stripe, have, lacking, [*why, *why_more])
        return {role: have[role] for role in wanted}

    def _make(
        self, stripe: int, have: dict[int, Bytes], lacking: Sequence[int], why: list[Finding]
    ) -> None:
        name, needed = self.found.header.name, self.layout.data
        if len(have) < needed:
            raise StateError(
                told.TOO_FEW_BLOCKS(
                    name=name, stripe=stripe, found=len(have), needed=needed, why=why[:WHY_MOST]
                )
            )
        room = aligned_blocks(len(lacking), self.layout.block_size(stripe))
        made = dict(zip(lacking, room, strict=True))
        self._code.rebuild(have, made)
        for role, block in made.items():
            if not self._is_whole(stripe, self.layout.shard_of(stripe, role), block):
                where = f"{name}, shard {self.layout.shard_of(stripe, role)}"
                raise StateError(told.BLOCK_DAMAGED(file=where, stripe=stripe))
        have |= made

    def _fetched(self, stripe: int, roles: Sequence[int]) -> tuple[dict[int, Bytes], list[Finding]]:
        shards = {role: self.layout.shard_of(stripe, role) for role in roles}
        stores = {r: self.found.shards[s] for r, s in shards.items() if s in self.found.shards}
        role_of = {store: role for role, store in stores.items()}
        asked = list(role_of)
        blocks = self._group.ask(lambda one: self._fetch(one, stripe, role_of[one]), asked)
        name = self.found.header.name
        found: dict[int, Bytes] = {}
        why = [
            told.BLOCK_MISSING(file=f"{name}, shard {shards[role]}", stripe=stripe)
            for role in roles
            if role not in stores
        ]
        for store, block in zip(asked, blocks, strict=True):
            if isinstance(block, Finding):
                why.append(block)
                self.lost.setdefault(store.url, block)
            else:
                found[role_of[store]] = block
        return found, why

    def _fetch(self, store: BlockStore, stripe: int, role: int) -> Bytes:
        """Raises StateError where it is missing or damaged."""
        shard = self.layout.shard_of(stripe, role)
        path, size = self.found.path(), self.layout.block_size(stripe)
        where = f"{store.url}/{path}"
        begin = self.found.blocks_begin + stripe * self.layout.block_bytes
        data = store.part(path, begin, size)
        if len(data) != size:
            raise StateError(told.BLOCK_MISSING(file=where, stripe=stripe))
        block: Bytes = aligned_blocks(1, size)[0]
        block[:] = np.frombuffer(data, dtype=np.uint8)
        if not self._is_whole(stripe, shard, block):
            raise StateError(told.BLOCK_DAMAGED(file=where, stripe=stripe))
        return block

    def _is_whole(self, stripe: int, shard: int, block: Bytes) -> bool:
        told_ = files.digest_in_table(self.found.table, self.layout, stripe, shard)
        return xxhash.xxh3_128_digest(block.data) == told_


def _too_few(name: str, found: int, stores: int, needed: int, why: Sequence[Finding]) -> StateError:
    finding = told.TOO_FEW_SHARDS(
        name=name, found=found, stores=stores, needed=needed, why=list(why)[:WHY_MOST]
    )
    return StateError(finding)
