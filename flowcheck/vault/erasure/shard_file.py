"""The file of one store: a prefix, the header of the save, the shard's blocks, and the digests of
the blocks of all shards.

    prefix   magic, version, shard's number, bytes of the header, identity; xxh3-128 of these
    header   JSON, the same at all stores: which checkpoint (name, step, digest, files with their
             sha256) in which code. Its xxh3-128 is the identity of the save
    blocks   one of each stripe
    digests  xxh3-128 of each block of each shard, [stripe][shard]; xxh3-128 of identity and these

Two shards of one identity are of the same bytes, whoever wrote them and when: nothing mixes two
points in time. The digests are at all stores, so that damage to a prefix, a header or the digests
costs no block while one whole copy is left.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import xxhash

from flowcheck.config.persist_serve_config import STORES_MAX
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.replica.checkpoint_files.manifest import MANIFEST
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import checked_checkpoint_name
from flowcheck.vault.erasure.isal_code import ALIGN_BYTES
from flowcheck.vault.erasure.stripe_layout import StripeLayout
from flowcheck.vault.persist.checkpoint_listing import (
    CheckpointListing,
    ListedFile,
    checked_listing,
)

MAGIC, VERSION = b"FCSTRIPE", 1
_PREFIX = struct.Struct("<8sIIQ16s")
PREFIX_BYTES = _PREFIX.size + 16
DIGEST_BYTES = 16
HEADER_BYTES_MAX = 32 << 20
"""As many as a server's listing of files may have (download_source.py, LISTING_BYTES_MAX)."""
TABLE_BYTES_MAX = 128 << 20
"""Most bytes of digests. A choice that bounds memory: 5 TB as 4 + 2 blocks of 1 MiB."""
STRIPE_BYTES_MAX = 64 << 20
"""Most bytes of data in a stripe that is read. A choice that bounds memory."""


class _File(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    sha256: str


class SaveHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved, and in which code; equal at all stores."""

    format: int = 1
    name: str
    step: Step
    digest: str
    """Of the replica's state."""
    files: tuple[_File, ...]
    """Of the checkpoint. The blocks have all but the manifest, one after the other."""
    data: int
    parity: int
    block_bytes: int

    @property
    def layout(self) -> StripeLayout:
        total = sum(file.bytes for file in self.striped)
        return StripeLayout(self.data, self.parity, self.block_bytes, total)

    @property
    def striped(self) -> tuple[_File, ...]:
        return tuple(file for file in self.files if file.name != MANIFEST)

    @property
    def manifest_sha256(self) -> str:
        return next(file.sha256 for file in self.files if file.name == MANIFEST)

    def text(self) -> bytes:
        return msgspec.json.encode(self)


def header_of(
    name: str, listing: CheckpointListing, data: int, parity: int, block_bytes: int
) -> SaveHeader:
    """Raises StateError for a checkpoint of more digests than are ever read."""
    files = tuple(_File(one.name, one.size_bytes, one.sha256) for one in listing.files)
    made = SaveHeader(
        name=name, step=listing.step, digest=listing.digest, files=files,
        data=data, parity=parity, block_bytes=block_bytes,
    )  # fmt: skip
    return _checked(made, name)


def identity_of(header: bytes) -> bytes:
    return xxhash.xxh3_128_digest(header)


def prefix_of(shard: int, header: bytes) -> bytes:
    text = _PREFIX.pack(MAGIC, VERSION, shard, len(header), identity_of(header))
    return text + xxhash.xxh3_128_digest(text)


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the prefix of a shard's file says."""

    shard: int
    header_bytes: int
    identity: bytes


def read_prefix(text: bytes, where: str) -> Prefix:
    """Raises StateError for what `prefix_of` did not write."""
    if len(text) != PREFIX_BYTES or text[:8] != MAGIC:
        raise StateError(told.NO_SHARD(where))
    if xxhash.xxh3_128_digest(text[: _PREFIX.size]) != text[_PREFIX.size :]:
        raise StateError(told.SHARD_DAMAGED(file=where, part="prefix"))
    _, version, shard, header_bytes, identity = _PREFIX.unpack(text[: _PREFIX.size])
    if version != VERSION:
        raise StateError(told.SHARD_VERSION(file=where, version=version, known=VERSION))
    if shard >= STORES_MAX or header_bytes > HEADER_BYTES_MAX:
        raise StateError(told.SHARD_DAMAGED(file=where, part="prefix"))
    return Prefix(shard, header_bytes, identity)


def read_header(text: bytes, identity: bytes, where: str) -> SaveHeader:
    """Raises StateError for a header that is not of this identity, or is impossible."""
    if identity_of(text) != identity:
        raise StateError(told.SHARD_DAMAGED(file=where, part="header"))
    try:
        found = msgspec.json.decode(text, type=SaveHeader)
    except DECODE_ERRORS as error:
        raise StateError(told.SHARD_DAMAGED(file=where, part="header")) from error
    return _checked(found, where)


def _checked(header: SaveHeader, where: str) -> SaveHeader:
    if header.format != 1:
        raise StateError(told.SHARD_VERSION(file=where, version=header.format, known=1))
    checked_checkpoint_name(header.name, where)
    listing_of_header(header, where)
    fits = header.data >= 1 and header.parity >= 1 and header.data + header.parity <= STORES_MAX
    size = header.block_bytes
    if not fits or not 0 < size * header.data <= STRIPE_BYTES_MAX or size % ALIGN_BYTES:
        raise StateError(told.SHARD_DAMAGED(file=where, part="code"))
    if sum(file.name == MANIFEST for file in header.files) != 1:
        raise StateError(told.SHARD_DAMAGED(file=where, part="list of files"))
    if table_bytes(header.layout) > TABLE_BYTES_MAX:
        most = TABLE_BYTES_MAX // DIGEST_BYTES // header.layout.blocks
        most *= header.data * header.block_bytes
        raise StateError(
            told.TOO_LARGE(name=header.name, bytes=header.layout.total_bytes, limit=most)
        )
    return header


def listing_of_header(header: SaveHeader, where: str) -> CheckpointListing:
    """Raises StateError as `checked_listing` does."""
    files = tuple(ListedFile(one.name, one.bytes, one.sha256) for one in header.files)
    return checked_listing(header.step, header.digest, files, where)


def table_bytes(layout: StripeLayout) -> int:
    """Of all digests, without that of the table."""
    return layout.stripes * layout.blocks * DIGEST_BYTES


def file_bytes(layout: StripeLayout, header_bytes: int) -> int:
    """Of the file of one shard."""
    return PREFIX_BYTES + header_bytes + layout.shard_bytes + table_bytes(layout) + DIGEST_BYTES


def table_digest(identity: bytes, table: bytes) -> bytes:
    return xxhash.xxh3_128_digest(identity + table)


def digest_in_table(table: bytes, layout: StripeLayout, stripe: int, shard: int) -> bytes:
    at = (stripe * layout.blocks + shard) * DIGEST_BYTES
    return table[at : at + DIGEST_BYTES]
