"""A save on several stores as source of a download, by the URL of any one of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from flowcheck.config.persist_serve_config import LOCAL_SCHEMES
from flowcheck.errors import ConfigError, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.latest_pointer import LATEST
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.untrusted_paths import is_checkpoint_name
from flowcheck.vault.download.download_source import AvailableStep, ObjectStoreSource
from flowcheck.vault.erasure.block_store import BlockStore, open_store
from flowcheck.vault.erasure.isal_code import check_isal
from flowcheck.vault.erasure.save_reader import SaveReader, find_save, manifest_of
from flowcheck.vault.erasure.small_files import (
    STORES,
    STORES_BYTES_MAX,
    StoreSet,
    decode_set,
    quorum,
    read_newest,
)
from flowcheck.vault.erasure.store_group import StoreGroup
from flowcheck.vault.erasure.store_set import folder_key
from flowcheck.vault.persist.checkpoint_listing import ListedFile
from flowcheck.vault.persist.object_store import SMALL_BYTES_MAX
from flowcheck.vault.persist.storage_target import PACKAGES


def open_striped(url: str, options: dict[str, Any], timeout_s: float) -> StripedSource | None:
    """The source for a store that is one of several; None: it is not, or does not answer: it is
    read as a store by itself, which says why. Raises StateError for a damaged list of stores, and
    where ISA-L is missing; ConfigError for a URL that cannot be opened."""
    journal = Path(tempfile.gettempdir())  # nothing is uploaded
    own = open_store(url, options, timeout_s, journal, "--from")
    try:
        there = own.size(STORES)
    except StateError:
        return None
    if not there:
        return None
    group = StoreGroup([own], timeout_s)
    text = read_newest(group, STORES, STORES_BYTES_MAX, 1).content or b""
    found = decode_set(text, f"{own.url}/{STORES}")
    check_isal()
    stores = _opened(own, found, options, timeout_s, journal)
    return StripedSource(StoreGroup(stores, timeout_s), found)


def _opened(
    own: BlockStore, found: StoreSet, options: dict[str, Any], timeout_s: float, journal: Path
) -> list[BlockStore]:
    """The stores of a set, of which `own` may have another name here. A list of stores is not
    trusted: no kind is opened that is not a kind of `[persist]`, and `options`, which may have
    keys, go to no other bucket or container than the one that was named."""
    stores, named = [own], urlsplit(own.url)
    schemes = {*LOCAL_SCHEMES, *PACKAGES, named.scheme}
    for url in dict.fromkeys(found.stores):
        parts = urlsplit(url)
        if url == own.url or parts.scheme not in schemes:
            continue
        trusted = (parts.scheme, parts.netloc) == (named.scheme, named.netloc)
        with suppress(ConfigError):
            given = options if trusted else {}
            stores.append(open_store(url, given, timeout_s, journal, "--from"))
    return _without_twins(stores)


def _without_twins(stores: Sequence[BlockStore]) -> list[BlockStore]:
    """Without folders that are one folder by two names, as through a link or a second mount."""
    kept: dict[object, BlockStore] = {}
    for store in stores:
        kept.setdefault(folder_key(store) or store.url, store)
    return list(kept.values())


class StripedSource(ObjectStoreSource):
    """k + m stores as `DownloadSource`. What is looked for, and how, is as at a store by itself;
    the bytes come from k blocks of each stripe."""

    def __init__(self, group: StoreGroup, own: StoreSet) -> None:
        """group: the store that was named, then the others that can be opened."""
        self.url, self._group, self._set = group.stores[0].url, group, own
        self._quorum = quorum(own.data, len(own.stores))
        self._readers: dict[str, SaveReader] = {}
        self._lock = Lock()
        self._remarks: dict[str, Finding] = {}

    def read(self, offer: AvailableStep, file: ListedFile, begin: int, size: int) -> bytes:
        if file.name == MANIFEST:
            return (self._cat(f"{offer.name}/{MANIFEST}") or b"")[begin : begin + size]
        return self._reader(offer.name).read(file.name, begin, size)

    def remarks(self) -> list[Finding]:
        """What was read without some stores."""
        self.close()
        return list(self._remarks.values())

    def close(self) -> None:
        """Readers are made again where more is read."""
        with self._lock:
            readers, self._readers = self._readers, {}
        for name, reader in readers.items():
            of, damaged = reader.layout.blocks, list(reader.found.damaged.values())
            why = reader.without()
            left = max(0, reader.layout.parity - len(why) - len(damaged))
            if damaged:
                heads = told.HEADS_DAMAGED(stores=len(damaged), of=of, left=left, why=damaged[:8])
                self._remarks[f"{name}, heads"] = heads
            if why:
                remark = told.READ_WITHOUT(stores=len(why), of=of, left=left, why=why[:8])
                self._remarks[name] = remark

    def _reader(self, name: str) -> SaveReader:
        entry = self._ledger().entry(name) if name not in self._readers else None
        with self._lock:
            if name not in self._readers:
                digest = entry.digest if entry is not None else None
                found = find_save(self._group, name, digest=digest)
                self._readers[name] = SaveReader(found, self._group)
            return self._readers[name]

    def _cat(self, path: str, most_bytes: int = SMALL_BYTES_MAX) -> bytes | None:
        name, _, rest = path.partition("/")
        if rest != MANIFEST:
            # The newest step is asked of so many that one must know it; a step that is named is
            # proved by its blocks.
            if path == LATEST:
                needed = self._quorum
                found = read_newest(self._group, path, most_bytes, needed, absent_counts=False)
                return found.content
            return read_newest(self._group, path, most_bytes, 1).content
        if not is_checkpoint_name(name) or not self._is_named(name):
            return None
        text = manifest_of(self._reader(name).found, self._group)
        if text is None:
            raise StateError(told.NO_MANIFEST(name))
        return text

    def _is_named(self, name: str) -> bool:
        """Whether the ledger lists it as durable: what is being written or deleted is not there."""
        return self._ledger().entry(name) is not None

    def _names(self) -> list[str]:
        return [entry.name for entry in self._ledger().entries]
