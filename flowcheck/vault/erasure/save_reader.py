"""Reads a save back from whichever stores are there. A block that differs from its digest is
missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock

import numpy as np
import xxhash

from flowcheck.errors import FlowCheckError, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore, of_each
from flowcheck.vault.erasure.isal_code import Bytes, ErasureCode, aligned_blocks
from flowcheck.vault.erasure.shard_file import SaveHeader

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


def find_save(stores: Sequence[BlockStore], name: str, identity: bytes | None = None) -> FoundSave:
    """The save of this name. identity: of which one; None: of which most stores have a file. Raises
    StateError where fewer than k have one."""
    heads = dict(zip(stores, of_each(stores, lambda one: head_of(one, name)), strict=True))
    whole = {
        store: head
        for store, head in heads.items()
        if isinstance(head, ShardHead) and head.header is not None
    }
    known = {files.identity_of(head.text): head for head in whole.values() if head.text}
    if identity is None:
        # A damaged prefix or header of one store outvotes none: it has no identity.
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
    _assign(found, heads)
    if len(found.shards) < found.header.data:
        reasons = [*found.missing.values()]
        raise _too_few(name, len(found.shards), len(stores), found.header.data, reasons)
    return found


def _assign(found: FoundSave, heads: Mapping[BlockStore, ShardHead | Finding]) -> None:
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
    for store in unsure:
        shard = _by_first_block(found, store)
        if shard is None:
            found.missing[store.url] = found.damaged.pop(store.url)
        else:
            found.shards[shard] = store


def _by_first_block(found: FoundSave, store: BlockStore) -> int | None:
    layout = found.header.layout
    if not layout.stripes:
        return None
    try:
        data = store.part(found.path(), found.blocks_begin, layout.block_size(0))
    except FlowCheckError:
        return None
    digest = xxhash.xxh3_128_digest(data)
    for shard in range(layout.blocks):
        same = files.block_digest(found.table, layout, 0, shard) == digest
        if same and shard not in found.shards:
            return shard
    return None


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


def manifest_of(found: FoundSave, stores: Sequence[BlockStore]) -> bytes | None:
    """The manifest of exactly these blocks, from any store; None: none has it: the save did not
    come to its end."""
    path = f"{found.header.name}/{MANIFEST}"
    for text in of_each(stores, lambda one: one.target.read(path)):
        same = isinstance(text, bytes) and sha256(text).hexdigest()
        if same == found.header.manifest_sha256:
            assert isinstance(text, bytes)
            return text
    return None


class SaveReader:
    """Bytes of a save, each block checked. Methods may be called in any thread."""

    def __init__(self, found: FoundSave) -> None:
        self.found, self.layout = found, found.header.layout
        self._code = ErasureCode(found.header.data, found.header.parity)
        self._lock, self._kept = Lock(), OrderedDict[int, Bytes]()
        self._pool = ThreadPoolExecutor(self.layout.blocks, "block")
        self.lost: dict[str, Finding] = {}
        """{URL: why the first block of it that was wanted was not there}."""
        self._begin: dict[str, int] = {}
        at = 0
        for file in found.header.striped:
            self._begin[file.name] = at
            at += file.bytes

    def close(self) -> None:
        self._pool.shutdown(wait=False)

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
        found: dict[int, Bytes] = {}
        why: list[Finding] = []
        asked = self._pool.map(lambda role: self._fetch(stripe, role), roles)
        for role, block in zip(roles, asked, strict=True):
            if isinstance(block, Finding):
                why.append(block)
            else:
                found[role] = block
        return found, why

    def _fetch(self, stripe: int, role: int) -> Bytes | Finding:
        shard = self.layout.shard_of(stripe, role)
        store = self.found.shards.get(shard)
        if store is None:
            return told.BLOCK_MISSING(
                file=f"{self.found.header.name}, shard {shard}", stripe=stripe
            )
        path, size = self.found.path(), self.layout.block_size(stripe)
        where = f"{store.url}/{path}"
        begin = self.found.blocks_begin + stripe * self.layout.block_bytes
        why: Finding
        try:
            data = store.part(path, begin, size)
        except FlowCheckError as error:
            why = error.finding
        else:
            block: Bytes = aligned_blocks(1, size)[0]
            if len(data) == size:
                block[:] = np.frombuffer(data, dtype=np.uint8)
                if self._is_whole(stripe, shard, block):
                    return block
                why = told.BLOCK_DAMAGED(file=where, stripe=stripe)
            else:
                why = told.BLOCK_MISSING(file=where, stripe=stripe)
        self.lost.setdefault(store.url, why)
        return why

    def _is_whole(self, stripe: int, shard: int, block: Bytes) -> bool:
        told_ = files.block_digest(self.found.table, self.layout, stripe, shard)
        return xxhash.xxh3_128_digest(block.data) == told_


def _too_few(name: str, found: int, stores: int, needed: int, why: Sequence[Finding]) -> StateError:
    finding = told.TOO_FEW_SHARDS(
        name=name, found=found, stores=stores, needed=needed, why=list(why)[:WHY_MOST]
    )
    return StateError(finding)
