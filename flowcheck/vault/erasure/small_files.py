"""Small files that all stores of a set have: the ledger, `latest`, and the list of the stores.

Stores that were down have old ones. So each write has a number, one above all that any store has,
and the file with the highest number counts. More than half of the stores must take a write, and
more than half must answer a read, so that no read misses the last write. Who writes notes each
number on its own disk before: what a killed process left at one store has a number of its own for
ever. Who reads in order to write gives the newest to the stores that lack it first, so it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from flowcheck.config.persist_serve_config import STORES_MAX
from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import (
    NAME_BYTES_MAX,
    is_checkpoint_name,
    step_in_name,
    step_number,
)
from flowcheck.vault.erasure.block_store import BlockStore
from flowcheck.vault.erasure.store_group import StoreGroup

STORES = "stripes.json"
"""Name of the file that names all stores, at each of them."""
STORES_BYTES_MAX = 256 << 10
"""Most bytes of it: STORES_MAX URLs of 4 KiB, and as much again."""
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


def is_one_of_several(folder: Path) -> bool:
    """Whether a folder is a store of a set."""
    return (folder / STORES).is_file()


def striped_step(folder: Path) -> tuple[Path, Step | None] | None:
    """(the store, the step that is named) of a path that is a store of a set, or a step's folder
    there; None: it is neither."""
    if is_one_of_several(folder):
        return folder, None
    if is_one_of_several(folder.parent) and is_checkpoint_name(folder.name):
        return folder.parent, step_number(step_in_name(folder.name), str(folder))
    return None


def encode_set(own: StoreSet) -> bytes:
    return msgspec.json.format(msgspec.json.encode(own), indent=1) + b"\n"


def decode_set(text: bytes, where: str) -> StoreSet:
    """Raises StateError for a text that `encode_set` did not write."""
    try:
        found = msgspec.json.decode(text, type=StoreSet)
    except DECODE_ERRORS as error:
        raise StateError(told.BAD_SET(file=where, error=error)) from error
    fits = found.format == 1 and found.data >= 1 and found.parity >= 1
    few = found.data + found.parity <= STORES_MAX and len(found.stores) <= STORES_MAX
    plain = all(one.isprintable() and len(one) <= NAME_BYTES_MAX * 16 for one in found.stores)
    if not fits or not few or not plain:
        raise StateError(told.BAD_SET(file=where, error="impossible values"))
    return found


def quorum(data: int, stores: int) -> int:
    """Stores that must answer or take a small file: as many as blocks need, and more than half, so
    that any two such sets share a store."""
    return max(data, stores // 2 + 1)


class Newest(NamedTuple):
    """The newest of a small file."""

    number: int
    """0: no store has one."""
    content: bytes | None
    current: int
    """Stores that have it."""
    stale: tuple[BlockStore, ...]
    """Stores that answer and have an older one, or none, or a damaged one."""


def read_newest(
    group: StoreGroup, path: str, most_bytes: int, needed: int, *, absent_counts: bool = True
) -> Newest:
    """Raises StateError where fewer than `needed` stores answer, each with a whole file or none,
    and where two have different contents of the same number. absent_counts: whether a store that
    has none has answered: not where it may be the folder of a disk that is not mounted."""
    found = group.ask(lambda store: _read(store, path, most_bytes))
    if not absent_counts:
        found = [
            told.NOT_THERE(f"{store.url}/{path}") if one == (0, None) else one
            for store, one in zip(group.stores, found, strict=True)
        ]
    good = [one for one in found if not isinstance(one, Finding)]
    _refuse_few(group, path, found, needed)
    number = max((one[0] for one in good), default=0)
    same = [one[1] for one in good if one[0] == number]
    contents = set(same)
    if len(contents) > 1:
        raise StateError(told.NUMBER_TWICE(path=path, number=number))
    stale = (
        store
        for store, one in zip(group.stores, found, strict=True)
        if (one.is_any_of(told.SHARD_DAMAGED) if isinstance(one, Finding) else one[0] < number)
    )
    return Newest(number, same[0] if same else None, len(same), tuple(stale))


def write_all(
    group: StoreGroup,
    path: str,
    data: bytes,
    number: int,
    needed: int,
    among: Sequence[BlockStore] | None = None,
) -> list[Finding]:
    """Writes it everywhere, or to those `among`; why not, of stores that have not taken it. Raises
    StateError where fewer than `needed` have."""
    line = msgspec.json.encode(_Line(number, _sum(number, path, data)))

    def write(store: BlockStore) -> bool:
        store.target.write(path, line + b"\n" + data)
        return True

    found = group.ask(write, among)
    _refuse_few(group, path, found, needed)
    return [one for one in found if isinstance(one, Finding)]


def read_majority(group: StoreGroup, path: str, needed: int) -> bytes | None:
    """A file that is written once, the same everywhere: as most stores have it; None: none has.
    Raises StateError where fewer than `needed` stores answer."""
    found = group.ask(lambda store: (store.target.read(path),))
    _refuse_few(group, path, found, needed)
    votes = Counter(one[0] for one in found if not isinstance(one, Finding) and one[0] is not None)
    most = votes.most_common(1)
    return most[0][0] if most else None


def _refuse_few(group: StoreGroup, path: str, found: Sequence[object], needed: int) -> None:
    why = [one for one in found if isinstance(one, Finding)]
    answered = len(found) - len(why)
    if answered < needed:
        stores = len(group)
        raise StateError(
            told.TOO_FEW_ANSWER(path=path, answered=answered, stores=stores, needed=needed, why=why)
        )


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
