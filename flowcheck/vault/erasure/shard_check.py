"""Whether the file at one store is a certain shard, whole."""

from __future__ import annotations

import xxhash

from flowcheck.vault.erasure import shard_file as files
from flowcheck.vault.erasure.block_store import SHARD, BlockStore
from flowcheck.vault.erasure.save_reader import head_of
from flowcheck.vault.erasure.shard_file import SaveHeader
from flowcheck.vault.persist.rate_limit import TransferPace


def shard_is_whole(store: BlockStore, header: SaveHeader, shard: int, pace: TransferPace) -> bool:
    """By its prefix, header and digests, and by every block. Raises StateError where it cannot be
    read."""
    head = head_of(store, header.name)
    if head.prefix is None or head.table is None or head.text != header.text():
        return False
    layout, path = header.layout, f"{header.name}/{SHARD}"
    begin = files.PREFIX_BYTES + len(head.text)
    whole = begin + layout.shard_bytes + len(head.table) + files.DIGEST_BYTES
    if head.prefix.shard != shard or store.size(path) != whole:
        return False
    for stripe in range(layout.stripes):
        data = store.part(path, begin + stripe * layout.block_bytes, layout.block_size(stripe))
        if xxhash.xxh3_128_digest(data) != files.digest_in_table(head.table, layout, stripe, shard):
            return False
        pace.heartbeat()
    return True
