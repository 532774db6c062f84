"""Looks at all saves of a run on several stores, and makes again what stores lack of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog import striped_saves as told
from flowcheck.findings.catalog.general_errors import ERROR_TEXT
from flowcheck.findings.finding import Finding, plain_error_text
from flowcheck.vault.erasure.save_mending import Checked, MendedSave
from flowcheck.vault.erasure.striped_target import StripedTarget
from flowcheck.vault.persist.checkpoint_ledger import LEDGER, Ledger, LedgerEntry, decode, encode
from flowcheck.vault.persist.rate_limit import Stopped, TransferPace


@dataclass(slots=True)
class ScrubResult:
    """What a look at all saves found."""

    saves: int = 0
    again: list[Finding] = field(default_factory=list)
    """Of each save of which blocks were made again."""
    lacking: list[Finding] = field(default_factory=list)
    """Of each save that still lacks blocks."""
    newest: Finding | None = None
    """Why the newest exact save, or else the newest, is not whole at all stores; None: both are."""


class Scrubber:
    """Knows what a look that was stopped has read, so that the next one goes on behind it."""

    def __init__(self, open_target: Callable[[], StripedTarget], run: str) -> None:
        """open_target: stores that were down are asked again by each look. run: the name of the run
        whose saves these are: only it touches them."""
        self._open, self._run = open_target, run
        self._checked: Checked = {}

    def look(self, pace: TransferPace, *, every_block: bool) -> ScrubResult:
        """The newest save first. every_block: as of `SaveMender.mend`. Raises Stopped; StateError
        where too few stores answer."""
        target, made = self._open(), ScrubResult()
        ledger = _ledger(target)
        busy = {*ledger.writing, *ledger.leaving}
        own = [entry for entry in ledger.of(self._run) if entry.name not in busy]
        exact = next((entry for entry in reversed(own) if entry.is_exact), None)
        for entry in reversed(own):
            pace.heartbeat()
            why = self._of_save(target, entry, pace, made, every_block)
            if entry is exact or (entry is own[-1] and not made.newest):
                made.newest = why or made.newest
            made.saves += 1
        if every_block:
            self._checked.clear()
        return made

    def _of_save(
        self,
        target: StripedTarget,
        entry: LedgerEntry,
        pace: TransferPace,
        made: ScrubResult,
        every_block: bool,
    ) -> Finding | None:
        """Why the save lacks blocks; None: it has all that were looked at."""
        try:
            mended = target.mend(
                entry.name, entry.digest, pace, self._checked, every_block=every_block
            )
        except Stopped:
            raise
        except FlowCheckError as error:
            made.lacking.append(error.finding)
            return error.finding
        except OSError as error:
            found = ERROR_TEXT(kind="system", text=plain_error_text(error))
            made.lacking.append(found)
            return found
        if mended.again:
            made.again.append(told.MADE_AGAIN(name=entry.name, why=list(mended.again.values())))
        _note_lacking(target, entry, mended)
        if not mended.lacking:
            return None
        why = told.NOT_MENDED(
            name=entry.name,
            stores=len(mended.lacking),
            of=target.stores,
            why=list(mended.lacking.values()),
        )
        made.lacking.append(why)
        return why


def _note_lacking(target: StripedTarget, entry: LedgerEntry, mended: MendedSave) -> None:
    """In the ledger, by which retention keeps the newest save that all stores have. A store that
    does not answer may have all of it."""
    seen = len(mended.lacking) - mended.unseen
    lacking = max(entry.lacking, seen) if mended.lacking else 0
    if lacking == entry.lacking:
        return
    ledger = _ledger(target)
    entries = tuple(
        msgspec.structs.replace(one, lacking=lacking)
        if (one.name, one.digest) == (entry.name, entry.digest)
        else one
        for one in ledger.entries
    )
    target.write(LEDGER, encode(msgspec.structs.replace(ledger, entries=entries)))


def _ledger(target: StripedTarget) -> Ledger:
    return decode(target.read(LEDGER), f"{target.url}/{LEDGER}")
