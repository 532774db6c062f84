"""What a local folder of checkpoints says in its ledger of one of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flowcheck.errors import FlowCheckError
from flowcheck.findings.catalog.checkpoint_downloads import NOTES_UNREADABLE
from flowcheck.findings.finding import Finding
from flowcheck.replica.checkpoint_files.latest_pointer import CHECKPOINT_NAME_PREFIX
from flowcheck.step_numbers import Step
from flowcheck.vault.persist import checkpoint_ledger
from flowcheck.vault.persist.checkpoint_ledger import LedgerEntry
from flowcheck.vault.persist.local_folder import LocalFolder

FOLDERS_HELD = 8
"""Ledgers whose doubts are held in memory. A choice: a process reads few folders."""


def noted_beside(checkpoint: Path, digest: str, later: Step | None = None) -> tuple[Finding, ...]:
    """What the run noted there behind the save of this checkpoint; () where there is no ledger, or
    the note is of another state. Where the ledger cannot be read, that is a doubt too, of what has
    the name of a step. digest: of the checkpoint's state. later: a step that was made from it,
    which is in doubt where the run's later steps are."""
    folder = checkpoint.absolute().parent
    ledger = folder / checkpoint_ledger.LEDGER
    try:
        found = ledger.stat()
        stamp = found.st_ino, found.st_size, found.st_mtime_ns
        entry, behind = _noted_in(folder, stamp).get(checkpoint.name, (None, None))
    except FileNotFoundError:
        return ()
    except (FlowCheckError, OSError) as error:
        if not checkpoint.name.startswith(CHECKPOINT_NAME_PREFIX):
            return ()
        return (NOTES_UNREADABLE(why=error, ledger=ledger),)
    if entry is None or entry.digest != digest:
        return ()
    own = entry.doubts
    if later is not None and behind is not None and _is_behind(behind, later):
        own = (*own, behind)
    return checkpoint_ledger.doubts_from_elsewhere(own)


def _is_behind(failed: Finding, step: Step) -> bool:
    """Whether a step lies behind the last one that was found equal before the audit failed."""
    equal = failed.arguments.get("equal")
    return not isinstance(equal, int) or equal < step


@lru_cache(maxsize=FOLDERS_HELD)
def _noted_in(
    folder: Path, stamp: tuple[int, int, int]
) -> dict[str, tuple[LedgerEntry, Finding | None]]:
    """{name: (its entry, the doubt in later steps)} of those with either. stamp: what tells one
    content of the ledger from another."""
    text = LocalFolder(folder).read(checkpoint_ledger.LEDGER)
    ledger = checkpoint_ledger.decode(text, str(folder))
    return {
        one.name: (one, ledger.later.get(one.run))
        for one in ledger.entries
        if one.doubts or one.run in ledger.later
    }
