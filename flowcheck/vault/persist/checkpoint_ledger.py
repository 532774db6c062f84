"""The ledger of a target: a file at the target that lists FlowCheck's checkpoints there. FlowCheck
deletes nothing that the ledger does not list.

An object store has no atomic folders and no rename. So the ledger is written at four times:

- before the first byte of a checkpoint: its name is in `writing`;
- after its last byte: it is a durable entry;
- once `latest` names it: its name leaves `writing`;
- before checkpoints are deleted: their names are in `leaving`.

After a kill at any time, the next process sees in the ledger how far the killed one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flowcheck.errors import DECODE_ERRORS, StateError
from flowcheck.findings.catalog import checkpoint_stores as stores
from flowcheck.findings.catalog.checkpoint_downloads import DOUBTED_BY_SERVER
from flowcheck.findings.catalog.file_audits import DOUBTED
from flowcheck.findings.catalog.lost_steps import CALLED_EXACT_BEFORE
from flowcheck.findings.catalog.striped_saves import LIST_GONE
from flowcheck.findings.finding import Finding
from flowcheck.step_numbers import Step
from flowcheck.untrusted_paths import (
    checked_checkpoint_name,
    digest_in_name,
    step_in_name,
    step_number,
)
from flowcheck.untrusted_text import printable

LEDGER = "checkpoints.json"


DOUBTS_MAX = 8
"""Doubts of one step that are taken from elsewhere. A choice: a single one makes it doubtful."""
WORDS_MAX = 500
"""Most characters of one that are shown. A choice of layout."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is durable and verified."""

    name: str
    step: Step
    digest: str
    """Digest of the replica's state at this step."""
    bytes: int
    saved: float
    """Time of the save, in seconds since 1970."""
    run: str
    """Name of the run that saved the checkpoint. Only this run deletes it."""
    tainted: bool = False
    """Elements of it rest on bytes that no mirror brought."""
    lacking: int = 0
    """Of several stores those that did not take it when it was saved."""
    doubts: tuple[Finding, ...] = ()
    """What came to light behind its save, where the run could still write it here."""

    @property
    def lacks_bytes(self) -> bool:
        """By its manifest, or by what turned out behind it."""
        return self.tainted or any(one.is_any_of(CALLED_EXACT_BEFORE) for one in self.doubts)

    @property
    def is_exact(self) -> bool:
        """Neither its manifest says otherwise, nor what came to light behind it."""
        return not self.tainted and not self.doubts


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints at one target."""

    format: int = 1
    entries: tuple[LedgerEntry, ...] = ()
    """Durable checkpoints, in the order they were saved."""
    writing: tuple[str, ...] = ()
    """Names of checkpoints that may be incomplete. If the name has an entry, the checkpoint is
    complete, but `latest` may not name it yet."""
    leaving: tuple[str, ...] = ()
    """Names of checkpoints that are being deleted and may be partly gone."""

    later: dict[str, Finding] = {}
    """{run: the audit that failed}: steps that are made from its saves, by gradients that were
    kept, are in doubt like those that it saves."""

    def of(self, run: str) -> tuple[LedgerEntry, ...]:
        """The entries of one run."""
        return tuple(entry for entry in self.entries if entry.run == run)

    def with_writing(self, name: str) -> Ledger:
        return msgspec.structs.replace(self, writing=(*self.writing, name))

    def without_writing(self, *names: str) -> Ledger:
        left = tuple(name for name in self.writing if name not in names)
        return msgspec.structs.replace(self, writing=left)

    def with_entry(self, entry: LedgerEntry) -> Ledger:
        """Adds `entry` as the newest. Its name stays in `writing` until `latest` names it."""
        others = tuple(one for one in self.entries if one.name != entry.name)
        added = msgspec.structs.replace(self, entries=(*others, entry))
        return added.without_writing(entry.name).with_writing(entry.name)

    def entry(self, name: str) -> LedgerEntry | None:
        return next((one for one in self.entries if one.name == name), None)

    def newest_beside(self, name: str) -> str | None:
        """The name of the newest checkpoint of the run that saved this one; None: it is not
        listed."""
        entry = self.entry(name)
        return None if entry is None else self.of(entry.run)[-1].name

    def with_doubts(self, told: Mapping[str, tuple[Finding, ...]]) -> Ledger:
        """told: {name: all doubts in that checkpoint}; others keep theirs."""
        entries = tuple(
            msgspec.structs.replace(one, doubts=told.get(one.name, one.doubts))
            for one in self.entries
        )
        return msgspec.structs.replace(self, entries=entries)

    def with_doubt_of_later(self, run: str, why: Finding | None) -> Ledger:
        """why: the doubt in steps made from this run's saves; None: there is none."""
        later = {name: one for name, one in self.later.items() if name != run}
        return msgspec.structs.replace(self, later=later | ({} if why is None else {run: why}))

    def with_leaving(self, names: tuple[str, ...]) -> Ledger:
        """Moves names from the entries to `leaving`, before their files are deleted."""
        left = tuple(entry for entry in self.entries if entry.name not in names)
        return msgspec.structs.replace(self, entries=left, leaving=(*self.leaving, *names))

    def without_leaving(self) -> Ledger:
        """Clears `leaving`, after the files are deleted."""
        return msgspec.structs.replace(self, leaving=())


def encode(ledger: Ledger) -> bytes:
    return msgspec.json.format(msgspec.json.encode(ledger), indent=1) + b"\n"


def decode(text: bytes | None, where: str) -> Ledger:
    """The ledger in `text`; an empty one if `text` is None. where: its name in errors. Raises
    StateError for a text that `encode` did not write."""
    if text is None:
        return Ledger()
    try:
        ledger = msgspec.json.decode(text, type=Ledger)
    except DECODE_ERRORS as error:
        if text.startswith(b'{"number":'):  # the line before small files of several stores
            raise StateError(LIST_GONE(where)) from error
        raise StateError(stores.LEDGER_UNREADABLE(ledger=where, error=error)) from error
    if ledger.format != 1:
        raise StateError(stores.LEDGER_FORMAT(ledger=where, format=ledger.format))
    try:
        _check_names(ledger, where)
    except StateError as error:
        raise StateError(stores.LEDGER_WRONG(error)) from error
    return ledger


def _check_names(ledger: Ledger, where: str) -> None:
    """Checks that every name is a checkpoint's, so that a changed ledger cannot make FlowCheck
    delete anything else, and that each entry's name has its step and digest. Raises StateError."""
    for name in (*ledger.writing, *ledger.leaving):
        checked_checkpoint_name(name, where)
    for entry in ledger.entries:
        name, step = checked_checkpoint_name(entry.name, where), step_number(entry.step, where)
        if step_in_name(name) != step or not entry.digest.startswith(digest_in_name(name)):
            told = stores.LEDGER_STEP(ledger=where, name=name, step=step, digest=repr(entry.digest))
            raise StateError(told)


def doubts_from_elsewhere(told: Sequence[Finding]) -> tuple[Finding, ...]:
    """The doubts that a server or a ledger names, of which neither is trusted: few, and their words
    cut. One that this release does not take for a doubt is still one, by its words."""
    return tuple(map(_doubt_from_elsewhere, told[:DOUBTS_MAX]))


def _doubt_from_elsewhere(one: Finding) -> Finding:
    try:
        said = str(one)
    except RecursionError:  # findings in findings, hundreds deep
        said = one.code
    known = one.is_any_of(DOUBTED, CALLED_EXACT_BEFORE)
    if known and len(said) <= WORDS_MAX and said.isprintable():
        return one
    return DOUBTED_BY_SERVER(said=printable(said[:WORDS_MAX])[:WORDS_MAX])
