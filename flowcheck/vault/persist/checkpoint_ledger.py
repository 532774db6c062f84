"""What lies at a target: a file there of our own, so that nothing else is ever taken away.

A store has no folders that appear whole and no rename. So the ledger says before the first byte
which checkpoint is being written, after the last one that it is durable, once `latest` names it
that all is done, and before the first deletion which go. Killed anywhere, the next process sees how
far it was.
"""

from __future__ import annotations

import msgspec

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import (
    checked_checkpoint_name,
    digest_in_name,
    step_in_name,
    step_number,
)

LEDGER = "checkpoints.json"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is durable and was verified."""

    name: str
    step: Step
    digest: str
    """Of the replica's state at this step."""
    bytes: int
    saved: float
    """When, in seconds since 1970."""
    run: str
    """Whose it is: nobody else takes it away."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Of one target."""

    format: int = 1
    entries: tuple[LedgerEntry, ...] = ()
    """In the order they were saved."""
    writing: tuple[str, ...] = ()
    """Names that may be there in part; of an entry's, that `latest` may not name it yet."""
    leaving: tuple[str, ...] = ()
    """Names that may be gone in part."""

    def of(self, run: str) -> tuple[LedgerEntry, ...]:
        """Those of one run."""
        return tuple(entry for entry in self.entries if entry.run == run)

    def with_writing(self, name: str) -> Ledger:
        return msgspec.structs.replace(self, writing=(*self.writing, name))

    def without_writing(self, *names: str) -> Ledger:
        left = tuple(name for name in self.writing if name not in names)
        return msgspec.structs.replace(self, writing=left)

    def with_entry(self, entry: LedgerEntry) -> Ledger:
        """The newest, until `without_writing` one that `latest` does not name yet."""
        others = tuple(one for one in self.entries if one.name != entry.name)
        added = msgspec.structs.replace(self, entries=(*others, entry))
        return added.without_writing(entry.name).with_writing(entry.name)

    def entry(self, name: str) -> LedgerEntry | None:
        return next((one for one in self.entries if one.name == name), None)

    def with_leaving(self, names: tuple[str, ...]) -> Ledger:
        """No entries any more, before they go."""
        left = tuple(entry for entry in self.entries if entry.name not in names)
        return msgspec.structs.replace(self, entries=left, leaving=(*self.leaving, *names))

    def without_leaving(self) -> Ledger:
        """They are gone."""
        return msgspec.structs.replace(self, leaving=())


def encode(ledger: Ledger) -> bytes:
    return msgspec.json.format(msgspec.json.encode(ledger), indent=1) + b"\n"


def decode(text: bytes | None, where: str) -> Ledger:
    """An empty one where there is none. Raises StateError for what `encode` did not write."""
    if text is None:
        return Ledger()
    try:
        ledger = msgspec.json.decode(text, type=Ledger)
    except DECODE_ERRORS as error:
        raise StateError(stores.LEDGER_UNREADABLE(ledger=where, error=error)) from error
    if ledger.format != 1:
        raise StateError(stores.LEDGER_FORMAT(ledger=where, format=ledger.format))
    try:
        _check_names(ledger, where)
    except StateError as error:
        raise StateError(stores.LEDGER_WRONG(error)) from error
    return ledger


def _check_names(ledger: Ledger, where: str) -> None:
    """Nothing but a checkpoint is ever taken away, whatever the ledger says, and each entry's name
    is of its own step."""
    for name in (*ledger.writing, *ledger.leaving):
        checked_checkpoint_name(name, where)
    for entry in ledger.entries:
        name, step = checked_checkpoint_name(entry.name, where), step_number(entry.step, where)
        if step_in_name(name) != step or not entry.digest.startswith(digest_in_name(name)):
            told = stores.LEDGER_STEP(ledger=where, name=name, step=step, digest=repr(entry.digest))
            raise StateError(told)
