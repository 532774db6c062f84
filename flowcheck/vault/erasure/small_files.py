"""Small files that all stores of a set have: the ledger, `latest`, and the list of the stores.

Stores that were down have old ones. So each write has a number, one above all that any store has,
and the file with the highest number counts. A file of which k stores have the newest outlives the
loss of as many stores as the blocks do that these k have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import xxhash

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.untrusted_paths import NAME_BYTES_MAX
from flowcheck.vault.erasure.block_store import BlockStore, of_each
from flowcheck.vault.erasure.isal_code import BLOCKS_MAX

STORES = "stripes.json"
"""Name of the file that names all stores, at each of them."""
STORES_BYTES_MAX = 256 << 10
"""Most bytes of it: BLOCKS_MAX URLs of 4 KiB, and as much again."""
_LINE_BYTES_MAX = 256
"""Most bytes of the line before a file's content."""
NUMBER_MAX = 1 << 62
"""A number above it is damage: nobody writes so often."""


class StoreSet(msgspec.Struct, frozen=True, kw_only=True):
    """All stores of a set, and the code that its next save has."""

    format: int = 1
    data: int
    parity: int
    stores: tuple[str, ...]
    """Paths and URLs, as the chain that saves knows them."""


class _Line(msgspec.Struct):
    number: int
    xxh3: str


def encode_set(own: StoreSet) -> bytes:
    return msgspec.json.format(msgspec.json.encode(own), indent=1) + b"\n"


def decode_set(text: bytes, where: str) -> StoreSet:
    """Raises StateError for a text that `encode_set` did not write."""
    try:
        found = msgspec.json.decode(text, type=StoreSet)
    except DECODE_ERRORS as error:
        raise StateError(told.BAD_SET(file=where, error=error)) from error
    fits = found.format == 1 and found.data >= 1 and found.parity >= 1
    few = found.data + found.parity <= BLOCKS_MAX and len(found.stores) <= BLOCKS_MAX
    plain = all(one.isprintable() and len(one) <= NAME_BYTES_MAX * 16 for one in found.stores)
    if not fits or not few or not plain:
        raise StateError(told.BAD_SET(file=where, error="impossible values"))
    return found


def read_newest(
    stores: Sequence[BlockStore], path: str, most_bytes: int, needed: int
) -> tuple[int, bytes | None]:
    """(number, content) of the newest; (0, None): no store has one. Raises StateError where fewer
    than `needed` stores answer, each with a whole file or none."""
    found = of_each(stores, lambda store: _read(store, path, most_bytes))
    good = [one for one in found if not isinstance(one, Finding)]
    if len(good) < needed:
        why = [one for one in found if isinstance(one, Finding)]
        raise StateError(
            told.TOO_FEW_ANSWER(
                path=path, answered=len(good), stores=len(stores), needed=needed, why=why
            )
        )
    return max(good, key=lambda one: one[0], default=(0, None))


def write_all(
    stores: Sequence[BlockStore], path: str, data: bytes, number: int, needed: int
) -> list[Finding]:
    """Writes it everywhere; why not, of stores that have not taken it. Raises StateError where
    fewer than `needed` have."""
    line = msgspec.json.encode(_Line(number, _sum(number, path, data)))
    found = of_each(stores, lambda store: store.target.write(path, line + b"\n" + data))
    why = [one for one in found if isinstance(one, Finding)]
    if len(stores) - len(why) < needed:
        raise StateError(
            told.TOO_FEW_ANSWER(
                path=path,
                answered=len(stores) - len(why),
                stores=len(stores),
                needed=needed,
                why=why,
            )
        )
    return why


def read_majority(stores: Sequence[BlockStore], path: str, needed: int) -> bytes | None:
    """A file that is written once, the same everywhere: as most stores have it; None: none has.
    Raises StateError where fewer than `needed` stores answer."""
    found = of_each(stores, lambda store: store.target.read(path))
    good = [one for one in found if not isinstance(one, Finding)]
    if len(good) < needed:
        why = [one for one in found if isinstance(one, Finding)]
        raise StateError(
            told.TOO_FEW_ANSWER(
                path=path, answered=len(good), stores=len(stores), needed=needed, why=why
            )
        )
    votes = Counter(one for one in good if one is not None).most_common(1)
    return votes[0][0] if votes else None


def _read(store: BlockStore, path: str, most_bytes: int) -> tuple[int, bytes | None]:
    text = store.target.read(path, most_bytes + _LINE_BYTES_MAX)
    if text is None:
        return 0, None
    first, _, data = text.partition(b"\n")
    where = f"{store.url}/{path}"
    try:
        line = msgspec.json.decode(first, type=_Line)
    except DECODE_ERRORS as error:
        raise StateError(told.SHARD_DAMAGED(file=where, part="first line")) from error
    if not 0 < line.number <= NUMBER_MAX or line.xxh3 != _sum(line.number, path, data):
        raise StateError(told.SHARD_DAMAGED(file=where, part="content"))
    return line.number, data


def _sum(number: int, path: str, data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(f"{number} {path}\n".encode() + data)
