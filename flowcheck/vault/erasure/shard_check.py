"""Whether the file at one store is a certain shard, whole."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore
from flowcheck.vault.erasure.save_reader import head_of
from flowcheck.vault.erasure.shard_file import SaveHeader
from flowcheck.vault.erasure.stripe_layout import StripeLayout
from flowcheck.vault.persist.rate_limit import TransferPace


def shard_is_whole(store: BlockStore, header: SaveHeader, shard: int, pace: TransferPace) -> bool:
    """By its prefix, header and digests, and by every block. Raises StateError where it cannot be
    read."""
    head = head_of(store, header.name)
    if head.prefix is None or head.table is None or head.text != header.text():
        return False
    layout, path = header.layout, f"{header.name}/{SHARD}"
    begin, whole = files.PREFIX_BYTES + len(head.text), files.file_bytes(layout, len(head.text))
    if head.prefix.shard != shard or store.size(path) != whole:
        return False
    for _, is_whole in blocks_there(store, path, begin, layout, head.table, shard):
        if not is_whole:
            return False
        pace.heartbeat()
    return True


def blocks_there(
    store: BlockStore,
    path: str,
    begin: int,
    layout: StripeLayout,
    table: bytes,
    shard: int,
    first: int = 0,
) -> Iterator[tuple[int, bool]]:
    """(stripe, whether the store's block is as the digests tell), read one after the other. begin:
    of the blocks in the file. first: stripe to begin with. Raises StateError."""
    for stripe in range(first, layout.stripes):
        data = store.part(path, begin + stripe * layout.block_bytes, layout.block_size(stripe))
        wanted = files.digest_in_table(table, layout, stripe, shard)
        yield stripe, xxhash.xxh3_128_digest(data) == wanted
