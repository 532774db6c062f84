"""Whether the stores that the settings name are those that were used until now."""

from __future__ import annotations

from collections.abc import Sequence

from flowcheck.errors import StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.vault.erasure.block_store import BlockStore, FolderStore
from flowcheck.vault.erasure.small_files import (
    STORES,
    STORES_BYTES_MAX,
    StoreSet,
    decode_set,
    encode_set,
    quorum,
    read_newest,
    write_all,
)
from flowcheck.vault.erasure.store_group import StoreGroup
from flowcheck.vault.persist.checkpoint_ledger import LEDGER

NEW_STORE = "stripes.new"
"""Name of an empty file that lets a store without `stripes.json` into a set that has saves."""


def refuse_twins(stores: Sequence[BlockStore]) -> None:
    """Raises StateError where two folders are one, as through a link."""
    seen: dict[tuple[int, int], BlockStore] = {}
    for store in stores:
        if (key := folder_key(store)) is None:
            continue
        if key in seen:
            raise StateError(told.SAME_FOLDER(one=seen[key].url, other=store.url))
        seen[key] = store


def folder_key(store: BlockStore) -> tuple[int, int] | None:
    """The same for two names of one folder; None: it is not there, or no folder."""
    if not isinstance(store, FolderStore):
        return None
    try:
        found = store.root.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def join_set(group: StoreGroup, data: int, parity: int) -> None:
    """Names all stores at each of them. One that has no list, while others have, is down for
    `group`: it is a disk that is not mounted. Raises StateError where the stores hold the steps of
    another set, or too few answer."""
    urls = tuple(store.url for store in group.stores)
    own, needed = StoreSet(data=data, parity=parity, stores=urls), quorum(data, len(urls))
    newest = read_newest(group, STORES, STORES_BYTES_MAX, needed)
    if newest.content is None:
        refuse_twins(group.stores)
        write_all(group, STORES, encode_set(own), 1, needed)
        refuse_twins(group.stores)
        return
    known = decode_set(newest.content, STORES)
    same = (known.data, known.parity) == (data, parity) and set(known.stores) == set(urls)
    if not same:
        raise StateError(
            told.OTHER_SET(
                stores=list(urls), data=known.data, parity=known.parity, known=list(known.stores)
            )
        )
    refuse_twins(group.stores)
    if newest.current < needed and not _has_saves(group):
        # Killed while the list was written for the first time.
        write_all(group, STORES, newest.content, newest.number, 0, newest.stale)
        return
    fresh: list[BlockStore] = []
    for store, is_new in zip(newest.stale, group.ask(_is_new, newest.stale), strict=True):
        if is_new is True:
            fresh.append(store)
        else:
            absent = told.NOT_THE_STORE(store=store.url, file=STORES)
            group.down[store] = is_new if isinstance(is_new, Finding) else absent
    if fresh:
        write_all(group, STORES, newest.content, newest.number, 0, fresh)


def _has_saves(group: StoreGroup) -> bool:
    """Whether the set was in use: then stores without the list are disks that are not mounted."""
    return any(one is True for one in group.ask(lambda store: store.target.holds(LEDGER)))


def _is_new(store: BlockStore) -> bool:
    """Whether a store without the list may have one: its list is damaged, or it is let in."""
    return store.target.read(STORES) is not None or store.target.holds(NEW_STORE)
